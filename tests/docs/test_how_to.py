"""The guides for backups, moving, upgrades, small stores and moderation: their commands run in order."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from documents import blocks
from folders import ROOT
from s3 import S3Server

from cablestore import CableStore

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a store, another user's export, and a cabal key."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CABLESTORE_STORE", "STORE-FOLDER")
    with CableStore.open("STORE-FOLDER") as store:
        store.set_info(name="ann")
        slip = store.post("garden", "the tomatoes are blue")
        store.post("garden", "the tomatoes are red")
        store.delete(slip.hash)
    with CableStore.open("other") as other:
        other.post("garden", "eat them now")
        other.export("ANOTHER")
    Path("cabal-key").write_text("ab" * 32)
    return tmp_path


def follow(page: str, run: Run) -> list[str]:
    """Run each line of a page's shell blocks. Returns the output of each command."""
    return follow_lines("\n".join(blocks(f"docs/how-to/{page}", "sh")), run)


def follow_lines(text: str, run: Run) -> list[str]:
    outputs = []
    for line in filter(None, text.splitlines()):
        command, *words = shlex.split(line, comments=True)
        if command == "cp":
            source, target = Path(words[-2]), Path(words[-1])
            shutil.rmtree(target, ignore_errors=True)  # the guide restores a lost folder
            (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
        elif command == "cablestore":
            status, out, err = run(*words)
            assert status == 0, (line, err)
            outputs.append(out)
        else:
            assert command == "pip", line
    return outputs


def contents(store: str) -> tuple[bytes, list[str]]:
    with CableStore.open(store, create=False) as opened:
        texts = [message.text for message in opened.messages("garden").messages]
        return opened.identity.public_key, [opened.dump_digest(), *sorted(texts)]


def test_backups_are_restored_both_ways(home: Path, run: Run) -> None:
    before = contents("STORE-FOLDER")
    outputs = follow("back-up.md", run)
    assert contents("STORE-FOLDER") == before
    assert contents("NEW") == before
    assert contents("RESTORED") == before
    assert (home / "cabal-key-copy").read_text() == "ab" * 32
    assert "no problems found" in outputs[-1]


@pytest.mark.thorough
def test_an_export_is_written_to_an_object_store_and_imported(home: Path, run: Run, s3: S3Server) -> None:
    text = "\n".join(blocks("docs/how-to/back-up.md", "console"))
    follow_lines(text.replace("$ ", "").replace("s3://BUCKET/", s3.uri("how-to/")), run)
    assert contents("NEW")[1] == contents("STORE-FOLDER")[1]


def test_a_store_is_moved_with_its_identity_and_merged_with_another(home: Path, run: Run) -> None:
    public_key, [_, *texts] = contents("STORE-FOLDER")
    follow("move.md", run)
    moved_key, [_, *merged] = contents("NEW")
    assert moved_key == public_key
    assert merged == sorted([*texts, "eat them now"])
    assert any((home / "PART").iterdir())


def test_the_moderating_program_prints_the_output_of_the_page(tmp_path: Path) -> None:
    page = "docs/how-to/moderate-from-a-program.md"
    program = tmp_path / "bot.py"
    program.write_text("\n".join(blocks(page)))
    done = subprocess.run(
        [sys.executable, "-W", "error", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("".join(blocks(page, "text")), "")
    with CableStore.open(tmp_path / "store", create=False) as store:
        assert store.check().is_clean


@pytest.mark.parametrize("page", ["upgrade.md", "keep-small.md", "search.md"])
def test_the_commands_of_the_page_do_not_change_the_posts(page: str, home: Path, run: Run) -> None:
    before = contents("STORE-FOLDER")
    assert follow(page, run)
    assert contents("STORE-FOLDER") == before


def test_two_programs_use_one_store(tmp_path: Path) -> None:
    page = "docs/how-to/two-programs.md"
    owner, program, tasks = blocks(page)
    expected, *_ = blocks(page, "text")

    def run(text: str) -> str:
        command = [sys.executable, "-c", text]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    command = [sys.executable, "-c", owner]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as offering:
        assert offering.stdout is not None
        assert offering.stdout.readline() == "open\n"
        assert run(program) == expected
        assert f"It prints `{run(tasks).strip()}`." in (ROOT / page).read_text()
