"""A forked child neither uses nor damages open resources of its parent, and releases its locks and ports."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

import pytest
from forking import fork, idle_child, run_forked
from serving import own_host

from cablestore import CableStore, StoreOptions
from cablestore.aio import AsyncCableStore
from cablestore.archive.content.store import ContentStore
from cablestore.archive.folder import ArchiveFolder
from cablestore.backup.manifest import claimed
from cablestore.closable import Closable
from cablestore.files import LocalFolder, atomic_file
from cablestore.index.leveldb import Tuning
from cablestore.index.signatures import SignatureVerifier
from cablestore.peers import Address, Node, NodeSettings
from cablestore.sds import CausalLog

REFUSED = r"CableStoreError: this \w+ was opened by process \d+, of which process \d+ is a fork"

USES: dict[str, Callable[[CableStore], object]] = {
    "post": lambda store: store.post("default", "from the child"),
    "read": lambda store: store.messages("default"),
    "search": lambda store: store.search("parent"),
    "identity": lambda store: store.identity,
    "snapshot": lambda store: store.snapshot(),
    "events": lambda store: list(store.events(10_000)),
    "moderation": lambda store: store.moderation,
    "local values": lambda store: store.local,
    "rebuild": lambda store: store.rebuild(),
    "export": lambda store: store.export("export"),
    "with": lambda store: store.__enter__(),
    "node": lambda store: asyncio.run(Node(store).__aenter__()),
}


@pytest.mark.parametrize("use", USES)
def test_using_a_store_in_a_child_raises_an_error_with_the_owner(store: CableStore, use: str) -> None:
    store.post("default", "from the parent")
    found = run_forked(lambda: USES[use](store))
    assert f"CableStoreError: this CableStore was opened by process {os.getpid()}" in found
    store.post("default", "from the parent again")
    assert store.check().is_clean


def test_objects_of_a_store_from_before_the_fork_are_also_rejected(store: CableStore) -> None:
    for number in range(3):
        store.post("default", f"text {number}")
    write, events, state = store.post, store.events(timeout_s=0), store.snapshot()
    next(events)
    for use in (partial(write, "default", "x"), partial(list, events), lambda: list(state.channels())):
        assert re.search(REFUSED, run_forked(use))
    state.close()


ENDS = """
import gc, os, sys
from cablestore import CableStore
from forking import files_of
from pathlib import Path
with CableStore.open(sys.argv[1]) as store:
    store.post("default", "from the parent")
    store.update_search_index()
    before = files_of(Path(sys.argv[1]))
    for end in ("close", "forget", "leave"):
        if os.fork() == 0:
            if end == "close":
                store.close()
            elif end == "forget":
                del store
                gc.collect()
            sys.exit(0)
        assert os.wait()[1] == 0
        assert files_of(Path(sys.argv[1])) == before, end
    store.post("default", "from the parent again")
    assert store.search("again").hits and store.check().is_clean
