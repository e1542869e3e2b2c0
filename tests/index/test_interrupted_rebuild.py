"""If a rebuild of an open store is interrupted or fails at any step, later writes are not lost."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from people import ANN, raws
from stores import scratch_folder

from cablestore import CableStore
from cablestore.errors import CableStoreError, StorageError
from cablestore.index import engine, leveldb

STEPS = (
    (Path, ("mkdir", "replace", "rename", "unlink", "touch", "write_text")),
    (os, ("fsync", "rmdir", "unlink", "mkdir", "open", "replace")),
    (leveldb.LevelDB, ("__init__", "write", "close", "flush")),
)
"""Functions whose calls are the steps of a rebuild."""


class Interrupter:
    """Interrupts calls of the functions in `STEPS`: it raises an error before or after one of the calls."""

    def __init__(self, error: type[BaseException], *, after: bool) -> None:
        self._error = error
        self._after = after
        self.left = -1
        """Calls before the interrupted one. If it is negative, none is interrupted."""

    def interrupting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            is_last, self.left = self.left == 0, self.left - 1
            if is_last and not self._after:
                raise self._error
            found = function(*args, **options)
            if is_last:
                raise self._error
            return found

        return wrapped


def refusal_of(store: CableStore, text: str) -> str | None:
    """Write a text. Return why it is rejected, None if it is written."""
    try:
        store.post("default", text)
    except StorageError as error:
        return str(error)
    return None


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder in memory, because every step is synced."""
    with scratch_folder() as path:
        yield path


@pytest.mark.thorough("KeyboardInterrupt-False", "StorageError-True")
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, StorageError])
def test_writes_after_an_interrupted_rebuild_are_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], after: bool
) -> None:
    interrupter = Interrupter(error, after=after)
    for owner, names in STEPS:
        for name in names:
            monkeypatch.setattr(owner, name, interrupter.interrupting(getattr(owner, name)))
    with CableStore.open(folder, identity=ANN.identity) as store:
        store.ingest(raws(*(ANN.text("default", str(number)) for number in range(5))))
    step, refused, written = 0, 0, {"0"}
    while True:
        with CableStore.open(folder, identity=ANN.identity) as store:
            interrupter.left = step
            with contextlib.suppress(error):
                store.rebuild()
            is_over, interrupter.left = interrupter.left >= 0, -1
            rejection = refusal_of(store, f"after {step}")
            if rejection is None:
                written.add(f"after {step}")
            else:
                assert "open it again" in rejection
                refused += 1
                assert store.messages("default").messages
                with pytest.raises(CableStoreError, match="open it again"):
                    store.rebuild()
        with CableStore.open(folder, identity=ANN.identity) as store:
            assert store.check().is_clean
            assert written <= {message.text for message in store.messages("default", 1000).messages}
        assert len(list(folder.glob("generation-*"))) == 1
        if is_over:
            break
        step += 1
    assert step > 20
    assert 0 < refused < step / 2


def test_an_interrupted_rebuild_leaves_no_generation(tmp_path: Path) -> None:
    """Nothing of it is left while the store is still open, and the next one succeeds."""

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with CableStore.open(tmp_path, identity=ANN.identity) as store:
        store.post("default", "before")
        before = sorted(path.name for path in tmp_path.iterdir())
        with pytest.raises(KeyboardInterrupt):
            store.rebuild(progress=interrupt)
        assert sorted(path.name for path in tmp_path.iterdir()) == before
        store.rebuild()
        assert store.check().is_clean


def test_a_new_database_that_cannot_be_opened_leaves_the_store_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> leveldb.LevelDB:
        raise StorageError("too many open files")

    with CableStore.open(tmp_path, identity=ANN.identity) as store:
        store.post("default", "before")
        with monkeypatch.context() as patch:
            patch.setattr(engine, "LevelDB", refuse)
            with pytest.raises(StorageError, match="too many open files"):
                store.rebuild()
        store.post("default", "after it")
        store.rebuild()
    with CableStore.open(tmp_path, identity=ANN.identity) as store:
        assert store.check().is_clean
        assert [message.text for message in store.messages("default").messages] == ["after it", "before"]
    assert len(list(tmp_path.glob("generation-*"))) == 1
