"""Invalid values: commands print one sentence and exit with status 2, without a traceback or a Python error."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from exporting import with_manifest
from irc_logs import SAMPLES, laid

from cablestore import CableStore
from cablestore.cli import demo
from cablestore.errors import ExportError
from cablestore.export.manifest import read_manifest

Run = Callable[..., tuple[int, str, str]]
PYTHON = re.compile(r"Error\(|Traceback|\{'|\['|\bb'|PosixPath|re\.compile|<class|\(\?P<|errno|NoneType|dict|object at")
"""Words that only programmers understand."""


def errors_of(run: Run, *arguments: object, status: int = 2) -> str:
    found, out, err = run(*arguments)
    assert found == status, (out, err)
    assert not PYTHON.search(err), err
    assert err.strip()
    return err


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "the path or URI is empty"),
        ("FILE", "is a file"),
        ("FILE/store", "a file, not a folder"),
        ("a\0b", "NUL"),
        ("n" * 256, "too long"),
        ("x/" * 3000, "too long"),
        ("LOOP", "link to itself"),
    ],
    ids=["empty", "file", "below a file", "NUL", "long name", "long path", "loop"],
)
@pytest.mark.parametrize(
    "command", [["channels"], ["post", "default", "hi"], ["check"], ["rebuild"], ["prune", "--before", "5y"]]
)
def test_an_invalid_store_path_is_rejected(tmp_path: Path, run: Run, command: list[str], path: str, words: str) -> None:
    (tmp_path / "FILE").touch()
    (tmp_path / "LOOP").symlink_to(tmp_path / "LOOP")
    where = f"{tmp_path}/{path}" if path else ""
    assert words in errors_of(run, *command, "-s", where)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["FILE", "LOOP"]


@pytest.mark.parametrize("command", [["init"], ["import-irc", "LOGS"], ["import", "EXPORT"]])
@pytest.mark.parametrize("path", ["FILE", "FILE/store", "n" * 256])
def test_a_store_that_cannot_be_created_is_reported(
    tmp_path: Path, run: Run, command: list[str], path: str, copy: Path
) -> None:
    (tmp_path / "FILE").touch()
    logs = laid(tmp_path, "2013/01/07/#garden.txt", "[09:00] <ann> hello\n")
    words = {"LOGS": logs, "EXPORT": copy}
    errors_of(run, *(words.get(word, word) for word in command), "-s", f"{tmp_path}/{path}")


@pytest.mark.parametrize("end", ["a%00b", "FILE/x", "n" * 256, "LOOP", "LOOP/x"])
@pytest.mark.parametrize("command", ["export", "import", "verify-export", "backup", "restore"])
def test_a_uri_of_a_file_is_rejected_like_its_path(tmp_path: Path, run: Run, command: str, end: str) -> None:
    (tmp_path / "FILE").touch()
    (tmp_path / "LOOP").symlink_to(tmp_path / "LOOP")
    with CableStore.open(tmp_path / "store") as store:
        store.post("default", "x")
    into = tmp_path / ("new" if command == "restore" else "store")
    options = () if command == "verify-export" else ("-s", into)
    errors_of(run, command, f"file://{tmp_path}/{end}", *options)


def test_a_store_path_that_is_not_utf_8_is_rejected(tmp_path: Path) -> None:
    command: list[str | bytes] = [sys.executable, "-m", "cablestore", "init", "-s", os.fsencode(tmp_path) + b"/\xff"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "UTF-8" in ended.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["post", "default"], "missing text: standard input is closed"),
        (["sync", "--invitation", "-"], "cannot read an invitation from standard input: it is closed"),
        (["chat"], "chat needs a terminal"),
    ],
    ids=["post", "sync", "chat"],
)
def test_a_closed_standard_input_is_reported(tmp_path: Path, command: list[str], words: str) -> None:
    """The output is a terminal."""
    CableStore.open(tmp_path / "store").close()
    ours, theirs = pty.openpty()
    ended = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-m", "cablestore", *command, "-s", tmp_path / "store"],
        stdout=theirs,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(ours)
    os.close(theirs)
    assert ended.returncode == 2
    assert words in ended.stderr
    assert not PYTHON.search(ended.stderr), ended.stderr


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_standard_input_that_is_not_utf_8_is_rejected(tmp_path: Path, errors: str) -> None:
    """Depending on the locale, Python decodes it strictly or not."""
    CableStore.open(tmp_path / "store").close()
    command = [sys.executable, "-m", "cablestore", "post", "default", "-s", str(tmp_path / "store")]
    environment = {**os.environ, "PYTHONIOENCODING": f"utf-8:{errors}"}
    ended = subprocess.run(command, capture_output=True, input=b"a\xff", env=environment, check=False)
    assert ended.returncode == 2
    assert b"UTF-8" in ended.stderr
    assert b"Traceback" not in ended.stderr


MEMORY = ["lots", "", "1", "-1g", "10m", "1.5g", "999999999t", "1g -Xmx9g", "1\u0663g"]


@pytest.mark.parametrize(
    "options",
    [
        *(["--driver-memory", memory] for memory in MEMORY),
        *(["--cores", cores] for cores in ("0", "many", "99999999999999999999")),
        *(["--conf", setting] for setting in ("spark.x", "=x", "", "spark.executor.memory=lots", "spark.x=\n")),
        *(["--master", master] for master in ("lots", "", "http://x")),
        *(["--remote", remote] for remote in ("lots", "", "sc://", "spark://x:7077", "sc://x y")),
        ["--remote", "sc://x", "--master", "local"],
        ["--work", "FILE/work"],
        ["--before", "someday"],
        ["--drop-author", "me"],
        ["--archives", "FILE/x", "00"],
    ],
    ids=" ".join,
)
def test_invalid_options_of_a_reindexing_are_rejected(tmp_path: Path, run: Run, copy: Path, options: list[str]) -> None:
    """All invalid options are rejected before Java starts."""
    (tmp_path / "FILE").touch()
    options = [option.replace("FILE", str(tmp_path / "FILE")) for option in options]
    err = errors_of(run, "reindex", copy, "--out", tmp_path / "store", *options)
    assert len(err.splitlines()) <= 5
    assert "at org." not in err
    assert not (tmp_path / "store").exists()


def _first(fields: dict[str, Any], name: str, value: Any) -> None:
    fields["segments"][0][name] = value


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "format": lambda fields: fields.update(format={"a": [1]}),
    "format of a later version": lambda fields: fields.update(format=2),
    "dialect": lambda fields: fields.update(dialect=["legacy"]),
    "no views": lambda fields: fields.pop("views"),
    "a view's version": lambda fields: fields.update(views={"data": {"x": b"".hex()}}),
    "segments": lambda fields: fields.update(segments={"x": 1}),
    "filters": lambda fields: fields.update(filters=[None]),
    "a short hash": lambda fields: _first(fields, "blake3", "00"),
    "a long text": lambda fields: _first(fields, "blake3", "x" * 100_000),
    "a terminal's language": lambda fields: _first(fields, "kind", "\x1b[2J"),
    "a terminal's language as a name": lambda fields: _first(fields, " - at `$\x1b[2J" * 100, 1),
    "a huge number": lambda fields: _first(fields, "items", 10**4000),
    "a place of three": lambda fields: _first(fields, "first", [1, "a", 2]),
    "a file's name": lambda fields: _first(fields, "file", "../evil"),
    "a kind": lambda fields: _first(fields, "kind", None),
    "an entry's key": lambda fields: fields["segments"][0].pop("items"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_damaged_manifest_is_reported_without_python_errors(
    tmp_path: Path, run: Run, copy: Path, change: str
) -> None:
    with_manifest(copy, CHANGES[change])
    with pytest.raises(ExportError) as error:
        read_manifest(copy)
    assert "manifest.json is damaged: " in str(error.value) or "format" in change or change == "dialect"
    assert not PYTHON.search(str(error.value)), error.value
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 300 + len(str(copy))
    assert "manifest.json" in errors_of(run, "import", copy, "-s", tmp_path / "store")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, "\xff"])
def test_an_invalid_manifest_is_rejected(tmp_path: Path, run: Run, copy: Path, text: str) -> None:
    (copy / "manifest.json").write_text(text, encoding="latin-1")
    assert "manifest.json" in errors_of(run, "import", copy, "-s", tmp_path / "store")


@pytest.mark.parametrize("client", ["irssi", "ubuntu by day"])
def test_the_demo_reads_a_folder_tree_of_days(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    """Layout of most public logs: `2013/01/07/#garden.txt`."""
    [sample] = [sample for sample in SAMPLES if sample.client == client]
    laid(tmp_path, sample.path, sample.text)
    monkeypatch.setattr(demo, "find_spec", lambda _: None)  # Spark has a separate test
    status, out, err = run("demo", "--logs", tmp_path / "2013", "--keep", tmp_path / "kept")
    assert status == 0, err
    assert "the dumps are equal" in out
    with CableStore.open(tmp_path / "kept") as store:
        assert [channel.name for channel in store.channels()] == ["garden"]


def test_the_demo_rejects_logs_without_messages(tmp_path: Path, run: Run) -> None:
    laid(tmp_path, "2013/01/07/#garden.txt", "--- Log opened Mon Jan 07 09:00:00 2013\n")
    assert "no messages or joins found" in errors_of(run, "demo", "--logs", tmp_path / "2013")
    (tmp_path / "empty").mkdir()
    assert "is empty" in errors_of(run, "demo", "--logs", tmp_path / "empty")


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_output_shows_the_number_of_an_unencodable_character(tmp_path: Path, options: list[str]) -> None:
    with CableStore.open(tmp_path / "store") as store:
        store.post("default", "done \N{BALLOT X}")
    found = subprocess.run(
        [sys.executable, "-m", "cablestore", "log", "default", "-s", str(tmp_path / "store"), *options],
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
    )
    assert (found.returncode, found.stderr) == (0, b"")
    assert rb"done \u2717" in found.stdout


def test_a_key_file_with_a_name_that_is_not_utf_8_is_created(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "cablestore", "keygen", os.fsencode(tmp_path) + b"/\xff"],
        capture_output=True,
        check=False,
    )
    assert found.returncode == 0
    assert b"Traceback" not in found.stderr


def test_a_port_of_thousands_of_digits_is_rejected(tmp_path: Path, run: Run) -> None:
    errors_of(run, "archive", "seed", tmp_path, "--community", "ab" * 33, "--listen", "127.0.0.1:" + "9" * 5000)


@pytest.mark.parametrize("option", ["--cabal-key", "--seed"])
def test_a_credential_in_the_name_of_a_file_is_not_shown(tmp_path: Path, run: Run, option: str) -> None:
    CableStore.open(tmp_path / "store").close()
    command = {"--cabal-key": ["sync", "127.0.0.1:1"], "--seed": ["moderation"]}[option]
    for uri in ("s3://user:opensesame@bucket/x", "s3://bucket/x?secret_key=opensesame"):
        err = errors_of(run, *command, option, f"@{uri}", "-s", tmp_path / "store")
        assert "credentials" in err
        assert "opensesame" not in err


@pytest.mark.parametrize(
    "command", ["sync 127.0.0.1:1 --cabal-key @FILE", "moderation --seed @FILE", "serve --config FILE"]
)
def test_a_file_without_an_end_is_not_read(tmp_path: Path, run: Run, command: str) -> None:
    CableStore.open(tmp_path / "store").close()
    words = command.replace("FILE", "/dev/zero").split()
    assert "File too large" in errors_of(run, *words, "-s", tmp_path / "store")


@pytest.mark.parametrize("path", ["C:\\cable\\store", "\\\\server\\store"])
def test_a_path_of_another_system_is_rejected(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "neither a path nor a URI" in errors_of(run, "init", "-s", path)
    assert not list(tmp_path.iterdir())
    assert run("init", "-s", f"./{path}")[0] == 0
