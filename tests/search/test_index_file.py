"""File of the index: removed words are erased, a mismatching index is rebuilt, and kills are harmless."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from folders import SUPPORT
from inside import index_table
from people import ANN, BOB, START_MS, raws
from waiting import LIMIT_S

from cablestore import CableStore, Post, limits
from cablestore.errors import StorageError
from cablestore.index import folder as store_folder
from cablestore.search import index as search_index
from cablestore.search import table as search_table
from cablestore.store import ClosedStore

SECRET = b"zweiundvierzigstes"


def files(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in store_folder.SEARCH_FILES if (path / name).exists()}


def some(number: int, text: str = "word") -> list[Post]:
    return [ANN.text("default", f"{text} {i} {'lorem ipsum dolor sit amet ' * 3}") for i in range(number)]


def holds(store: CableStore, text: str = "word") -> set[bytes]:
    found, cursor = set[bytes](), None
    while True:
        page = store.search(text, limit=1000, cursor=cursor, catch_up_s=LIMIT_S)
        assert page.pending == 0
        found |= {hit.message.hash for hit in page.hits}
        cursor = page.cursor
        if cursor is None:
            return found


def must_purge(store: CableStore) -> bool:
    with index_table(store) as table:
        return table.must_purge()


@pytest.mark.thorough("deleted", "dropped")
@pytest.mark.parametrize("how", ["deleted", "discarded", "dropped"])
def test_words_of_removed_texts_are_erased_from_the_files(store: CableStore, how: str, rng: random.Random) -> None:
    assert store.path is not None
    secrets = [BOB.text("secretchannel", f"{SECRET.decode()}{i} word") for i in range(20)]
    posts = some(300) + secrets
    rng.shuffle(posts)
    for at in range(0, len(posts), 40):
        store.ingest(raws(*posts[at : at + 40]))
        assert store.search("word").pending == 0
    assert holds(store, f"{SECRET.decode()}*") == {post.hash for post in secrets}
    assert any(SECRET in data for data in files(store.path).values())
    if how == "deleted":
        store.ingest(raws(BOB.delete(*secrets)))
    elif how == "discarded":
        store.discard(post.hash for post in secrets)
    else:
        store.moderation.drop(users=[BOB.key])
    assert len(holds(store)) == 300
    data = files(store.path)
    assert data["search.sqlite"]
    assert not any(SECRET in part or b"secretchannel" in part for part in data.values())
    store.ingest(raws(BOB.text("other", f"{SECRET.decode()} again")))
    assert len(store.search(SECRET.decode()).hits) == (how != "dropped")


def test_removed_texts_are_overwritten_in_several_steps(store: CableStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large index is rewritten in steps. Texts that are removed between them are also erased."""
    monkeypatch.setattr(search_table, "_MERGED_PAGES", 1)
    assert store.path is not None
    posts = [ANN.text("default", " ".join(f"{SECRET.decode()}{i}{j:02}" for j in range(20))) for i in range(300)]
    store.ingest(raws(*posts))
    store.search("word")
    steps = 0
    store.discard([posts[0].hash])
    while store.search("word", catch_up_s=0).pending or must_purge(store):
        steps += 1
        if steps == 3:
            store.discard(post.hash for post in posts[1:299])
    assert steps > 5
    left = {int(digits) for digits in re.findall(SECRET + rb"(\d{5,})", b"".join(files(store.path).values()))}
    assert left <= set(range(29_900, 29_920))
    assert len(store.search(f"{SECRET.decode()}*").hits) == 1


def test_a_search_does_not_wait_until_a_large_index_is_overwritten(
    store: CableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_table, "_MERGED_PAGES", 1)
    assert store.path is not None
    posts = [ANN.text("default", f"{SECRET.decode()}{i} word {i} {'x' * 2000}{i}") for i in range(40)]
    store.ingest(raws(*posts))
    store.update_search_index()
    assert not must_purge(store)
    store.discard([posts[7].hash])
    assert len(store.search("word", catch_up_s=LIMIT_S).hits) == 39
    assert must_purge(store)
    store.update_search_index()
    assert not must_purge(store)
    assert not any(SECRET + b"7" in data for data in files(store.path).values())


