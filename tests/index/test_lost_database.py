"""A store without header or database: opening it raises an error without changes, and recovery is possible."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from people import ANN, raws
from store_commands import COMMANDS

from cablestore import CableStore
from cablestore.errors import CorruptStoreError, OpenError
from cablestore.index.leveldb import LevelDB
from cablestore.protocol.dialect import DRAFT8
from cablestore.store.closed import ClosedStore, locked_folder

Run = Callable[..., tuple[int, str, str]]
FIRST, NINTH = "generation-000001", "generation-000009"


def names_another(folder: Path) -> None:
    header = folder / "STORE"
    header.write_text(header.read_text().replace(FIRST, NINTH))


def names_an_empty_folder(folder: Path) -> None:
    names_another(folder)
    (folder / NINTH).mkdir()


def names_a_file(folder: Path) -> None:
    names_another(folder)
    (folder / NINTH).write_text("no database")


def names_what_lost_all_files_but_notes(folder: Path) -> None:
    names_another(folder)
    (folder / NINTH).mkdir()
    for name in ("LOCK", "LOG", "000003.log"):
        (folder / NINTH / name).touch()


def names_an_unfinished_one(folder: Path) -> None:
    """Change a store to the state that an interrupted rebuild leaves."""
    names_another(folder)
    (folder / NINTH).mkdir()
    (folder / NINTH / "UNNAMED").write_text("unfinished\n")
    LevelDB(folder / NINTH, create=True).close()


def has_no_header(folder: Path) -> None:
    (folder / "STORE").unlink()


LOSSES = [
    names_another,
    names_an_empty_folder,
    names_a_file,
    names_what_lost_all_files_but_notes,
    names_an_unfinished_one,
    has_no_header,
]


def content_of(folder: Path) -> dict[str, bytes | None]:
    """Return the bytes of every file in a folder, and the names of all folders."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize("lose", LOSSES)
def test_no_command_creates_a_database_in_place_of_a_lost_one(
    run: Run, folder: Path, lose: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "LOG").write_text("")
    ClosedStore(folder).export(tmp_path / "EXPORT")
    lose(folder)
    before = content_of(folder)
    for command in COMMANDS:
        status, said, complaint = run(*command.split(), "-s", folder)
        assert (status, said) == (3, ""), (command, status, said, complaint)
        assert FIRST in complaint, (command, complaint)
        assert "--recover" in complaint, (command, complaint)
        assert content_of(folder) == before, command


