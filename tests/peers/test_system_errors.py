"""Folders and files without permission, full disks, and invalid arguments: an error instead of a traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from people import ANN, BOB, raws
from store_commands import COMMANDS

from cablestore import CableStore, StoreOptions
from cablestore.cli.commands import load_all
from cablestore.cli.values import FolderValue
from cablestore.errors import IdentityError
from cablestore.index.rebuild import RebuildReport
from cablestore.plurals import counted
from cablestore.store import ClosedStore, Tuning

Run = Callable[..., tuple[int, str, str]]

# --- files without permission -------------------------------------------------------------------------

WITHOUT_PRIVILEGES = """
import ctypes, os, sys
for capability in (1, 2):  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, by which root reads and writes everything
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
os.execv(sys.executable, [sys.executable, "-m", "cablestore", *sys.argv[1:]])
"""


def as_anybody(*arguments: object) -> tuple[int, str, str]:
    """Run a command as a user to whom file modes apply, even if the tests run as root."""
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_PRIVILEGES, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    complaint = [line for line in found.stderr.splitlines() if "is now private" not in line]
    return found.returncode, found.stdout, "".join(f"{line}\n" for line in complaint)


@pytest.fixture
def shared(folder: Path) -> Iterator[Path]:
    """Return a closed store whose permissions the tests change."""
    with CableStore.open(folder) as store:
        store.compact()
    yield folder
    for file in [folder, *folder.rglob("*")]:
        file.chmod(0o755 if file.is_dir() else 0o600)


@pytest.mark.thorough("check", "generations --recover generation-000001", "generations --remove generation-000001")
@pytest.mark.parametrize(
    "command", ["check", "rebuild", "generations --recover generation-000001", "generations --remove generation-000001"]
)
def test_commands_report_a_folder_that_cannot_be_written(shared: Path, command: str) -> None:
    if "remove" in command:
        ClosedStore(shared).rebuild()
        shutil.copytree(shared / "generation-000002", shared / "generation-000001")
    shared.chmod(0o555)
    status, said, complaint = as_anybody(*command.split(), "-s", shared)
    assert (status, said) == (3, ""), complaint
    assert complaint.count("\n") == 1
    assert "Permission denied" in complaint
    shared.chmod(0o755)
    assert ClosedStore(shared).check().is_clean


@pytest.mark.thorough("CURRENT", "MANIFEST-*", "UNNAMED", "../STORE", "../lock", ".")
@pytest.mark.parametrize("pattern", ["*.ldb", "CURRENT", "MANIFEST-*", "UNNAMED", "../STORE", "../lock", "."])
def test_an_unreadable_file_is_not_damage(shared: Path, pattern: str) -> None:
    database = shared / "generation-000001"
    (database / "UNNAMED").write_text("finished\n")
    forbidden = (
        database if pattern == "." else min(database.glob(pattern) if "/" not in pattern else [database / pattern])
    )
    forbidden.chmod(0)
    before = sorted(path.name for path in shared.iterdir())
    for command in ("rebuild", "check"):
        status, said, complaint = as_anybody(command, "-s", shared)
        assert (status, said) == (3, ""), complaint
        assert complaint.count("\n") == 1
        assert "Permission denied" in complaint
        assert "damaged" not in complaint
        assert sorted(path.name for path in shared.iterdir()) == before
    forbidden.chmod(0o755 if forbidden.is_dir() else 0o600)
    assert ClosedStore(shared).check().is_clean


def test_a_rebuild_reports_a_damaged_store_that_cannot_be_copied(shared: Path) -> None:
    database = shared / "generation-000001"
    (database / "CURRENT").unlink()
    min(database.glob("*.ldb")).chmod(0)
    status, _, complaint = as_anybody("rebuild", "-s", shared)
    assert status == 3
    assert "Permission denied" in complaint
    assert complaint.count("\n") == 1


def test_too_many_open_files_are_not_damage(folder: Path) -> None:
    """A table that cannot be opened now can be opened later."""
    with CableStore.open(folder, options=StoreOptions(tuning=Tuning(table_size_bytes=2**20))) as store:
        store.ingest(raws(*(ANN.text("default", f"{i}" + "x" * 3000) for i in range(1000))), verify=False)
        store.compact()
    code = """
import resource, sys
from cablestore import CableStore
from cablestore.errors import CorruptStoreError, StorageError
store = CableStore.open(sys.argv[1])
hold = []
try:
    while True:
        hold.append(open("/dev/null"))
        if len(hold) == 1:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hold[0].fileno() + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
except OSError:
    pass
try:
    list(store.dump())
except StorageError as error:
    print(type(error).__name__, error)
"""
    found = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False)
    assert found.stdout.startswith("StorageError"), found.stdout + found.stderr
    assert "Too many open files" in found.stdout


ALL_COMMANDS = """
import ctypes, os, resource, shutil, signal, sys, traceback
from pathlib import Path
if sys.argv[3] == "full":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))  # as on a full disk, no file grows
if sys.argv[3] == "forbidden" and os.getuid() == 0 and "again" not in sys.argv:
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
    os.execv(sys.executable, [sys.executable, "-c", Path(sys.argv[4]).read_text(), *sys.argv[1:], "again"])