def test_the_index_is_rebuilt_for_another_database(tmp_path: Path) -> None:
    path = tmp_path / "store"
    posts = some(30)
    with CableStore.open(path) as store:
        store.ingest(raws(*posts))
        expected = {post.hash for post in posts}
        assert holds(store) == expected
        store.rebuild()
        assert holds(store) == expected
        store.discard([posts[0].hash])
        expected -= {posts[0].hash}
    ClosedStore(path).rebuild()
    with CableStore.open(path) as store:
        assert holds(store) == expected
    with_index = ClosedStore(path)
    (live,) = [generation.name for generation in with_index.generations() if generation.is_live]
    (path / "STORE").unlink()
    with_index.recover(live)
    with CableStore.open(path) as store:
        assert holds(store) == expected


@pytest.mark.parametrize("later", [0, 1, 5, 40])
def test_the_index_is_rebuilt_if_the_store_is_an_older_copy(tmp_path: Path, later: int) -> None:
    """The store is restored from a copy without its index, and other posts have the numbers of the lost ones."""
    path, copy = tmp_path / "store", tmp_path / "copy"
    first, lost, new = some(10), some(5), some(later)
    with CableStore.open(path) as store:
        store.ingest(raws(*first))
    shutil.copytree(path, copy)
    with CableStore.open(path) as store:
        store.ingest(raws(*lost))
        assert len(holds(store)) == 15
    for name in files(path):
        shutil.copyfile(path / name, copy / name)
    with CableStore.open(copy, read_only=True) as store, pytest.raises(StorageError, match="belongs to another"):
        store.search("word")
    with CableStore.open(copy) as store:
        store.ingest(raws(*new))
        assert holds(store) == {post.hash for post in first + new}


def test_the_index_is_kept_if_a_local_value_changes_repeatedly(store: CableStore) -> None:
    """The log removes the entry of the previous change, which was the last one in the index."""
    store.ingest(raws(*some(50)))
    assert len(holds(store)) == 50
    read: list[int] = []
    for number in range(3):
        store.local.set_draft("default", f"{number}")
        store.update_search_index(progress=read.append)
    assert sum(read) == 3
    assert len(holds(store)) == 50


def spoil_header(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 1000)


