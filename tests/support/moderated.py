"""A moderated store of Ann's, and queries of tests."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from people import ANN, START_MS, Person, raws

from cablestore import CableStore, Message, Post, StoreOptions, Verdict
from cablestore.index.drops import stored_drops
from cablestore.index.folder import Folder
from cablestore.index.leveldb import LevelDB
from cablestore.index.local import SWEPT
from cablestore.store import answers

NOW_MS = START_MS + 100_000_000
DAN = Person("dan")


def clock() -> int:
    return NOW_MS


def own(path: Path | None = None, *, moderated: bool = True) -> CableStore:
    if path is None:
        return CableStore.in_memory(
            identity=ANN.identity, options=StoreOptions(clock=clock, verify_threads=1, moderated=moderated)
        )
    return CableStore.open(
        path, identity=ANN.identity, options=StoreOptions(clock=clock, verify_threads=1, moderated=moderated)
    )


def assert_clean(store: CableStore) -> None:
    report = store.check()
    assert report.is_clean, [str(problem) for problem in report.problems]
    with store.snapshot() as snapshot:
        drops = [drop for _, drop in stored_drops(snapshot.reader)]
    if store.moderation.decisions is not None:
        is_swept = all(drop.place is None for drop in drops)
        assert says_swept(store) == is_swept if drops else not says_swept(store) or is_swept


def says_swept(store: CableStore) -> bool:
    """Return True if the store reports that all dropped posts are removed."""
    with store.snapshot() as snapshot:
        return snapshot.reader.local(SWEPT, b"") is not None


def write(path: Path, rows: dict[bytes, bytes | None]) -> None:
    """Write rows to the database of a closed store."""
    folder = Folder.open(path, create=False, dialect=None)
    with closing(folder), closing(LevelDB(folder.database_path)) as database:
        database.write(rows, sync=True)


def verdicts_of(store: CableStore, *posts: Post) -> list[Verdict]:
    return [outcome.verdict for outcome in store.ingest(raws(*posts))]


def chain(*authors: Person, channel: str = "c") -> list[Post]:
    """Return texts of these authors, each with a link to the last one."""
    posts: list[Post] = []
    for number, author in enumerate(authors):
        posts.append(author.text(channel, f"text {number}", links=(posts[-1].hash,) if posts else ()))
    return posts


def texts(messages: list[Message]) -> list[str]:
    return [message.text for message in messages]


def requestable(store: CableStore, *posts: Post) -> list[bytes]:
    with store.snapshot() as snapshot:
        return list(answers.worth_requesting(snapshot.reader, [post.hash for post in posts]))


def answered(store: CableStore, *posts: Post) -> list[bytes]:
    with store.snapshot() as snapshot:
        return list(answers.post_request(snapshot.reader, [post.hash for post in posts]))


def is_sweeping(store: CableStore) -> bool:
    return store.moderation.is_sweeping