def test_reindexing_rejects_a_store_with_a_lost_database(run: Run, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    ClosedStore(folder).export(tmp_path / "export")
    for lose in (names_another, has_no_header):
        lose(folder)
        before = content_of(folder)
        status, _, complaint = run("reindex", tmp_path / "export", "--out", folder)
        assert status == 3
        assert FIRST in complaint
        assert content_of(folder) == before
    assert run("reindex", "--verify", folder)[0] == 3


def test_every_function_rejects_a_store_with_a_lost_database(folder: Path) -> None:
    names_another(folder)

    closed = ClosedStore(folder)
    for attempt in (partial(CableStore.open, folder), closed.rebuild, closed.check, closed.generations):
        with pytest.raises(CorruptStoreError, match=rf"names {NINTH}, .*is missing.*{FIRST} \([\d,]+ bytes\)"):
            attempt()
    with pytest.raises(CorruptStoreError, match=rf"names {NINTH}, .*is missing"):
        ClosedStore(folder).export(folder.with_name("out"))


def test_a_store_without_any_generation_raises_an_error_with_the_reason(run: Run, folder: Path) -> None:
    shutil.rmtree(folder / FIRST)
    status, _, complaint = run("channels", "-s", folder)
    assert status == 3
    assert "No other generation found" in complaint
    assert "backup" in complaint
    key = (folder / "identity").read_text()
    (folder / "STORE").unlink()
    assert run("init", "-s", folder)[0] == 0
    assert (folder / "identity").read_text() == key


def test_a_database_without_rows_is_not_treated_as_new(run: Run, folder: Path) -> None:
    """A folder in which version 0.6 was killed while it created the store is not a new one either."""
    shutil.rmtree(folder / FIRST)
    LevelDB(folder / FIRST, create=True).close()
    status, _, complaint = run("init", "-s", folder)
    assert status == 3
    assert "cablestore rebuild" in complaint
    status, said, _ = run("rebuild", "-s", folder)
    assert status == 1
    assert "the number of lost posts is unknown: at least " in said
    assert run("post", "default", "x", "-s", folder)[0] == 0
    assert run("rebuild", "-s", folder)[0] == 0


@pytest.mark.parametrize("create", [True, False])
def test_a_folder_of_generations_without_a_header_is_not_a_new_store(folder: Path, create: bool) -> None:
    (folder / "STORE").unlink()
    for name in ("lock", "identity"):
        (folder / name).unlink()
    before = content_of(folder)
    with pytest.raises(CorruptStoreError, match="STORE is missing"):
        CableStore.open(folder, create=create)
    assert content_of(folder) == before


# --- recovery -------------------------------------------------------------------------------------


def garbage(folder: Path) -> None:
    (folder / "STORE").write_bytes(b"\x00\xffnothing")


def emptied(folder: Path) -> None:
    (folder / "STORE").write_bytes(b"")


@pytest.mark.parametrize("lose", [*LOSSES, garbage, emptied])
def test_a_lost_header_is_recreated(run: Run, folder: Path, lose: Callable[[Path], None]) -> None:
    with CableStore.open(folder) as store:
        before, posts = store.dump_digest(), sum(store.stats().posts.values())
    lose(folder)
    status, said, complaint = run("generations", "--recover", FIRST, "-s", folder)
    assert status == 0, complaint
    assert f"recovered {posts} posts" in said
    with CableStore.open(folder) as store:
        assert store.dump_digest() == before
        assert store.check().is_clean


def test_a_recovered_header_has_the_dialect_of_the_database(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with CableStore.open(folder, dialect=DRAFT8) as store:
        store.post("default", "x")
    (folder / "STORE").unlink()
    assert run("generations", "--recover", FIRST, "-s", folder)[0] == 0
    with CableStore.open(folder) as store:
        assert store.dialect is DRAFT8


def test_a_recovered_store_has_a_new_id(folder: Path) -> None:
    """The recovered store may have another arrival log than the one to which exports of the lost database refer."""
    known = json.loads((folder / "STORE").read_text())["store"]
    names_another(folder)
    ClosedStore(folder).recover(FIRST)
    assert json.loads((folder / "STORE").read_text())["store"] != known


def test_unfinished_and_unknown_generations_are_not_recovered(run: Run, folder: Path) -> None:
    names_an_unfinished_one(folder)
    before = content_of(folder)
    for name, reason in (
        (NINTH, "unfinished"),
        ("generation-000005", "not found"),
        ("../elsewhere", "not found"),
        ("", "not found"),
        ("lock", "not found"),
    ):
        status, _, complaint = run("generations", "--recover", name, "-s", folder)
        assert status == 2
        assert reason in complaint
    assert content_of(folder) == before
    assert run("generations", "--recover", FIRST, "-s", folder.with_name("nothing"))[0] == 2
    assert not folder.with_name("nothing").exists()


def test_the_readable_part_of_a_damaged_generation_is_recovered(run: Run, folder: Path) -> None:
    (folder / "STORE").unlink()
    (folder / FIRST / "CURRENT").unlink()
    status, said, complaint = run("generations", "--recover", FIRST, "-s", folder)
    assert status == 2
    assert "--dialect" in complaint
    assert not (folder / "STORE").exists()
    status, said, complaint = run("generations", "--recover", FIRST, "--dialect", "legacy", "-s", folder)
    assert status == 1, complaint
    assert "cablestore rebuild" in said
    run("rebuild", "-s", folder)
    with CableStore.open(folder) as store:
        assert [message.text for message in store.messages("other").messages] == ["mine too"]
        assert store.check().is_clean


# --- removed files --------------------------------------------------------------------------------


def other_store(path: Path) -> Path:
    """Return a database that was copied into the folder by hand."""
    with CableStore.open(path.with_name("other")) as store:
        store.ingest(raws(ANN.text("default", "only here")))
    shutil.copytree(path.with_name("other") / FIRST, path / NINTH)
    return path / NINTH


def test_unnamed_generations_are_removed_only_if_requested_by_name(run: Run, folder: Path) -> None:
    kept = other_store(folder)
    before = content_of(kept)
    (folder / "generation-000012").mkdir()
    for _ in range(2):
        assert run("rebuild", "-s", folder)[0] == 0
        assert content_of(kept) == before
        assert ClosedStore(folder).check().is_clean
    found = {each.name: each.state for each in ClosedStore(folder).generations()}
    assert found == {NINTH: "unnamed", "generation-000012": "unnamed", "generation-000014": "live"}
    status, said, _ = run("generations", "-s", folder)
    assert status == 0
    assert "unnamed" in said
    assert run("generations", "--remove", "kept", "-s", folder)[0] == 0
    assert content_of(kept) == before
    assert run("generations", "--back-to", NINTH, "-s", folder)[0] == 2
    status, said, _ = run("generations", "--recover", NINTH, "-s", folder)
    assert (status, "recovered 1 post" in said) == (0, True)
    assert run("generations", "--remove", "generation-000014", "-s", folder)[0] == 0
    assert not (folder / "generation-000014").exists()


def test_numbers_of_damaged_databases_are_not_reused(folder: Path) -> None:
    (folder / "damaged-000041").mkdir()
    ClosedStore(folder).rebuild()
    assert [each.name for each in ClosedStore(folder).generations()] == ["generation-000042"]


def test_a_missing_kept_generation_is_listed_as_missing(folder: Path) -> None:
    """A backup of the header and of its generation is valid."""
    header = json.loads((folder / "STORE").read_text())
    (folder / "STORE").write_text(json.dumps(header | {"generation": "generation-000002", "kept": [FIRST]}))
    (folder / FIRST).rename(folder / "generation-000002")
    assert {each.name: each.state for each in ClosedStore(folder).generations()} == {
        FIRST: "missing",
        "generation-000002": "live",
    }


@pytest.mark.parametrize(
    "text",
    ['{"format": 1e999}', "[" * 100_000]
    + [
        json.dumps({"format": 1, "dialect": "legacy", "generation": name})
        for name in ("generation-²", "000001", "generation-" + "9" * 5000)
    ],
)
def test_a_hostile_header_is_rejected_with_advice(run: Run, folder: Path, text: str) -> None:
    (folder / "STORE").write_text(text)
    with pytest.raises(OpenError, match=rf"--recover.*{FIRST}|{FIRST}.*--recover"):
        CableStore.open(folder)
    assert run("sds", "status", "-s", folder)[0] == 2


# --- kill -9 ----------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from cablestore import CableStore
from cablestore.index import leveldb
from cablestore.store.closed import ClosedStore

path, work = Path(sys.argv[1]), sys.argv[2]
steps = last = 0

def step():
    global steps
    steps += 1
    if steps > last:
        os.kill(os.getpid(), signal.SIGKILL)

def counted(function):
    def wrapped(*args, **options):
        step()
        return function(*args, **options)
    return wrapped

for owner, names in ((Path, ("mkdir", "replace", "rename", "unlink", "touch", "write_text")), (os, ("fsync", "rmdir", "unlink", "mkdir", "open")),
                     (leveldb.LevelDB, ("__init__", "write", "close", "flush"))):
    for name in names:
        setattr(owner, name, counted(getattr(owner, name)))
works = {
    "init": lambda: CableStore.open(path).close(),
    "rebuild": lambda: ClosedStore(path).rebuild(),
    "remove": lambda: ClosedStore(path).remove("kept"),
}
while sys.stdin.readline():
    if not (child := os.fork()):
        works[work]()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    last += 1
"""


def killed_at_each_step(path: Path, work: str) -> Iterator[int]:
    """Run `work` in new copies of a folder, killed before its first step, its second one, and so on, until it ends.

    Yields the number of finished steps.
    """
    original = path.rename(path.with_name("original")) if path.exists() else None
    command = [sys.executable, "-c", KILLED, str(path), work]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for steps in count():
            if original:
                shutil.copytree(original, path)
            process.stdin.write("\n")
            process.stdin.flush()
            status = int(process.stdout.readline())
            yield steps
            shutil.rmtree(path, ignore_errors=True)
            if status == 0:
                break
            assert status == -signal.SIGKILL
        process.stdin.close()


@pytest.mark.thorough
def test_a_store_can_be_created_after_a_kill_at_any_step_of_its_creation(tmp_path: Path) -> None:
    path = tmp_path / "made"
    for step in killed_at_each_step(path, "init"):
        with CableStore.open(path) as store:
            store.post("default", "x")
            assert store.check().is_clean
        assert len(list(path.glob("generation-*"))) == 1, step
        assert not list(path.glob("scratch-*"))
    assert step > 10


@pytest.mark.thorough
def test_a_rebuild_that_is_killed_at_any_step_leaves_one_database(folder: Path) -> None:
    with CableStore.open(folder) as store:
        before = store.dump_digest()
    for step in killed_at_each_step(folder, "rebuild"):
        with CableStore.open(folder) as store:
            assert store.dump_digest() == before
        assert len(list(folder.glob("generation-*"))) == 1, step
        assert not list(folder.glob("scratch-*"))
    assert step > 20


@pytest.mark.thorough
def test_a_removal_that_is_killed_at_any_step_leaves_a_complete_database_or_none(folder: Path) -> None:
    with locked_folder(folder) as opened:
        name = opened.begin()
        shutil.copytree(folder / FIRST, folder / name, dirs_exist_ok=True)
        opened.activate(name, keep=True)
    files = {file.name for file in (folder / FIRST).iterdir()}
    for step in killed_at_each_step(folder, "remove"):
        CableStore.open(folder).close()
        assert not (folder / FIRST).exists() or {file.name for file in (folder / FIRST).iterdir()} == files, step
    assert step > 3


@pytest.mark.parametrize("steps", ["begun", "adopted", "activated"])
def test_the_next_start_removes_the_generation_that_is_not_live(folder: Path, steps: str) -> None:
    """The process is killed after it began a generation, moved one into the folder, or made another one live."""
    with locked_folder(folder) as opened:
        if steps == "adopted":
            shutil.copytree(folder / FIRST, folder.with_name("made"))
            name = opened.adopt(folder.with_name("made"))
        else:
            name = opened.begin()
        if steps == "activated":
            shutil.copytree(folder / FIRST, folder / name, dirs_exist_ok=True)
            opened.activate(name)
    assert (folder / name).is_dir()
    CableStore.open(folder).close()
    assert [path.name for path in folder.glob("generation-*")] == [name if steps == "activated" else FIRST]


def test_recovery_of_a_lost_header_keeps_both_databases(folder: Path) -> None:
    """The process is killed when the header names the new database and the old one still exists.

    Then the header is lost.
    """
    with locked_folder(folder) as opened:
        name = opened.begin()
        shutil.copytree(folder / FIRST, folder / name, dirs_exist_ok=True)
        opened.activate(name)
    (folder / "STORE").unlink()
    ClosedStore(folder).recover(FIRST)
    for _ in range(2):
        assert ClosedStore(folder).check().is_clean
        assert {each.name for each in ClosedStore(folder).generations()} == {FIRST, name}