def spoil_pages(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[8192:] = bytes(len(data) - 8192)
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def of_another_version(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", 99)
    connection.close()


def test_an_index_of_another_version_is_rebuilt(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """0.12.4 and 0.13.2 wrote version 3, which has other words."""
    path = tmp_path / "store"
    with CableStore.open(path) as store:
        store.ingest(raws(ANN.text("default", "\u26a0\ufe0fWarning")))
        assert len(holds(store, "warning")) == 1
        with index_table(store) as table:
            table._connection.pragma("user_version", 3)
    with (
        CableStore.open(path, read_only=True) as store,
        pytest.raises(StorageError, match="it has version 3, expected"),
    ):
        store.search("warning")
    with CableStore.open(path) as store:
        assert len(holds(store, "warning")) == 1
    assert "rebuilding the search index: it has version 3" in caplog.text


@pytest.mark.thorough("cut", "empty", "of_another_version", "spoil_header", "unlink")
@pytest.mark.parametrize("spoil", [spoil_header, spoil_pages, cut, empty, of_another_version, Path.unlink])
def test_the_index_is_rebuilt_if_the_file_is_damaged(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    path = tmp_path / "store"
    posts = some(200)
    with CableStore.open(path) as store:
        store.ingest(raws(*posts))
        assert len(holds(store)) == 200
    spoil(path / store_folder.SEARCH_INDEX)
    with CableStore.open(path) as store:
        assert holds(store) == {post.hash for post in posts}
        assert store.check().is_clean


def test_an_index_that_another_program_changed_is_rebuilt_while_the_store_is_open(tmp_path: Path) -> None:
    posts, read = some(7), list[int]()
    with CableStore.open(tmp_path) as store:
        store.ingest(raws(*posts))
        assert holds(store) == {post.hash for post in posts}
        os.utime(tmp_path / store_folder.SEARCH_INDEX)
        store.update_search_index(progress=read.append)
        assert sum(read) == 7
        assert holds(store) == {post.hash for post in posts}


def test_a_foreign_log_is_removed_and_the_index_is_kept(tmp_path: Path) -> None:
    """The index can also be read if the process is killed afterwards."""
    path, copy, read = tmp_path / "store", tmp_path / "copy", list[int]()
    with CableStore.open(path) as store:
        store.ingest(raws(*some(7)))
        assert len(holds(store)) == 7
    (path / f"{store_folder.SEARCH_INDEX}-wal").write_bytes(bytes(5000))
    with CableStore.open(path) as store:
        assert len(holds(store)) == 7
        shutil.copytree(path, copy, ignore=shutil.ignore_patterns("lock"))
    with CableStore.open(copy) as store:
        store.update_search_index(progress=read.append)
    assert read == []


def test_an_unwritable_index_raises_an_error_and_does_not_change_the_store(tmp_path: Path) -> None:
    path = tmp_path / "store"
    (path / store_folder.SEARCH_INDEX).mkdir(parents=True)
    with CableStore.open(path) as store:
        store.ingest(raws(*some(3)))
        with pytest.raises(StorageError, match="cannot read, write or remove the search index"):
            store.search("word")
        assert len(store.messages("default").messages) == 3


def test_other_operations_on_a_store_do_not_change_the_index(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with CableStore.open(path) as store:
        store.ingest(raws(*some(5)))
        digest = store.dump_digest()
        store.search("word")
        assert store.dump_digest() == digest
        assert store.check().is_clean
        store.export(tmp_path / "export")
    assert not [file for file in (tmp_path / "export").iterdir() if "search" in file.name]
    before = files(path)
    assert ClosedStore(path).check().is_clean
    assert ClosedStore(path).generations()
    assert files(path) == before


def test_a_large_index_is_built_during_several_searches(store: CableStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_index, "_POSTS_READ", 20)
    monkeypatch.setattr(limits, "SEARCH_CATCH_UP_S", 0.0)
    posts = some(100)
    store.ingest(raws(*posts))
    pages = [store.search("word", limit=1000, catch_up_s=limits.SEARCH_CATCH_UP_S)]
    gone, late = posts[::7], some(10, "word late")
    store.ingest(raws(ANN.delete(*gone), *late))
    while pages[-1].pending:
        assert len(pages) < 100
        pages.append(store.search("word", limit=1000, catch_up_s=0))
    assert len(pages) > 5
    pending = [page.pending for page in pages[1:]]
    assert pending == sorted(pending, reverse=True)
    assert 0 < len(pages[0].hits) < len(pages[-1].hits)
    expected = {post.hash for post in [*posts, *late]} - {post.hash for post in gone}
    assert {hit.message.hash for hit in pages[-1].hits} == expected


def test_the_bytes_of_a_step_of_building_the_index_are_limited(
    store: CableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_index, "_BYTES_READ", 1000)
    posts, read = some(60), list[int]()
    store.ingest(raws(*posts))
    assert store.update_search_index(progress=read.append) == 0
    assert sum(read) == 60
    assert max(read) < 10
    assert holds(store) == {post.hash for post in posts}


def test_all_texts_of_the_same_time_are_found_with_any_step_size(
    store: CableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logs may have whole minutes. Texts use the ids of others, in the same step and in earlier ones."""
    monkeypatch.setattr(search_index, "_POSTS_READ", 30)
    posts = [ANN.text("default", f"word \x00 {i} é", at=START_MS + 60_000 * (i // 25)) for i in range(150)]
    store.ingest(raws(*posts[:100]))
    assert holds(store) == {post.hash for post in posts[:100]}
    store.ingest(raws(*posts[100:]))
    assert holds(store) == {post.hash for post in posts}
    assert [hit.message.hash for hit in store.search("149").hits] == [posts[149].hash]  # text after NUL is found


def test_an_sqlite_without_arrays_is_reported_in_one_line(store: CableStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apsw, "compile_options", ("ENABLE_FTS5",))
    with pytest.raises(StorageError, match=r"lacks `carray`\. Run pip install"):
        store.search("word")


PARTS = "SELECT count(DISTINCT segid) FROM words_idx"


def ask(store: CableStore, query: str) -> list[tuple[Any, ...]]:
    with index_table(store) as table:
        return table._query(query)


def test_an_index_built_in_steps_has_one_part(store: CableStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_index, "_POSTS_READ", 10)
    store.ingest(raws(*some(95)))
    most = 0

    def count_parts(_: int) -> None:
        nonlocal most
        most = max(most, ask(store, PARTS)[0][0])

    assert store.update_search_index(progress=count_parts) == 0
    assert most > 5
    assert ask(store, PARTS) == [(1,)]
    assert ask(store, "SELECT v FROM words_config WHERE k = 'automerge'") == [(4,)]


def test_progress_counts_the_posts_read(store: CableStore) -> None:
    read: list[int] = []
    store.ingest(raws(*some(50)))
    assert store.update_search_index(progress=read.append) == 0
    assert sum(read) == 50
    store.ingest(raws(*some(7)))
    assert store.update_search_index(progress=read.append) == 0
    assert sum(read) == 57


def test_many_threads_search_while_posts_are_stored(store: CableStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_index, "_POSTS_READ", 10)
    posts = some(200)
    failures: list[BaseException] = []
    is_done = threading.Event()

    def search() -> None:
        try:
            least = 0
            while not is_done.is_set():
                found = len(store.search("word", limit=1000).hits)
                assert found >= least
                least = found
        except BaseException as error:  # noqa: BLE001 - reported by the test
            failures.append(error)

    threads = [threading.Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    for at in range(0, len(posts), 10):
        store.ingest(raws(*posts[at : at + 10]))
    is_done.set()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not failures
    assert holds(store) == {post.hash for post in posts}


@pytest.mark.thorough
def test_a_killed_build_of_the_index_continues(tmp_path: Path, rng: random.Random) -> None:
    path = tmp_path / "store"
    posts = [ANN.text("default", f"word {i}", at=START_MS + i) for i in range(600)]
    with CableStore.open(path) as store:
        store.ingest(raws(*posts), verify=False)
    killed = reads = 0
    command = [sys.executable, str(SUPPORT / "search_child.py"), str(path)]
    is_done = False
    while not is_done:
        end = rng.randrange(1, 5)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            for steps, line in enumerate(child.stdout, 1):
                is_done = line == "done\n"
                reads += not is_done
                child.stdin.write("\n")
                child.stdin.flush()
                if steps == end and not is_done:  # in the middle of the next step
                    child.kill()
                    killed += 1
                    break
            status = child.wait(LIMIT_S)
        assert status == (0 if is_done else -signal.SIGKILL)
    assert killed > 1
    assert reads <= 600 // 50 + killed + 1  # it did not restart from the beginning
    with CableStore.open(path) as store:
        assert holds(store) == {post.hash for post in posts}


def test_a_damaged_index_is_rebuilt_later_if_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CableStore.open(tmp_path) as store:
        post = store.post("default", "word")
        assert holds(store) == {post.hash}

        def damaged(_: object) -> None:
            raise search_table.DamagedIndexError("damaged")

        def full(_: object) -> None:
            raise StorageError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(search_table.IndexTable, "state", damaged)
            patch.setattr(search_table.IndexTable, "_open", full)
            with pytest.raises(StorageError, match="disk is full"):
                store.search("word")
        assert holds(store) == {post.hash}
