"""Commands that moderate: their posts, output and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from people import ANN, BOB, CYD, raws
from serving import HERE, Served, cablestore

from cablestore import CableStore, Post
from cablestore.moderation import Seed, UserRole

Run = Callable[..., tuple[int, str, str]]
SEED = bytes([UserRole.ADMIN, *ANN.key, UserRole.MOD, *CYD.key])


@pytest.fixture
def posts() -> list[Post]:
    texts = [BOB.text("default", "buy pills"), ANN.text("default", "hello"), BOB.text("other", "more pills")]
    return [*texts, BOB.named("bob"), ANN.named("ann"), CYD.text("default", "who is this?")]


@pytest.fixture
def folder(tmp_path: Path, posts: list[Post]) -> Path:
    with CableStore.open(tmp_path / "store") as store:
        store.ingest(raws(*posts))
    return tmp_path / "store"


@pytest.fixture
def run(run: Run, folder: Path) -> Run:
    """Return a function that runs a command on the store of the folder, in this process."""
    return lambda *words: run(*words, "-s", str(folder))


def json_lines(run: Run, *words: str) -> list[dict[str, Any]]:
    code, out, err = run(*words, "--json")
    assert (code, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


def texts(run: Run, *words: str) -> list[str]:
    return [line["text"] for line in json_lines(run, "log", *words)]


def test_a_dry_run_and_a_list_do_not_create_a_key(run: Run, folder: Path) -> None:
    assert run("hide", "bob", "--dry-run") == (
        0,
        f"bob {BOB.key.hex()[:8]} is hidden\n",
        "dry run: nothing was written\n",
    )
    assert run("moderation")[0] == 0
    assert not (folder / "identity").exists()


def test_hidden_messages_are_marked_with_the_author_and_the_reason(run: Run, posts: list[Post]) -> None:
    [dry] = json_lines(run, "hide", "bob", "--reason", "spam", "--dry-run")
    assert (dry["posts"], dry["dry_run"]) == ([], True)
    assert texts(run, "default") == ["buy pills", "hello", "who is this?"]
    [done] = json_lines(run, "hide", "bob", "--reason", "spam")
    assert done["changes"] == dry["changes"]
    assert [change["what"] for change in done["changes"]] == ["hidden"]
    assert len(done["posts"]) == 1
    assert "[hidden by " in run("log", "default")[1]
    assert ": spam]" in run("log", "default")[1]
    [first, *_] = json_lines(run, "log", "default")
    assert (first["text"], first["hidden_reason"]) == ("", "spam")
    assert texts(run, "default", "--hidden", "show") == ["buy pills", "hello", "who is this?"]
    assert texts(run, "default", "--hidden", "omit") == ["hello", "who is this?"]
    assert texts(run, "default", "--hidden", "omit", "-n", "1", "--oldest") == ["hello"]
    assert texts(run, "default", "--causal", "--hidden", "omit") == ["hello", "who is this?"]
    users = {user["name"]: user["marks"] for user in json_lines(run, "users")}
    assert users["bob"] == ["hidden"]
    assert users["ann"] == []
    assert "hidden" in run("users")[1]
    shown = json_lines(run, "show", posts[0].hash.hex())[0]
    assert (shown["says"], shown["reason"]) == ("", "spam")

    json_lines(run, "unhide", "bob")
    assert texts(run, "default") == ["buy pills", "hello", "who is this?"]
    assert "marks" not in run("users")[1]


def test_single_messages_are_hidden_and_dropped_by_hash(run: Run, posts: list[Post]) -> None:
    json_lines(run, "hide", posts[0].hash.hex()[:10])
    assert texts(run, "default", "--hidden", "omit") == ["hello", "who is this?"]
    json_lines(run, "drop", posts[1].hash.hex(), "--reason", "by mistake")
    assert texts(run, "default", "--hidden", "omit") == ["who is this?"]
    dropped = json_lines(run, "show", posts[1].hash.hex())[0]
    assert (dropped["reason"], dropped["author"]) == ("by mistake", ANN.key.hex())
    listed = {(action["what"], action["target"]) for action in json_lines(run, "moderation")}
    assert listed == {("hidden post", posts[0].hash.hex()), ("dropped post", posts[1].hash.hex())}
    json_lines(run, "undrop", posts[1].hash.hex())
    assert run("show", posts[1].hash.hex())[0] == 2
    assert [action["result"] for action in json_lines(run, "moderation", "--history")] == [
        "applies",
        "undone",
        "applies",
    ]


def test_dropping_a_user_is_private_and_removes_its_posts(run: Run, folder: Path, posts: list[Post]) -> None:
    code, out, err = run("drop", "bob")
    assert (code, "is dropped" in out, "removed 3 posts from this store" in err) == (0, True, True)
    with CableStore.open(folder) as store:
        assert [store.get(post.hash) for post in posts if post.author == BOB.key] == [None] * 3
        [action] = (post for post in store.posts_by(store.identity.public_key) if post.is_local_only)
        assert (action.type_name, action.is_local_only) == ("block", True)
    assert [action["private"] for action in json_lines(run, "moderation")] == [True]
    json_lines(run, "undrop", BOB.key.hex())
    assert not json_lines(run, "moderation")
    json_lines(run, "drop", "--channel", "other")
    assert [channel["channel"] for channel in json_lines(run, "channels")] == ["default"]


def test_roles_are_assigned_in_a_channel_or_everywhere(run: Run) -> None:
    json_lines(run, "role", "ann", "admin")
    json_lines(run, "role", CYD.key.hex()[:8], "mod", "--channel", "default")
    assert [(action["what"], action["channel"]) for action in json_lines(run, "moderation")] == [
        ("admin", ""),
        ("mod", "default"),
    ]
    assert {u["public_key"]: u["role"] for u in json_lines(run, "users")}[ANN.key.hex()] == "admin"
    members = {u["public_key"]: u["role"] for u in json_lines(run, "users", "--channel", "default")}
    assert (members[ANN.key.hex()], members[CYD.key.hex()]) == ("admin", "mod")
    assert [action["what"] for action in json_lines(run, "moderation", "--channel", "default")] == ["admin", "mod"]


def test_private_blocks_are_undone_in_private(run: Run) -> None:
    json_lines(run, "block", "bob", "--drop", "--private")
    assert {action["what"] for action in json_lines(run, "moderation")} == {"blocked and dropped (private)"}
    code, _, err = run("unblock", BOB.key.hex(), "--undrop")
    assert (code, "priva" in err) == (2, True)
    json_lines(run, "unblock", BOB.key.hex(), "--undrop", "--private")
    json_lines(run, "block", CYD.key.hex(), "--notify")
    assert [action["what"] for action in json_lines(run, "moderation")] == ["blocked"]


@pytest.mark.parametrize("form", ["bytes", "digits", "printed", "given"])
def test_a_moderation_seed_is_used_and_revoked(run: Run, tmp_path: Path, form: str) -> None:
    file = tmp_path / "seed"
    printed = "\n".join(f"{role:x}{key.hex()}" for key, role in Seed.read(SEED, 0).roles)
    file.write_bytes({"bytes": SEED, "printed": printed.encode() + b"\n"}.get(form, SEED.hex().encode()))
    json_lines(run, "moderation", "--seed", SEED.hex() if form == "given" else f"@{file}")
    assert [(row["what"], row["target"]) for row in json_lines(run, "moderation")] == [
        ("admin (seed)", ANN.key.hex()),
        ("mod (seed)", CYD.key.hex()),
    ]
    assert "ann" in run("moderation")[1]
    json_lines(run, "moderation", "--revoke-seed")
    assert not json_lines(run, "moderation")
    assert run("moderation", "--revoke-seed")[0] == 2


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["hide", "nobody"], "no user or post found"),
        (["hide", ""], "no user or post found"),
        (["block", "nobody"], "no user found"),
        (["drop"], "expected either TARGET arguments or --channel"),
        (["drop", "bob", "--channel", "default"], "expected either TARGET arguments or --channel"),
        (["role", "bob", "king"], "'king' is not one of"),
        (["role", "bob", "mod", "--reason", "x" * 129], "129"),
        (["role", "me", "admin"], "no user found"),
        (["moderation", "--seed", "zz"], "hex digits"),
        (["moderation", "--seed", "@nowhere"], "cannot read the moderation seed from nowhere"),
        (["moderation", "--seed", SEED.hex(), "--revoke-seed"], "cannot be combined"),
        (["block", BOB.key.hex(), "--private", "--notify"], "notified"),
        (["block", *(f"{n:064x}" for n in range(17))], "16"),
    ],
)
def test_invalid_arguments_are_rejected_with_a_reason(run: Run, words: list[str], reason: str) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert reason in err


def test_two_users_of_one_name_are_distinguished(run: Run, folder: Path) -> None:
    with CableStore.open(folder) as store:
        store.ingest(raws(CYD.named("bob")))
    code, _, err = run("hide", "bob")
    assert code == 2
    assert BOB.key.hex() in err
    assert CYD.key.hex() in err
    json_lines(run, "hide", BOB.key.hex()[:12])
    assert [user["public_key"] for user in json_lines(run, "users") if user["marks"]] == [BOB.key.hex()]


@pytest.mark.thorough
def test_commands_work_while_the_store_is_served(folder: Path, tmp_path: Path, serving: Callable[..., Served]) -> None:
    """The seed from `serve` is used once: a revoked seed stays revoked."""
    seed = tmp_path / "seed"
    seed.write_bytes(SEED)

    def lines(*words: str) -> list[dict[str, Any]]:
        found = cablestore(*words, "--json", store=folder)
        assert found.returncode == 0, found.stderr
        return [json.loads(line) for line in found.stdout.splitlines()]

    def served() -> Served:
        child = serving(folder, "--listen", HERE, "--moderation-seed", f"@{seed}")
        assert child.address
        return child

    child = served()
    assert {row["what"] for row in lines("moderation")} == {"admin (seed)", "mod (seed)"}
    lines("hide", "bob", "--reason", "spam")
    lines("drop", "--channel", "other")
    lines("role", "ann", "user")
    assert [line["text"] for line in lines("log", "default")] == ["", "hello", "who is this?"]
    lines("moderation", "--revoke-seed")
    assert sorted(row["what"] for row in lines("moderation")) == ["dropped channel", "hidden", "user"]
    assert child.logged("joined with a moderation seed (`cablestore moderation --revoke-seed` revokes it)")
    assert child.stop() == 0
    child = served()
    assert sorted(row["what"] for row in lines("moderation")) == ["dropped channel", "hidden", "user"]
    assert child.logged("moderation seed ignored, because it was revoked")
    assert child.stop() == 0
