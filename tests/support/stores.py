"""Stores in memory for the length of a test."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgpack
from history import AUTHORS, NOW_MS
from people import raws

from cablestore import CableStore, Dialect, Post, StoreOptions
from cablestore.index.header import peek
from cablestore.index.leveldb import LevelDB

IN_MEMORY = Path("/dev/shm")  # a folder in memory, where there is one: small files need not wait for a disk


@contextmanager
def scratch_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder:
        yield Path(folder)


@contextmanager
def store_of(dialect: Dialect, posts: Iterable[Post], identity: int = 0) -> Iterator[CableStore]:
    """Yield a store that keeps all posts: what acts of moderation remove is the subject of other tests."""
    with CableStore.in_memory(
        dialect=dialect,
        identity=AUTHORS[identity],
        options=StoreOptions(verify_threads=1, clock=lambda: NOW_MS + 1, moderated=False),
    ) as store:
        store.ingest(raws(*posts), verify=False)
        yield store


def public(posts: Iterable[Post]) -> list[Post]:
    return [post for post in posts if not post.is_local_only]


def database_of(path: Path) -> Path:
    """Return the folder of the database that a store uses."""
    header = peek(path)
    assert header is not None
    return path / header.generation


def outdate(path: Path) -> None:
    """Make the views of a closed store say that another version built them."""
    database = LevelDB(database_of(path))
    with database.snapshot() as state:
        meta = msgpack.unpackb(state.get(b"!meta") or b"")
    meta["views"]["messages"] = 0
    database.write({b"!meta": msgpack.packb(meta)}, sync=True)
    database.close()