from cablestore.cli import main
os.chdir(sys.argv[2])
for line in Path(sys.argv[5]).read_text().splitlines():
    try:
        main([*line.split(), "-s", sys.argv[1]])
    except SystemExit as exit_:
        status = exit_.code
    except BaseException:
        traceback.print_exc()
        status = "a traceback"
    sys.stdout = sys.__stdout__
    print("status", status, line, flush=True)
"""


@pytest.mark.thorough("forbidden")
@pytest.mark.parametrize("how", ["forbidden", "full"])
def test_every_command_reports_a_disk_that_cannot_be_written(shared: Path, tmp_path: Path, how: str) -> None:
    ClosedStore(shared).export(tmp_path / "EXPORT")
    (tmp_path / "LOG").write_text("")
    (tmp_path / "code").write_text(ALL_COMMANDS)
    commands = [command for command in COMMANDS if not command.startswith("serve")]
    (tmp_path / "commands").write_text("\n".join(commands))
    with CableStore.open(shared) as store:
        before = store.dump_digest()
    if how == "forbidden":
        for file in [shared, *shared.rglob("*")]:
            file.chmod(0o555 if file.is_dir() else 0o400)
    found = subprocess.run(
        [sys.executable, "-c", ALL_COMMANDS, str(shared), str(tmp_path), how, tmp_path / "code", tmp_path / "commands"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in found.stderr, found.stderr
    said = [line.split(" ", 2)[1:] for line in found.stdout.splitlines() if line.startswith("status ")]
    assert [line for _, line in said] == commands
    assert {status for status, _ in said} <= {"0", "2", "3"}, found.stdout
    statuses = {line: status for status, line in said}
    assert statuses["rebuild"] == statuses["post default x"] == "3"
    for file in [shared, *shared.rglob("*")]:
        file.chmod(0o755 if file.is_dir() else 0o600)
    with CableStore.open(shared) as store:
        assert store.dump_digest() == before
        assert store.check().is_clean


@pytest.mark.thorough("command4")
@pytest.mark.parametrize("command", [["dump"], ["log", "default"], ["stats", "--json"], ["--help"], ["channels"]])
def test_commands_report_output_that_cannot_be_written(folder: Path, command: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(
            [sys.executable, "-m", "cablestore", *command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=os.environ | {"CABLESTORE_STORE": str(folder)},
        )
    assert found.returncode == 3
    assert found.stderr == (
        "cablestore: cannot write to standard output: No space left on device. Redirect it to another file\n"
    )


# --- losses of a rebuild ----------------------------------------------------------------------------


def test_a_rebuild_that_lost_posts_reports_how_many_and_ends_with_status_1(run: Run, folder: Path) -> None:
    with CableStore.open(folder) as store:
        store.ingest(raws(*(BOB.text("default", f"{i}" + "x" * 3000) for i in range(300))), verify=False)
        store.compact()
        held = sum(store.stats().posts.values())
    for table in (folder / "generation-000001").glob("*.ldb"):
        with table.open("r+b") as file:  # in the range of the posts, not where their number is written
            at = table.read_bytes().find(b"xxxx" * 100)
            file.seek(max(at, 0))
            file.write(b"\0" * 64 if at >= 0 else b"")
    status, said, _ = run("rebuild", "-s", folder)
    assert status == 1
    with CableStore.open(folder) as store:
        lost = held - sum(store.stats().posts.values())
        assert store.check().is_clean
    assert 0 < lost < held
    assert f"lost {counted(lost, 'post')}" in said
    assert (folder / "damaged-000001").is_dir()
    assert run("rebuild", "-s", folder)[0] == 0


def test_a_rebuild_that_cannot_count_lost_posts_reports_at_least_one(run: Run, folder: Path) -> None:
    with CableStore.open(folder) as store:
        store.compact()
    for table in (folder / "generation-000001").glob("*.ldb"):
        os.truncate(table, table.stat().st_size // 2)
    status, said, _ = run("rebuild", "-s", folder)
    assert status == 1
    assert "the number of lost posts is unknown" in said


def test_posts_with_missing_rows_are_counted_as_lost(folder: Path) -> None:
    from cablestore.index.leveldb import LevelDB

    with CableStore.open(folder) as store:
        digests = [post.hash for post in store.posts_by(ANN.key)][:2]
    database = LevelDB(folder / "generation-000001")
    database.write({b"!data!" + digest.hex().encode(): None for digest in digests}, sync=True)
    database.close()
    report: RebuildReport = ClosedStore(folder).rebuild()
    assert report.lost_posts == 2
    assert not report.has_all_posts
    assert report.kept_aside is not None


# --- local-only posts without a key -----------------------------------------------------------------


def test_no_identity_is_created_for_sealed_posts(run: Run, folder: Path) -> None:
    from cablestore.protocol.body import Block

    with CableStore.open(folder) as store:
        store.write(Block("unwanted", 1, (ANN.key,), 0, 0))
        sealed = len([post for post in store.posts_by(store.identity.public_key) if post.is_local_only])
    assert sealed == 1
    (folder / "identity").rename(folder.with_name("key"))
    for work in (ClosedStore(folder).rebuild, ClosedStore(folder).check):
        with pytest.raises(IdentityError, match="Restore its key file"):
            work()
    for command in ("rebuild", "check"):
        status, _, complaint = run(command, "-s", folder)
        assert (status, complaint.count("\n")) == (2, 1)
    folder.with_name("key").rename(folder / "identity")
    assert ClosedStore(folder).rebuild(processes=2).damaged == {}
    with CableStore.open(folder) as store:
        assert len([post for post in store.posts_by(store.identity.public_key) if post.is_local_only]) == sealed


# --- arguments --------------------------------------------------------------------------------------


def parameters() -> list[tuple[tuple[str, ...], click.Command, click.Parameter]]:
    """Return every parameter of every command."""

    def walk(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
        if isinstance(command, click.Group):
            for name, each in command.commands.items():
                yield from walk(each, (*words, name))
        else:
            yield words, command

    return [
        (words, command, param)
        for words, command in walk(click.Group(commands=load_all()), ())
        for param in command.params
    ]


def command_line(words: tuple[str, ...], command: click.Command, chosen: click.Parameter, value: str) -> list[str]:
    """Return a command line that sets `chosen` to `value`, and the required parameters to valid values."""
    line = list(words)
    if isinstance(chosen, click.Option):
        line += [chosen.opts[-1], value]
    for param in command.params:
        if isinstance(param, click.Argument):
            line.append(value if param is chosen else valid(param))
    return line


def valid(param: click.Argument) -> str:
    if isinstance(param.type, click.Choice):
        return str(param.type.choices[-1])
    return "1.1.1.1:1" if "Address" in str(param.type) else "x" * 4


NUMBERS = [found for found in parameters() if isinstance(found[2].type, click.types.IntParamType)]
TEXTS = [
    found
    for found in parameters()
    if not isinstance(found[2].type, click.Path | click.types.BoolParamType | click.Tuple) and found[2].name != "path"
]


def named(found: tuple[tuple[str, ...], click.Command, click.Parameter]) -> str:
    return " ".join((*found[0], found[2].name or ""))


@pytest.fixture(scope="module")
def unused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store that no command changes, because its arguments are rejected."""
    folder = tmp_path_factory.mktemp("unused") / "store"
    CableStore.open(folder).close()
    return folder


