"""Completion of commands, options and channels by real shells, and new keys."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run_command
from people import ANN, raws
from serving import environment

from cablestore import CableStore
from cablestore.store.key_file import load_identity


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "store"
    with CableStore.open(path) as opened:
        names = ["default", "deutsch", "münchen", "two words", "$(reboot)", "it's", "other"]
        opened.ingest(raws(*(ANN.text(name, "hello") for name in names)))
    return path


def cablestore(*arguments: object, store: Path) -> subprocess.CompletedProcess[str]:
    return run_command([*map(str, arguments)], environment(CABLESTORE_STORE=str(store)))


def completed(store: Path, *words: str) -> list[str]:
    """Return the completions of a shell for the last word."""
    asked = {
        "_CABLESTORE_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("cablestore", *words)),
        "COMP_CWORD": str(len(words)),
    }
    program = "import sys; from cablestore.cli import cli; cli.main(prog_name='cablestore')"
    settings = environment(CABLESTORE_STORE=str(store)) | asked
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=settings, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.mark.thorough
def test_commands_options_and_channels_are_completed(store: Path) -> None:
    assert completed(store, "ver") == ["verify-export"]
    assert completed(store, "log", "--o") == ["--oldest"]
    for command in ("log", "post", "topic", "join", "leave"):
        assert completed(store, command, "de") == ["default", "deutsch"], command
    assert completed(store, "users", "--channel", "o") == ["other"]


def test_names_that_need_quoting_are_not_completed(store: Path) -> None:
    assert completed(store, "log", "") == ["default", "deutsch", "münchen", "other"]


def test_there_are_no_completions_of_channels_without_a_store(tmp_path: Path) -> None:
    assert completed(tmp_path / "nowhere", "log", "d") == []
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_printed_for_each_shell(shell: str, store: Path) -> None:
    printed = cablestore("completion", shell, store=store)
    assert printed.returncode == 0, printed.stderr
    assert "_CABLESTORE_COMPLETE" in printed.stdout
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=printed.stdout, text=True, check=True)


def test_bash_completes_with_the_script(store: Path, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(cablestore("completion", "bash", store=store).stdout)
    line = f". {script}; COMP_WORDS=(cablestore log de); COMP_CWORD=2; _cablestore_completion cablestore; echo ${{COMPREPLY[@]}}"
    folder = Path(sys.executable).parent
    settings = environment(CABLESTORE_STORE=str(store)) | {"PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=settings, check=True)
    assert done.stdout.split() == ["default", "deutsch"]


def test_a_new_key_is_private_and_is_not_overwritten(tmp_path: Path) -> None:
    key, store = tmp_path / "key", tmp_path / "store"
    fields = json.loads(cablestore("keygen", key, "--json", store=store).stdout)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert load_identity(key).public_key.hex() == fields["public_key"]
    again = cablestore("keygen", key, store=store)
    assert again.returncode == 2
    assert "already exists and is not overwritten" in again.stderr
    assert not store.exists()
    assert cablestore("init", "--import-key", key, store=store).returncode == 0
    assert fields["public_key"] in cablestore("identity", store=store).stdout


def test_a_new_cabal_key_is_labelled_and_explained(tmp_path: Path) -> None:
    key, store = tmp_path / "cabal-key", tmp_path / "store"
    made = cablestore("keygen", "--cabal", key, store=store)
    assert (made.returncode, made.stdout) == (0, f"cabal key  {key}\n")
    note = f"the cabal key is in {key}: anyone who has it can join the cabal"
    assert made.stderr.replace("\n", "").replace(" ", "") == note.replace(" ", "")  # wrapped to the width
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    again = cablestore("keygen", "--cabal", key, store=store)
    assert (again.returncode, again.stdout) == (2, "")
    assert "already exists and is not overwritten" in again.stderr
    missing = cablestore("keygen", "--cabal", tmp_path / "no" / "key", store=store)
    assert f"cannot write the cabal key to {tmp_path / 'no' / 'key'}" in missing.stderr
    printed = cablestore("keygen", "--cabal", "-", store=store)
    assert len(bytes.fromhex(printed.stdout)) == 32
    assert printed.stderr.startswith("this is a cabal key: ")
    fields = json.loads(cablestore("keygen", "--cabal", "-", "--json", store=store).stdout)
    assert len(bytes.fromhex(fields["cabal_key"])) == 32
    assert not store.exists()
    assert cablestore("init", store=store).returncode == 0
    invited = cablestore("invite", "--cabal-key", f"@{key}", "--peer", "127.0.0.1:13333", "--json", store=store)
    assert key.read_text().strip() in invited.stdout, invited.stderr


def test_a_new_key_is_printed(tmp_path: Path) -> None:
    first, second = (cablestore("keygen", "-", store=tmp_path) for _ in range(2))
    key = tmp_path / "key"
    key.write_text(first.stdout)
    key.chmod(0o600)
    assert load_identity(key).public_key.hex() in first.stderr
    assert first.stdout != second.stdout
