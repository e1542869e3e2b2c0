"""The command `demo`, which demonstrates the main features on real input."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from importlib.resources import files
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click
from rich.text import Text

from cablestore.cli.import_irc import print_import, run_import
from cablestore.cli.output import NO_PROBLEMS, Output, safe, size
from cablestore.cli.read import histogram
from cablestore.cli.reindex import print_counts
from cablestore.cli.service import ending_on_sigterm
from cablestore.cli.stores import open_store
from cablestore.cli.values import PathValue
from cablestore.errors import ArgumentError, CableStoreError
from cablestore.extras import install_command
from cablestore.files import LocalFolder
from cablestore.irc.survey import Options, survey
from cablestore.plurals import counted
from cablestore.protocol.body import Delete
from cablestore.protocol.crypto import Identity
from cablestore.protocol.post import Post, encode_post
from cablestore.store import answers
from cablestore.store.display import Message
from cablestore.store.options import system_clock_ms
from cablestore.store.store import CableStore
from cablestore.views.installed import installed_catalog

SEED_PHRASE: Final = "demo"
DELETIONS: Final = 5


class _Demo:
    """Stages on an open store, in order. Each prints its work and returns a result for the summary."""

    def __init__(self, store: CableStore, out: Output, logs: Path) -> None:
        self.store = store
        self.rows: list[dict[str, Any]] = []
        self.out = out
        self._logs = logs
        self._deleted: list[Message] = []

    def run(self) -> None:
        """Run all stages. Raises CableStoreError if a stage finds an unexpected state of the store."""
        self.stage(f"import {self._logs.name}", self._import)
        self._channel = busiest_channel(self.store)
        self.stage("channels and people", self._people)
        self.stage(f"the last messages of {self._channel}", self._messages)
        self.stage("authors delete some of their messages", self._delete)
        self.stage("answer a peer, one request of each kind", self._answer)
        self.stage("check every row", self._check)
        self.stage("rebuild every view and compare", self._rebuild)
        self.stage("statistics of the store", self._stats)

    def stage(self, name: str, work: Callable[[], str]) -> None:
        """Run a stage under its number, and record its time and result."""
        self.out.say(Text(f"\n{len(self.rows) + 1}. {name}", style="bold"))
        started = time.perf_counter()
        result = work()
        self.out.say(result)
        self.rows.append({"stage": name, "seconds": round(time.perf_counter() - started, 2), "result": result})

    def _import(self) -> str:
        found = survey([self._logs], Options())
        report = run_import(self.store, self.out, found.logs, SEED_PHRASE)
        print_import(self.out, report, found)
        return f"{counted(report.lines, 'line')}, {counted(report.posts.total(), 'post')}"

    def _people(self) -> str:
        channels = list(self.store.channels())
        rows = [
            {"channel": c.name, "members": c.members, "messages": c.posts.get("text", 0), "topic": c.topic}
            for c in channels
        ]
        self.out.table(("channel", "members", "messages", "topic"), rows)
        members = sorted(safe(member.name) for member in self.store.members(self._channel))
        self.out.say(f"in {self._channel}: {', '.join(members[:12])}{' ...' if len(members) > 12 else ''}")
        people = counted(len(members), "person", "people")
        return f"{counted(len(channels), 'channel')}, {people} in {self._channel}"

    def _messages(self) -> str:
        page = self.store.messages(self._channel, 8).messages
        for message in reversed(page):
            self.out.say(f"{self.out.when(message.timestamp_ms)}  {safe(message.name)}: {safe(message.text)}")
        return f"printed {len(page)} messages"

    def _delete(self) -> str:
        pairs = deletions_of(self.store, self.store.messages(self._channel, 200).messages)
        self.store.ingest([deletion.raw for _, deletion in pairs], sync=True)
        self._deleted = [message for message, _ in pairs]
        for message, deletion in pairs:
            self.out.say(f"{safe(message.name)}: deleted {message.hash.hex()[:12]} with {deletion.hash.hex()[:12]}")
        gone = sum(self.store.get(message.hash) is None for message in self._deleted)
        if gone != len(pairs):
            raise CableStoreError(f"the store still contains {counted(len(pairs) - gone, 'deleted message')}")
        return f"deleted {counted(gone, 'message')}"

    def _answer(self) -> str:
        found = answer_each(self.store, self._channel, [message.hash for message in self._deleted])
        self.out.table(("request", "answer"), found)
        return f"{len(found)} answers"

    def _check(self) -> str:
        with self.out.progress("checking", sum(self.store.stats().posts.values())) as progress:
            report = self.store.check(progress=progress)
        if not report.is_clean:
            problems = counted(report.problem_count, "problem")
            raise CableStoreError(f"check found {problems}. The first is: {report.problems[0]}")
        return f"{report.rows:,} rows, {NO_PROBLEMS}"

    def _rebuild(self) -> str:
        before = self.store.dump_digest()
        with self.out.progress("rebuilding", sum(self.store.stats().posts.values())) as progress:
            self.store.rebuild(progress=progress)
        after = self.store.dump_digest()
        self.out.say(f"BLAKE3 of the dump before {before[:32]}, after {after[:32]}")
        if before != after:
            raise CableStoreError("the rebuilt database differs from the original")
        return "the dumps are equal"

    def _stats(self) -> str:
        stats = self.store.stats()
        rows = [{"view": name, "rows": of.rows, "size": size(of.size_bytes)} for name, of in stats.views.items()]
        self.out.table(("view", "rows", "size"), rows)
        self.out.say("")
        for line in histogram(stats.days):
            self.out.say(line)
        total = sum(of.size_bytes for of in stats.views.values())
        return f"{sum(stats.posts.values()):,} posts, {size(total)} in {len(rows)} views"


class _Reindexing:
    """Stages on the closed store. Spark builds its next database from two exports, one of them with deletions."""

    def __init__(self, folder: Path, stages: _Demo, scratch: Path) -> None:
        self._folder = folder
        self._stages = stages
        self._exports = [scratch / "export-of-the-store", scratch / "export-of-another"]
        self._scratch = scratch
        self._deletions: list[Post] = []

    def run(self) -> None:
        """Run all stages. Raises CableStoreError if a stage finds an unexpected state of the new database."""
        stage = self._stages.stage
        stage("export the store", self._export)
        stage("export another store, with more deletions", self._export_elsewhere)
        stage("reindex both on Spark, load, check, swap", self._reindex)
        stage("verify the new database", self._verify)

    def _export(self) -> str:
        with open_store(self._folder, create=False) as store:
            oldest = store.messages(busiest_channel(store), 200, newest_first=False).messages
            self._deletions = [deletion for _, deletion in deletions_of(store, oldest)]
            manifest = store.export(self._exports[0])
        posts, deleted = sum(manifest.posts.values()), counted(manifest.tombstones, "deleted post")
        return f"{counted(posts, 'post')}, and the hashes of {deleted}"

    def _export_elsewhere(self) -> str:
        with open_store(self._scratch / "another") as store:
            store.ingest([post.raw for post in self._deletions])
            manifest = store.export(self._exports[1])
        return f"{counted(manifest.tombstones, 'deletion')} of posts that only the first export contains"

    def _reindex(self) -> str:
        from cablestore.reindex import reindex  # noqa: PLC0415 - needs the extra cablestore[reindex]

        out = self._stages.out
        with out.stages() as progress:
            report = reindex(self._exports, self._folder, catalog=installed_catalog(), progress=progress)
        print_counts(out, report.derived)
        out.say(f"loaded {counted(report.rows, 'row')} into the next database of the store, and checked it")
        posts, deleted = sum(report.derived.posts.values()), report.derived.counts["deleted"]
        return f"{counted(posts, 'post')}, {counted(report.rows, 'row')}, {deleted} deleted across exports"

    def _verify(self) -> str:
        with open_store(self._folder, create=False) as store:
            bodies = [post.body for post in self._deletions]
            targets = [target for body in bodies if isinstance(body, Delete) for target in body.hashes]
            left = [target for target in targets if store.get(target) is not None]
            if left:
                raise CableStoreError(
                    f"the store still contains {counted(len(left), 'post')} that another export deleted"
                )
            by_spark = store.dump_digest()
            store.rebuild()
            if store.dump_digest() != by_spark:
                raise CableStoreError("the rows from Spark differ from the rows of a rebuild in this process")
        self._stages.out.say("rebuilt every view again without Spark, and compared the dumps")
        return f"deleted {len(targets)} more messages; a rebuild in this process writes the same rows"


# --- helpers of the stages ------------------------------------------------------------------------


def sample() -> Path:
    """Return the folder of the sample conversation in the package."""
    return Path(str(files("cablestore") / "sample"))


def deletions_of(store: CableStore, messages: Iterable[Message]) -> list[tuple[Message, Post]]:
    """Sign deletions of up to DELETIONS messages as their authors. Return each message with its post/delete.

    Authors who changed their nick are left out: their keys are derived from a nick that the messages lack.
    """
    found: list[tuple[Message, Post]] = []
    for message in messages:
        author = Identity.derive(SEED_PHRASE, message.name)
        if author.public_key == message.author and len(found) < DELETIONS:
            body, now_ms = Delete((message.hash,)), system_clock_ms()
            post = encode_post(body, links=(), timestamp_ms=now_ms, identity=author, dialect=store.dialect)
            found.append((message, post))
    return found


def busiest_channel(store: CableStore) -> str:
    """Return the channel with the most messages. Raises ArgumentError if no message or join was imported."""
    channels = list(store.channels())
    if not channels:
        raise ArgumentError("no messages or joins found in these logs. Choose other logs")
    return max(channels, key=lambda channel: channel.posts.get("text", 0)).name


def answer_each(store: CableStore, channel: str, deleted: list[bytes]) -> list[dict[str, str]]:
    """Answer one request of each kind from one snapshot. Return the rows of a table."""
    with store.snapshot() as snapshot:
        reader = snapshot.reader
        channels = list(answers.channel_list(reader))
        state = list(answers.channel_state(reader, channel))
        newest = list(answers.channel_time_range(reader, channel, 0, 0, 1000))
        posts = list(answers.post_request(reader, newest))
        asked = [*deleted, *islice(newest, 3), bytes(32)]
        wanted = list(answers.worth_requesting(reader, asked))
    rows = {
        "channel list": f"{len(channels)} names, first {channels[0]!r}",
        f"channel state of {channel}": f"{len(state):,} hashes",
        f"channel time range of {channel}, 1,000 newest": f"{len(newest):,} hashes",
        "posts of these hashes": f"{len(posts):,} posts, {sum(map(len, posts)):,} bytes",
        f"which of {len(asked)} offered hashes to request": f"{len(wanted)}, without stored and deleted posts",
    }
    return [{"request": request, "answer": answer} for request, answer in rows.items()]


@click.command()
@ending_on_sigterm()
@click.option("--logs", type=PathValue(exists=True), help="Use these IRC logs instead of the sample.")
@click.option("--keep", type=PathValue(), help="Create the store in this new folder and keep it.")
@click.option("--json", "as_json", is_flag=True, help="Print only a line of JSON per stage.")
def demo(logs: Path | None, keep: Path | None, as_json: bool) -> None:
    """Demonstrate every main feature on a conversation.

    The demo imports a conversation, reads it, deletes messages, and answers the requests of a peer. It checks the
    store, rebuilds it, and compares the rows before and after. Then Spark builds a new database of the store from two
    exports, one of which contains deletions.

    Example: `cablestore demo --keep demo-store`
    """
    with tempfile.TemporaryDirectory(prefix="cablestore-demo-") as scratch:
        folder = keep or Path(scratch) / "store"
        if not LocalFolder(folder).is_empty():
            raise click.UsageError(f"{folder} is not empty. Choose a new folder")
        with open_store(folder) as store:
            stages = _Demo(store, Output(as_json=False, quiet=as_json), logs or sample())
            stages.run()
        if find_spec("pyspark") is None:
            stages.out.note(f"\nskipped reindexing on Spark. To enable it, run: {install_command('reindex')}")
        else:
            _Reindexing(folder, stages, Path(scratch)).run()
    out = Output(as_json=as_json)
    out.say(Text("\nSummary:", style="bold"))
    out.table(("stage", "result"), stages.rows)  # with --json also the seconds
    if keep is not None:
        out.note(f"\nthe store is in {keep}. Try: cablestore stats -s {keep}")


COMMANDS: Final = (demo,)
