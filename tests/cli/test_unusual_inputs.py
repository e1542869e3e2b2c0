"""Unusual users, folders, locales and text files: commands work, or print one line and exit with status 2."""

from __future__ import annotations

import codecs
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from cablestore import CableStore
from cablestore.peers.invitation import Invitation
from cablestore.store.key_file import load_identity

Run = Callable[..., tuple[int, str, str]]

KEY: Final = "ab" * 32
ENVIRONMENT: Final = {name: value for name, value in os.environ.items() if not name.startswith(("CABLESTORE_", "XDG_"))}
ENCODINGS: Final = {
    "UTF-8": lambda text: text.encode(),
    "a mark": lambda text: codecs.BOM_UTF8 + text.encode(),
    "UTF-16": lambda text: text.encode("utf-16"),
    "big-endian UTF-16": lambda text: codecs.BOM_UTF16_BE + text.encode("utf-16-be"),
    "CRLF and a mark": lambda text: codecs.BOM_UTF8 + text.replace("\n", "\r\n").encode(),
}
"""Encodings of text by editors and shells of other systems."""

written = pytest.mark.parametrize("encoding", ENCODINGS)


@pytest.fixture
def run_here(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a command in this process, with the test's folder as the current one."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ.keys() - ENVIRONMENT.keys():
        monkeypatch.delenv(name)
    return run


def ended(folder: Path, *arguments: str | bytes, **more: str) -> tuple[int, str, str]:
    """Run a command in a separate process. Returns its status, output and errors."""
    found = subprocess.run(
        [sys.executable, "-m", "cablestore", *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=ENVIRONMENT | more,
        check=False,
    )
    return found.returncode, found.stdout.decode(), found.stderr.decode()


def require_one_line(found: tuple[int, str, str], words: str) -> None:
    status, out, errors = found
    assert (status, out, len(errors.splitlines())) == (2, "", 1), errors
    assert words in errors


# --- text files that users edit -------------------------------------------------------------------


@written
def test_a_settings_file_is_read_in_any_encoding(tmp_path: Path, run_here: Run, encoding: str) -> None:
    (tmp_path / "serve.toml").write_bytes(ENCODINGS[encoding]('[serve]\nlisten = ["nonsense"]\n'))
    _, _, errors = run_here("serve", "--config", "serve.toml", "-s", "store")
    assert "nonsense" in errors or "no store found" in errors


@written
def test_an_invitation_is_read_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "invitation"
    path.write_bytes(ENCODINGS[encoding](f"cable:{KEY}?peer=a.example:1\n"))
    path.chmod(0o600)
    assert Invitation.read(path).cabal_key == bytes.fromhex(KEY)


@written
@pytest.mark.parametrize("where", ["file", "folder of the store"])
def test_an_identity_is_read_in_any_encoding(tmp_path: Path, encoding: str, where: str) -> None:
    path = tmp_path / "key"
    path.write_bytes(ENCODINGS[encoding](f"{KEY}\n"))
    path.chmod(0o600)
    identity = load_identity(path)
    assert identity.seed.hex() == KEY
    CableStore.open(tmp_path / "store").close()
    path.rename(tmp_path / "store" / "identity")
    if where != "file":
        with CableStore.open(tmp_path / "store") as store:
            assert store.identity == identity


@written
@pytest.mark.parametrize(
    "command",
    [
        ["invite", "--peer", "a.example:1", "--cabal-key", "@key", "-s", "store"],
        ["sync", "127.0.0.1:1", "--cabal-key", "@key", "-s", "store"],
    ],
    ids=["invite", "sync"],
)
def test_a_cabal_key_is_read_in_any_encoding(tmp_path: Path, run_here: Run, encoding: str, command: list[str]) -> None:
    CableStore.open(tmp_path / "store").close()
    (tmp_path / "key").write_bytes(ENCODINGS[encoding](f"{KEY}\n"))
    _, out, errors = run_here(*command)
    assert KEY in out or "cannot connect" in errors or "refused" in errors


@written
def test_a_moderation_seed_is_read_in_any_encoding(tmp_path: Path, run_here: Run, encoding: str) -> None:
    with CableStore.open(tmp_path / "store") as store:
        seed = store.identity.public_key
    _, out, errors = run_here("invite", "--new-key", "--admin", seed.hex(), "-s", "store", "--json")
    digits = out.partition("seed=")[2].partition('"')[0]
    assert digits, errors
    (tmp_path / "seed").write_bytes(ENCODINGS[encoding](f"{digits}\n"))
    assert run_here("moderation", "--seed", "@seed", "-s", "store")[0] == 0


@written
def test_a_text_on_standard_input_is_read_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    if "UTF-16" in encoding:
        pytest.skip("Python decodes standard input, with the encoding of the locale")
    CableStore.open(tmp_path / "store").close()
    command = [sys.executable, "-m", "cablestore", "post", "default", "-s", "store"]
    subprocess.run(command, cwd=tmp_path, input=ENCODINGS[encoding]("one\ntwo\n"), env=ENVIRONMENT, check=True)
    with CableStore.open(tmp_path / "store") as store:
        assert [message.text for message in store.messages("default").messages] == ["one\ntwo"]


# --- users and folders ----------------------------------------------------------------------------

NOBODY: Final = "54321"


NAMELESS: Final = f"""
import contextlib, io, json, os, sys
import cablestore.cli, cablestore.cli.commands
cablestore.cli.commands.load_all()
"x".encode("idna")
os.environ.pop("HOME", None)
if os.geteuid() == 0:
    os.setuid({NOBODY})
found = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            cablestore.cli.main(arguments)
        except SystemExit as end:
            found.append([end.code, out.getvalue(), errors.getvalue()])
print(json.dumps(found))
"""
"""Program that runs commands in one process, because the user cannot read the modules."""


def test_a_user_without_name_and_home_can_run_commands(tmp_path: Path) -> None:
    """Containers run such users. Only commands that need the default store report that it is missing."""
    (tmp_path / "store").mkdir()
    if os.geteuid() == 0:
        os.chown(tmp_path / "store", int(NOBODY), int(NOBODY))
        for above in (tmp_path, *tmp_path.parents[:2]):
            above.chmod(0o755)
    commands = [
        ["--version"],
        ["invite", "--new-key", "--peer", "a.example:1", "--admin", KEY],
        ["invite", "--peer", "127.0.0.1:1"],
        ["invite", "--new-key", "--peer", "127.0.0.1:1", "--store", "~/store"],
        ["log", "default"],
        ["init"],
        ["serve", "--listen", "127.0.0.1:0"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", NAMELESS, json.dumps(commands)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"]},
        check=True,
    )
    version, (status, out, errors), *others = json.loads(done.stdout)
    assert version[0] == 0
    assert (status, Invitation.parse(out).seed) == (0, bytes.fromhex(f"02{KEY}")), errors
    for found in others:
        require_one_line(tuple(found), "set HOME")
    assert not (tmp_path / "~").exists()


def test_a_current_folder_with_a_name_that_is_not_utf_8_is_rejected_or_unused(
    tmp_path: Path, run_here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    require_one_line(ended(folder, "init", "-s", "store"), "UTF-8")
    assert not list(folder.iterdir())
    monkeypatch.chdir(folder)
    assert run_here("init", "-s", f"{tmp_path}/store")[0] == 0
    assert run_here("export", "-s", f"{tmp_path}/store", "exported")[0] == 0
    assert run_here("verify-export", "exported")[0] == 0
    assert run_here("keygen", "key")[0] == 0


def test_relative_paths_are_rejected_if_the_current_folder_was_removed(
    tmp_path: Path, run_here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative paths cannot be used, but absolute ones can."""
    CableStore.open(tmp_path / "store").close()
    line = 'mkdir gone; cd gone; rmdir ../gone; exec "$0" -m cablestore "$@"'
    command = ["sh", "-c", line, sys.executable, "log", "default", "-s", f"{tmp_path}/store"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for arguments in (
        ["init", "-s", "new"],
        ["keygen", "key"],
        ["export", "out", "-s", f"{tmp_path}/store"],
        ["archive", "list", "archives", "--control", KEY],
    ):
        require_one_line(run_here(*arguments), "current folder")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("", "empty"),
        (".", "it is a folder"),
        ("/", "it is a folder"),
        ("..", "it is a folder"),
        ("folder", "it is a folder"),
        ("folder/", "it is a folder"),
        ("file", "already exists"),
        ("file/key", "a file, not a folder"),
        ("dangling", "a link to missing"),
        ("missing/key", "No such file or directory"),
        ("k" * 256, "too long"),
        ("s3://bucket/key", "not on this machine"),
        ("s3:/bucket/key", "neither a path nor a URI"),
        ("~/key", "only a shell"),
    ],
)
@pytest.mark.parametrize("command", [["keygen"], ["identity", "-s", "store", "--export"]], ids=["keygen", "identity"])
def test_an_invalid_target_of_a_key_is_rejected(
    tmp_path: Path, run_here: Run, command: list[str], target: str, words: str
) -> None:
    CableStore.open(tmp_path / "store").close()
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("missing")
    status, _, errors = run_here(*command, target)
    assert status in {2, 3}
    assert words in errors
    assert len(errors.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "file", "folder", "store"]
    assert not list((tmp_path / "folder").iterdir())


@pytest.mark.parametrize(
    "command",
    [
        ["export", "PLACE", "-s", "store"],
        ["verify-export", "PLACE"],
        ["import", "PLACE", "-s", "store"],
        ["backup", "PLACE", "-s", "store"],
        ["restore", "PLACE", "-s", "new"],
        ["restore", "made", "-s", "PLACE"],
        ["init", "-s", "PLACE"],
        ["import-irc", "PLACE", "-s", "store"],
        ["tables", "PLACE", "--out", "new"],
        ["tables", "made", "--out", "PLACE"],
        ["reindex", "PLACE", "--out", "new"],
        ["reindex", "made", "--out", "PLACE"],
        ["reindex", "made", "--out", "new", "--work", "PLACE"],
        ["archive", "create", "PLACE", "-s", "store"],
        ["archive", "publish", "PLACE", "-s", "store"],
        ["archive", "content", "PLACE"],
        ["archive", "make", "new", "PLACE"],
        ["serve", "-s", "store", "--config", "PLACE"],
        ["sync", "127.0.0.1:1", "-s", "store", "--invitation", "PLACE"],
        ["demo", "--logs", "PLACE"],
        ["demo", "--keep", "PLACE"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("place", ["s3:/bucket/export", "s3://bucket//export", "dangling", ""])
def test_every_invalid_location_is_rejected_in_one_line(
    tmp_path: Path, run_here: Run, command: list[str], place: str
) -> None:
    (tmp_path / "dangling").symlink_to("missing")
    require_one_line(run_here(*(place if word == "PLACE" else word for word in command)), "cablestore: ")
    assert [path.name for path in tmp_path.iterdir()] == ["dangling"]


# --- arguments and locales ------------------------------------------------------------------------


@pytest.mark.parametrize("variables", [{"LANG": "C"}, {"LC_ALL": "xx_YY.UTF-8"}])
def test_commands_work_with_a_missing_locale(tmp_path: Path, variables: dict[str, str]) -> None:
    CableStore.open(tmp_path / "store").close()
    assert ended(tmp_path, "post", "default", "ü \N{BALLOT X}", "-s", "store", **variables)[0] == 0
    status, out, errors = ended(tmp_path, "log", "default", "-s", "store", "--json", **variables)
    assert (status, errors) == (0, "")
    assert "2717" in out or "\N{BALLOT X}" in out


@pytest.mark.parametrize(
    "arguments",
    [
        [b"\xff"],
        [b"--\xff"],
        [b"post", b"\xff", b"x"],
        [b"post", b"default", b"\xff"],
        [b"name", b"\xff"],
        [b"search", b"\xff"],
        [b"log", b"default", b"--after", b"\xff"],
        [b"log", b"default", b"-n", b"\xff"],
        [b"hide", b"\xff"],
        [b"sync", b"\xff:1"],
        [b"sync", b"127.0.0.1:1", b"--cabal-key", b"\xff"],
        [b"export", b"s3://bucket/\xff"],
        [b"check", b"--\xff=1"],
        [b"completion", b"\xff"],
    ],
)
def test_an_argument_that_is_not_utf_8_is_rejected(
    tmp_path: Path, run_here: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[bytes]
) -> None:
    CableStore.open(tmp_path / "store").close()
    monkeypatch.setenv("CABLESTORE_STORE", f"{tmp_path}/store")
    assert run_here(*map(os.fsdecode, arguments))[0] == 2


def test_an_error_about_an_argument_that_is_not_utf_8_is_printed(tmp_path: Path) -> None:
    CableStore.open(tmp_path / "store").close()
    status, _, errors = ended(tmp_path, "sync", "127.0.0.1:1", "--cabal-key", b"@\xff", "-s", "store")
    assert status == 2, errors
    assert "Traceback" not in errors
