"""Stores posts of the type `reaction`, which the tree on the path has, and prints what comes of it: FOLDER."""

from __future__ import annotations

import contextlib
import json
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import cablestore
from cablestore import (
    DRAFT8,
    LEGACY,
    CableStore,
    Delete,
    Dialect,
    Identity,
    Info,
    Join,
    Post,
    Text,
    decode_post,
    encode_post,
)
from cablestore.cli import main as command_line
from cablestore.errors import DecodeError
from cablestore.protocol.cable_js import handles_post
from cablestore.reindex.columns import POSTS, SETTLED, batch_of

ANN, BOB = Identity.derive("reactions", "ann"), Identity.derive("reactions", "bob")
NOW_MS = 1_700_000_000_000


def written(author: Identity, body: Any, at: int, *links: bytes, dialect: Dialect = DRAFT8) -> Post:
    """Return a post of a time."""
    return encode_post(body, links=links, timestamp_ms=NOW_MS + at, identity=author, dialect=dialect)


def history() -> tuple[list[Post], list[Post]]:
    """Return posts of known types, and reactions with the deletion of one of them."""
    join = written(ANN, Join("a"), 0)
    known = [join, written(ANN, Text("a", "hello"), 1, join.hash), written(BOB, Info.of(name="Bob"), 2)]
    reaction = cablestore.Reaction
    first = written(BOB, reaction("A", known[1].hash, "+1"), 5, known[1].hash)
    second = written(BOB, reaction("a", known[1].hash, "-1"), 6, first.hash)
    return known, [first, second, written(BOB, Delete((first.hash,)), 7)]


def why_not_in(dialect: Dialect, post: Post) -> str:
    """Return why a post cannot be read in a dialect."""
    try:
        decode_post(post.raw, dialect)
    except DecodeError as error:
        return type(error).__name__
    return ""


def command(*words: str | Path) -> str:
    """Run a command that must succeed, and return what it prints."""
    printed = StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            command_line(list(map(str, words)))
        except SystemExit as ended:
            if ended.code:
                raise
    return printed.getvalue()


def moved(folder: Path) -> dict[str, Any]:
    """Export the store to another one, rebuild both, and return what commands print of them."""
    path, copy, export = folder / "store", folder / "copy", folder / "export"
    command("export", export, "--store", path)
    command("verify-export", export, "--signatures")
    command("init", "--store", copy, "--dialect", "draft8")
    command("import", export, "--store", copy)
    dumps = []
    for store in (path, copy):
        dumps.append(command("dump", "--digest", "--store", store))
        command("rebuild", "--store", store)
        dumps.append(command("dump", "--digest", "--store", store))
        command("check", "--signatures", "--store", store)
    exported = json.loads((export / "manifest.json").read_text())["posts"]
    return {"exported": exported, "dumps": {dump.strip() for dump in dumps}}


def main(folder: Path) -> None:
    """Store the history, in one order as a store on the disk, and in the other in memory."""
    known, reactions = history()
    first, second, _ = reactions
    found: dict[str, Any] = {"other dialect": why_not_in(LEGACY, first), "cable.js": handles_post(first.raw)}
    with CableStore.open(folder / "known", dialect=DRAFT8, identity=ANN) as store:
        store.ingest(post.raw for post in known)
        found["known"] = store.dump_digest()
    with CableStore.open(folder / "store", dialect=DRAFT8, identity=ANN) as store:
        store.ingest(post.raw for post in known)
        found["verdicts"] = [outcome.verdict.value for outcome in store.ingest([first.raw, second.raw])]
        found["counts"] = [store.stats().posts, {each.name: each.posts for each in store.channels()}]
        found["by type"] = [post.raw for post in store.posts_by(BOB.public_key, post_type=12)] == [
            first.raw,
            second.raw,
        ]
        found["by author"] = [post.type_name for post in store.posts_by(BOB.public_key)]
        found["members"] = [user.public_key == ANN.public_key for user in store.members("a")]
        found["heads"] = store.heads("a") == [second.hash]
        store.ingest([reactions[2].raw])
        found["after deletion"] = [store.stats().posts, store.check(signatures=True).is_clean]
        found["body"] = str(store.get(second.hash).body.mark)  # type: ignore[union-attr] # it is a reaction
        found["dump"] = store.dump_digest()
    with CableStore.in_memory(dialect=DRAFT8, identity=ANN) as other:
        for post in reversed([*known, *reactions]):
            other.ingest([post.raw])
        found["is the same in any order"] = other.dump_digest() == found["dump"]
        more = (cablestore.Reaction("a", known[1].hash, "+1") for _ in range(5))
        other.ingest(written(BOB, body, 10 + at).raw for at, body in enumerate(more))
        other.prune(before_ms=NOW_MS + 1000)
        found["left by prune"] = other.stats().posts
    found["column"] = batch_of(POSTS, [known[0], second]).to_pydict()["type"]
    found["is counted by channel"] = "reactions" in SETTLED["channels"]
    for name, value in moved(folder).items():
        found[name] = value if name == "exported" else value == {found["dump"]}
    print(json.dumps(found))


main(Path(sys.argv[1]))
