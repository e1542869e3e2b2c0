"""Kill -9 at any moment: data that was acknowledged with `sync` is stored, and the database is valid."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from folders import SUPPORT
from people import ANN, raws
from waiting import wait_until

from cablestore import CableStore
from cablestore.protocol.body import DELETE

CHILD = SUPPORT / "crash_child.py"
WORK = ("ingest", "delete", "prune", "rebuild", "import", "back-to")


def run_and_kill(folder: Path, seed: int, work: str) -> list[list[str]]:
    """Start a child process on the store, kill it at a random moment, and return its acknowledgements."""
    with (folder.parent / "said").open("w+") as said:
        child = subprocess.Popen(
            [sys.executable, str(CHILD), str(folder), str(seed), work], stdout=said, stderr=subprocess.PIPE
        )
        rng = random.Random(seed)
        until = rng.randrange(4, 9)  # acknowledgements; then at a random moment
        wait_until(lambda: Path(said.name).read_text().count("\n") >= until or child.poll() is not None)
        time.sleep(rng.uniform(0, 0.1))
        child.send_signal(signal.SIGKILL)
        _, errors = child.communicate()
        assert child.returncode == -signal.SIGKILL, errors.decode()
        lines = Path(said.name).read_text().split("\n")[:-1]  # the last may be incomplete
    return [line.split() for line in lines]


def assert_whole_and_holds(folder: Path, said: list[list[str]], held: set[str]) -> set[str]:
    """Check that the store opens, is valid, and has the posts of all child processes that were not removed."""
    for word, *hashes in said:
        if word == "stored":
            held |= set(hashes)
        elif word == "gone":
            held -= set(hashes)
        elif word == "pruned":
            held.clear()
    with CableStore.open(folder) as store:
        report = store.check()
        assert report.is_clean, [str(problem) for problem in report.problems]
        here = {key[6:].decode() for key, _ in store.dump() if key.startswith(b"!data!")}
        deleted = {h for h in held if store.deletion(bytes.fromhex(h)) is not None}
        assert len(deleted) <= 5  # one deletion may be written without acknowledgement
        missing = held - here - deleted
        # A killed prune may have removed some posts. It removes texts that have ten newer ones.
        if missing:
            assert "prune" in folder.name
        for word, *hashes in said:
            if word == "gone":
                assert not here & set(hashes)
        before = store.dump_digest()
        store.rebuild()
        assert store.dump_digest() == before
    return held & here


@pytest.mark.thorough("3-back-to", "3-delete", "3-import", "3-prune", "3-rebuild")
@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("kills", [3, pytest.param(170, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_a_store_survives_kill_9_at_random_moments(tmp_path: Path, work: str, kills: int) -> None:
    """There are 18 kills in a normal run, a thousand in a soak.

    Each child process continues with the data of the last one.
    """
    folder = tmp_path / f"store-{work}"
    held: set[str] = set()
    acknowledged = 0
    for seed in range(kills):
        said = run_and_kill(folder, seed + kills * 1000, work)
        acknowledged += len(said)
        held = assert_whole_and_holds(folder, said, held)
    assert acknowledged > 2 * kills


KILLED_AT = """
import os, signal, sys
from cablestore import CableStore
from cablestore.index import folder, leveldb
from people import ANN, raws

def dying(function, when):
    def wrapped(*args, **options):
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        function(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)
    return wrapped

path, point, when = sys.argv[1:]
store = CableStore.open(path)
owner, name = {
    "write": (leveldb.LevelDB, "write"),
    "activate": (folder.Folder, "activate"),
    "remove": (folder.Folder, "remove"),
    "close new database": (leveldb.LevelDB, "close"),
    "replace header": (folder.Path, "replace"),
}[point]
if point == "write":
    setattr(owner, name, dying(getattr(owner, name), when))
    store.ingest(raws(ANN.text("default", "new")), sync=True)
else:
    setattr(owner, name, dying(getattr(owner, name), when))
    store.rebuild()
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("point", ["write", "close new database", "replace header", "activate", "remove"])
def test_a_store_survives_kill_9_at_named_steps(tmp_path: Path, point: str, when: str) -> None:
    folder = tmp_path / "store"
    with CableStore.open(folder) as store:
        post = ANN.text("default", "x")
        store.ingest(raws(post, *(ANN.text("default", str(i)) for i in range(50)), ANN.delete(post)))
        before = store.dump_digest()
    command = [sys.executable, "-c", KILLED_AT, str(folder), point, when]
    environment = os.environ | {"PYTHONPATH": str(CHILD.parent)}
    killed = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    with CableStore.open(folder) as store:
        assert store.check().is_clean
        assert (store.dump_digest() == before) == (point != "write" or when == "before")
        assert store.stats().posts["text"] == (51 if point == "write" and when == "after" else 50)
        store.rebuild()
        assert store.check().is_clean
        assert any(found.type == DELETE for found in store.posts_by(ANN.key))
    assert len(list(folder.glob("generation-*"))) == 1
