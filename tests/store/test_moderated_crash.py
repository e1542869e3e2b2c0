"""A drop that is killed at any time resumes: dropped posts are never displayed, and finally all are removed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from folders import SUPPORT
from people import ANN, BOB, CYD, START_MS, raws
from waiting import wait_until

from cablestore import CableStore, StoreOptions
from cablestore.index.local import DROPPED
from cablestore.store import answers

CHILD = SUPPORT / "sweep_child.py"
POSTS = 400


def opened(path: Path) -> CableStore:
    return CableStore.open(path, identity=ANN.identity, options=StoreOptions(clock=lambda: START_MS, verify_threads=1))


def run(path: Path, batches: int | None) -> None:
    """Drop and remove posts in a process. Kill it after `batches` batches; None lets it finish."""
    said = path.parent / "said"
    with said.open("w") as file:
        limit = [] if batches is None else [str(batches)]
        child = subprocess.Popen([sys.executable, str(CHILD), str(path), *limit], stdout=file, stderr=subprocess.PIPE)
        if batches is not None:
            wait_until(lambda: said.read_text().count("batch") >= batches or child.poll() is not None)
            child.send_signal(signal.SIGKILL)
        _, errors = child.communicate()
    assert child.returncode == (0 if batches is None else -signal.SIGKILL), errors.decode()


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2))
def test_a_killed_sweep_continues(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "store"
    dropped = [BOB.text("c", str(number), at=START_MS - POSTS + number) for number in range(POSTS)]
    kept = CYD.text("c", "kept", at=START_MS - 1)
    with opened(path) as store:
        store.ingest(raws(*dropped, kept))
    random.seed(seed)
    left = POSTS
    for _ in range(2):
        run(path, random.randrange(0, 12))
        with opened(path) as store:
            report = store.check()
            assert report.is_clean, [str(problem) for problem in report.problems]
            if not store.user(BOB.key).is_dropped:
                continue  # killed before the action was written
            assert [message.text for message in store.messages("c", 1000).messages] == ["kept"]
            with store.snapshot() as snapshot:
                assert list(answers.post_request(snapshot.reader, [post.hash for post in dropped])) == []
                held = sum(snapshot.reader.post(post.hash) is not None for post in dropped)
            assert held <= left
            left = held
    run(path, None)
    with opened(path) as store, store.snapshot() as snapshot:
        assert store.check().is_clean
        assert all(snapshot.reader.post(post.hash) is None for post in dropped)
        assert sum(1 for _ in snapshot.reader.local_rows(DROPPED)) == POSTS
        assert list(answers.worth_requesting(snapshot.reader, [post.hash for post in dropped])) == []