"""


def test_the_exit_of_a_child_does_not_change_files(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENDS, str(tmp_path / "store")]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(Path(__file__).parent / "support")})


def test_a_child_does_not_wait_for_a_lock_of_a_thread_of_its_parent(store: CableStore) -> None:
    is_writing, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        is_writing.set()
        may_end.wait()

    unwatch = store.watch(hold)
    writer = threading.Thread(target=store.post, args=("default", "slow"))
    writer.start()
    is_writing.wait()
    try:
        assert re.search(REFUSED, run_forked(lambda: store.post("default", "from the child")))
    finally:
        unwatch()
        may_end.set()
        writer.join()


# --- locks -------------------------------------------------------------------------------------

OWNERS: dict[str, Callable[[Path], AbstractContextManager[object]]] = {
    "store": CableStore.open,
    "causal logs": CausalLog.open,
    "content store": ContentStore.open,
    "archives": lambda path: ArchiveFolder(path).claimed(),
    "backup": lambda path: claimed(LocalFolder(path), to_write=True),
}


@pytest.mark.parametrize("owner", OWNERS)
def test_a_child_does_not_keep_a_lock_that_its_parent_released(tmp_path: Path, owner: str) -> None:
    with ExitStack() as child:
        with OWNERS[owner](tmp_path / "place"):
            child.enter_context(idle_child())
        with OWNERS[owner](tmp_path / "place"):
            pass


@pytest.mark.parametrize("owner", OWNERS)
def test_the_exit_of_a_child_does_not_release_locks_of_its_parent(tmp_path: Path, owner: str) -> None:
    with OWNERS[owner](tmp_path / "place") as opened:
        run_forked(opened.close if isinstance(opened, Closable) else lambda: None)
        again = run_forked(lambda: OWNERS[owner](tmp_path / "place").__enter__())
        assert "StoreLockedError" in again or "another process" in again


KILLED = """
import os, signal, sys
from cablestore import CableStore
store = CableStore.open(sys.argv[1])
if os.fork() == 0:
    print(os.getpid(), flush=True)
    os.kill(os.getppid(), signal.SIGKILL)
signal.pause()
"""


def test_a_lock_ends_with_its_owner_even_if_a_child_is_running(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, tmp_path / "store"], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
    try:
        with CableStore.open(tmp_path / "store") as store:
            store.post("default", "after the owner's death")
    finally:
        os.kill(child, 9)


def test_an_exiting_child_does_not_write_its_copy_of_a_buffer(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "file") as file:
        file.write(b"once")
        run_forked(file.flush)
    assert (tmp_path / "file").read_bytes() == b"once"


# --- stores that the child opens ---------------------------------------------------------------


def test_a_child_opens_a_store_that_its_parent_closed_after_the_fork(tmp_path: Path) -> None:
    read, write = os.pipe()
    store = CableStore.open(tmp_path / "store")
    store.post("default", "from the parent")

    def work() -> None:
        os.read(read, 1)
        for text in ("one", "two"):
            with CableStore.open(tmp_path / "store") as own:
                own.post("default", text)

    result = fork(work)
    store.close()
    os.write(write, b"!")
    assert result() == "None"
    with CableStore.open(tmp_path / "store") as again:
        assert [message.text for message in again.messages("default").messages] == ["two", "one", "from the parent"]
        assert again.check().is_clean


def test_a_child_without_the_thread_of_leveldb_rejects_large_writes(tmp_path: Path) -> None:
    CableStore.open(tmp_path / "of the parent").close()

    def work() -> None:
        with CableStore.open(
            tmp_path / "store", options=StoreOptions(tuning=Tuning(write_buffer_size_bytes=2**16))
        ) as store:
            while True:
                store.post("default", "a text " * 100)

    assert "CableStoreError: large writes are not possible: LevelDB has no background thread" in run_forked(work)
    with CableStore.open(tmp_path / "store") as again:
        assert again.messages("default").messages
        assert again.check().is_clean


# --- threads and ports -------------------------------------------------------------------------


def test_a_verifier_and_an_asyncio_store_are_rejected_in_a_child(store: CableStore) -> None:
    verifier, aio = SignatureVerifier(2), AsyncCableStore(store)
    assert re.search(REFUSED, run_forked(lambda: verifier.start([b"a", b"b"])))
    assert re.search(REFUSED, run_forked(lambda: asyncio.run(aio.stats())))
    assert run_forked(lambda: asyncio.run(aio.close())) == "None"


def test_a_child_does_not_keep_ports_of_a_node(store: CableStore) -> None:
    asyncio.run(_listen_again(store))


async def _listen_again(store: CableStore) -> None:
    with ExitStack() as child:
        async with Node(store, NodeSettings()) as node:
            address = await node.listen(Address.parse(own_host()))
            assert "CableStoreError: this Node" in run_forked(node.peers)
            child.enter_context(idle_child())
        async with Node(store, NodeSettings()) as node:
            assert await node.listen(address) == address