@pytest.mark.parametrize("found", NUMBERS, ids=named)
def test_too_large_numbers_are_bad_input(
    run: Run, unused: Path, found: tuple[tuple[str, ...], click.Command, click.Parameter]
) -> None:
    line = command_line(*found, "9" * 24)
    status, said, complaint = run(*line, *store_option(found, unused))
    assert (status, said) == (2, "")
    assert found[2].opts[-1] in complaint, complaint
    assert "9" * 24 in complaint


@pytest.mark.parametrize("found", TEXTS, ids=named)
def test_arguments_that_are_not_text_are_bad_input(
    run: Run, unused: Path, found: tuple[tuple[str, ...], click.Command, click.Parameter]
) -> None:
    text = "ab\udcff\udcfecd"  # names of folders may hold such bytes, URIs may not
    line = command_line(*found, f"s3://{text}/x" if isinstance(found[2].type, FolderValue) else text)
    status, said, complaint = run(*line, *store_option(found, unused))
    complaint = complaint.encode("ascii", "backslashreplace").decode()  # as printed to the terminal
    assert (status, said) == (2, ""), complaint
    assert "Traceback" not in complaint
    if isinstance(found[2].type, click.types.StringParamType):
        assert "UTF-8" in complaint, complaint


def store_option(found: tuple[tuple[str, ...], click.Command, click.Parameter], folder: Path) -> tuple[object, ...]:
    return ("-s", folder) if any(param.name == "path" for param in found[1].params) else ()


def test_the_largest_numbers_are_accepted(run: Run, folder: Path) -> None:
    assert run("prune", "--keep", str(2**63 - 1), "-s", folder)[0] == 0
    with CableStore.open(folder) as store:
        assert store.prune(keep_newest=10**24) == 0


def test_bytes_on_a_real_command_line_that_are_not_text_are_bad_input(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    words: list[str | bytes] = [
        sys.executable,
        "-m",
        "cablestore",
        "import-irc",
        str(tmp_path / "log"),
        "-s",
        str(folder),
    ]
    found = subprocess.run([*words, "--seed-phrase", b"\xff\xfe"], capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "--seed-phrase" in found.stderr
    assert "Traceback" not in found.stderr
