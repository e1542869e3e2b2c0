"""Checkpoints for long work on an open store, outside the process that has it open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cablestore.errors import ArgumentError
from cablestore.files import make_locked, remove_unused, storage_errors
from cablestore.files.access import SHARED_FOLDER, is_shared
from cablestore.index.folder import CHECKPOINT
from cablestore.index.reader import Reader
from cablestore.remote.store import RemoteStore, run
from cablestore.store.options import StoreOptions
from cablestore.store.store import CableStore


def checkpoint_open(store: CableStore, target: Path) -> None:
    """Write a checkpoint of a store that is open in this process to an empty folder: see `index.checkpoint`."""
    store.parts.engine.checkpoint(target)


@contextmanager
def checkpoint(store: CableStore) -> Iterator[Path]:
    """Yield the folder of a checkpoint of an open store.

    The checkpoint is a closed store, and is removed afterwards. If the process is killed, the next checkpoint or
    opening of the store removes the remains. Writers of the store wait for some milliseconds, and readers do not wait.
    """
    if store.path is None:
        raise ArgumentError("invalid argument store: a store in memory has no folder. Use CableStore.open")
    remove_unused(store.path, CHECKPOINT)
    with storage_errors(store.path):
        folder = make_locked(store.path, CHECKPOINT)
    try:
        if is_shared(store.path):
            folder.path.chmod(SHARED_FOLDER)
        run(store, checkpoint_open, folder.path)
        yield folder.path
    finally:
        folder.remove()


@contextmanager
def readable(store: CableStore) -> Iterator[Reader]:
    """Yield a reader of the present state of an open store. If another process has it open, it reads a checkpoint."""
    if not isinstance(store, RemoteStore):
        with store.snapshot() as state:
            yield state.reader
        return
    options = StoreOptions(allow_missing_views=True)
    with (
        checkpoint(store) as copy,
        CableStore.open(copy, create=False, options=options) as opened,
        opened.snapshot() as state,
    ):
        yield state.reader
