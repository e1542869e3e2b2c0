"""Damage of the index file: results are correct, or the index is rebuilt and then correct."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
from folders import SUPPORT
from people import ANN, BOB, START_MS, raws
from waiting import LIMIT_S

from cablestore import CableStore
from cablestore.errors import StorageError
from cablestore.index.folder import SEARCH_FILES, SEARCH_INDEX, SEARCH_SUMS
from cablestore.search import page_sums, table

TEXTS = 300
LOG = f"{SEARCH_INDEX}-wal"
WORDS = [f"word{i}" for i in range(100)]
Counts = dict[str, int]


def texts(number: int, rng: random.Random, start: int = 0) -> list[bytes]:
    people = (ANN, BOB)
    return raws(
        *(
            people[i % 2].text(f"channel-{i % 5}", " ".join(rng.choices(WORDS, k=6)), at=START_MS + 1000 * i)
            for i in range(start, start + number)
        )
    )


def counts(store: CableStore) -> Counts:
    """Return the number of messages with each word, according to searches."""
    found = {}
    for word in WORDS[::10]:
        found[word], cursor = 0, None
        while True:
            page = store.search(word, limit=1000, cursor=cursor, catch_up_s=LIMIT_S)
            assert page.pending == 0
            found[word] += len(page.hits)
            cursor = page.cursor
            if cursor is None:
                break
    return found


def counted(posts: list[bytes]) -> Counts:
    """Return the same numbers without an index."""
    return {word: sum(word.encode() in post.split() for post in spaced(posts)) for word in WORDS[::10]}


def spaced(posts: list[bytes]) -> Iterator[bytes]:
    """Yield the texts of posts. The other bytes of a post are not words."""
    for post in posts:
        at = post.find(b"word")
        yield post[at:]


class Template:
    """Store, copies of its index from three times, and the expected search results."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.path = path / "store"
        posts = texts(TEXTS, rng)
        with CableStore.open(self.path) as store:
            store.ingest(posts[: TEXTS // 2], verify=False)
            store.update_search_index()
        self.older = copied(self.path, path / "older")
        with CableStore.open(self.path) as store:
            store.ingest(posts[TEXTS // 2 : -100], verify=False)
            store.update_search_index()
        self.closed = copied(self.path, path / "closed")
        with CableStore.open(self.path) as store:
            for at in range(TEXTS - 100, TEXTS, 20):
                store.ingest(posts[at : at + 20], verify=False)
                store.search("nothing")
            self.killed = copied(self.path, path / "killed")  # as left by a killed process, with a log
            assert (self.killed / LOG).stat().st_size
            self.expected = counts(store)
        with CableStore.open(path / "other") as store:
            store.ingest(texts(300, rng), verify=False)
            store.update_search_index()
        self.other = copied(path / "other", path / "index of another")
        assert self.expected == counted(posts)


def copied(store: Path, folder: Path) -> Path:
    """Copy the files of the index to a separate folder."""
    folder.mkdir()
    put(store, folder)
    return folder


def put(source: Path, target: Path, *names: str) -> None:
    """Replace files of an index by those of another one."""
    for name in names or SEARCH_FILES:
        (target / name).unlink(missing_ok=True)
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return Template(tmp_path_factory.mktemp("index"), random.Random(1))


# --- kinds of damage ------------------------------------------------------------------------------


def held(folder: Path) -> list[str]:
    """Return the names of the non-empty files."""
    return [name for name in SEARCH_FILES if (folder / name).exists() and (folder / name).stat().st_size]


def flip(folder: Path, _: Template, rng: random.Random) -> None:
    """Change a few bits, anywhere in any of the files."""
    file = folder / rng.choice(held(folder))
    data = bytearray(file.read_bytes())
    for _bit in range(rng.choice((1, 1, 5))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


def zero(folder: Path, _: Template, rng: random.Random) -> None:
    """Zero a page, or the part of one that a disk writes in one step."""
    file, size = folder / rng.choice((SEARCH_INDEX, LOG)), rng.choice((512, 4096))
    data = bytearray(file.read_bytes())
    at = rng.randrange(max(1, len(data) // size)) * size
    data[at : at + size] = bytes(len(data[at : at + size]))
    file.write_bytes(data)


def swap_pages(folder: Path, _: Template, rng: random.Random) -> None:
    data = (folder / SEARCH_INDEX).read_bytes()
    pages = [data[at : at + 4096] for at in range(0, len(data), 4096)]
    one, other = rng.sample(range(len(pages)), 2)
    pages[one], pages[other] = pages[other], pages[one]
    (folder / SEARCH_INDEX).write_bytes(b"".join(pages))


def put_older_page(folder: Path, template: Template, rng: random.Random) -> None:
    """Undo a write, as if the disk had lost it."""
    older, data = (template.older / SEARCH_INDEX).read_bytes(), bytearray((folder / SEARCH_INDEX).read_bytes())
    at = rng.randrange(len(older) // 4096) * 4096
    data[at : at + 4096] = older[at : at + 4096]
    (folder / SEARCH_INDEX).write_bytes(data)


def cut(folder: Path, _: Template, rng: random.Random) -> None:
    file = folder / rng.choice(held(folder))
    size_bytes = rng.randrange(file.stat().st_size)
    with file.open("r+b") as opened:
        opened.truncate(size_bytes if rng.randrange(2) else size_bytes // 4096 * 4096)


def lose(folder: Path, _: Template, rng: random.Random) -> None:
    """Remove some of the files."""
    names = held(folder)
    for name in rng.sample(names, rng.randrange(1, len(names) + 1)):
        (folder / name).unlink()


def mix(folder: Path, template: Template, rng: random.Random) -> None:
    """Replace some of the files by those of an older copy, or of another store."""
    source = rng.choice((template.older, template.closed, template.other))
    put(source, folder, *rng.sample(SEARCH_FILES, rng.randrange(1, len(SEARCH_FILES) + 1)))


def delete_rows(folder: Path, _: Template, rng: random.Random) -> None:
    """Remove texts with another program, which leaves a file without faults."""
    connection = apsw.Connection(str(folder / SEARCH_INDEX))
    table = rng.choice(("docs", "words_data", "words_docsize"))
    connection.execute(f"DELETE FROM {table} WHERE id % 7 = 3")
    connection.close()


KINDS = (flip, zero, swap_pages, put_older_page, cut, lose, mix, delete_rows)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("damage", KINDS)
def test_results_are_complete_after_any_damage(
    template: Template, tmp_path: Path, rng: random.Random, damage: Callable[..., None], is_killed: bool
) -> None:
    shutil.copytree(template.path, tmp_path / "store", ignore=shutil.ignore_patterns("search.sqlite*"))
    for _ in range(3):
        put(template.killed if is_killed else template.closed, tmp_path / "store")
        if not is_killed:
            (tmp_path / "store" / LOG).write_bytes(bytes(5000))  # another program may leave one
        damage(tmp_path / "store", template, rng)
        with CableStore.open(tmp_path / "store") as store:
            assert counts(store) == template.expected
        with CableStore.open(tmp_path / "store", read_only=True) as store:  # the rebuilt index is complete
            assert counts(store) == template.expected


@pytest.mark.parametrize("damage", [flip, zero, swap_pages, cut])
def test_results_are_complete_after_damage_while_the_store_is_open(
    template: Template, tmp_path: Path, rng: random.Random, damage: Callable[..., None]
) -> None:
    path = shutil.copytree(template.path, tmp_path / "store")
    with CableStore.open(path) as store:
        assert counts(store) == template.expected
        (path / LOG).unlink(missing_ok=True)
        for name in set(SEARCH_FILES) - {SEARCH_INDEX}:
            (path / name).unlink(missing_ok=True)
        (path / LOG).touch()
        damage_main(path, template, rng, damage)
        assert counts(store) == template.expected
    with CableStore.open(path) as store:
        assert counts(store) == template.expected


def damage_main(path: Path, template: Template, rng: random.Random, damage: Callable[..., None]) -> None:
    before = (path / SEARCH_INDEX).read_bytes()
    while (path / SEARCH_INDEX).read_bytes() == before:
        damage(path, template, rng)
        (path / LOG).touch()


def test_a_read_only_store_does_not_use_a_damaged_index(template: Template, tmp_path: Path, rng: random.Random) -> None:
    path = shutil.copytree(template.path, tmp_path / "store")
    whole = (path / SEARCH_INDEX).read_bytes()
    for _ in range(10):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        (path / SEARCH_INDEX).write_bytes(data)
        with CableStore.open(path, read_only=True) as store, pytest.raises(StorageError, match="is damaged"):
            store.search("word0")
    for source, reason in ((template.older, "lacks about"), (template.other, "belongs to another database")):
        put(source, path)
        with CableStore.open(path, read_only=True) as store, pytest.raises(StorageError, match=reason):
            store.search("word0")


def test_posts_indexed_by_a_killed_process_are_not_read_again(template: Template, tmp_path: Path) -> None:
    path = shutil.copytree(template.path, tmp_path / "store")
    put(template.killed, path)
    with CableStore.open(path) as store:
        read: list[int] = []
        assert store.update_search_index(progress=read.append) == 0
        assert sum(read) == 0
        assert counts(store) == template.expected


@pytest.mark.thorough
def test_a_kill_during_a_checkpoint_is_resumed_or_detected(tmp_path: Path, rng: random.Random) -> None:
    """Each step ends with a checkpoint. If a process is killed in one, the state can be resumed or is detected."""
    path = tmp_path / "store"
    posts = texts(800, rng)
    with CableStore.open(path) as store:
        store.ingest(posts, verify=False)
    command = [sys.executable, str(SUPPORT / "search_child.py"), str(path), "checkpoints"]
    killed = 0
    while True:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            steps = rng.randrange(2, 6)  # of 16, so that there are several kills
            for step, line in enumerate(child.stdout):
                if line == "done\n":
                    break
                child.stdin.write("\n")
                child.stdin.flush()
                if step == steps:
                    child.send_signal(signal.SIGKILL)
                    killed += 1
                    break
            status = child.wait(LIMIT_S)
        if status == 0:
            break
    assert killed > 1
    with CableStore.open(path) as store:
        assert counts(store) == counted(posts)


@pytest.mark.parametrize("stop_at", [1, 2, 3, 4])
def test_an_interrupted_checkpoint_leaves_complete_results(
    template: Template, tmp_path: Path, stop_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are copied in the middle of a checkpoint, and the log is then kept, lost or damaged."""
    path, between = shutil.copytree(template.path, tmp_path / "store"), tmp_path / "between"
    put(template.killed, path)
    between.mkdir()
    files_written = 0

    class Stopping(page_sums.PageSums):
        def _write(self, *arguments: int, sync: bool = True) -> None:
            nonlocal files_written
            super()._write(*arguments, sync=sync)
            files_written += 1
            if files_written == stop_at:
                put(path, between)

    monkeypatch.setattr(table, "PageSums", Stopping)
    with CableStore.open(path) as store:
        assert counts(store) == template.expected
        store.ingest(texts(200, random.Random(2), start=TEXTS), verify=False)
        expected = counts(store)
    monkeypatch.undo()
    assert (between / SEARCH_SUMS).exists()
    for log in ("kept", "lost", "damaged"):
        put(between, path)
        data = bytearray((path / LOG).read_bytes()) if (path / LOG).exists() else bytearray()
        if log == "lost":
            (path / LOG).unlink(missing_ok=True)
        elif log == "damaged" and data:
            data[len(data) // 2] ^= 1
            (path / LOG).write_bytes(data)
        with CableStore.open(path) as store:
            assert counts(store) == expected
