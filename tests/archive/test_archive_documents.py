"""Commands of docs/how-to/archives.md as processes: a control node, a member and a node for content ids."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from archive_network import CABAL_KEY, HERE, digest, made_store
from archives import some_weeks
from documents import command_lines
from serving import HERE as ANY_PORT
from serving import Served, environment
from waiting import LIMIT_S

from cablestore import CableStore

COMMANDS = [" ".join(map(shlex.quote, words)) for words in command_lines("docs/how-to/archives.md")]


class Person:
    """Person with a folder, a store and the cabal key, who runs the documented commands."""

    def __init__(self, folder: Path, **instead: str) -> None:
        self.folder = folder
        self.instead = instead
        (folder / "cabal-key").write_text(CABAL_KEY)

    def words(self, begin: str) -> list[str]:
        """Return the only documented command with this prefix, with the person's values in place of the examples."""
        found = {command for command in COMMANDS if command.startswith(begin)}
        assert len(found) == 1, (begin, found)
        text = found.pop()
        for example, own in self.instead.items():
            text = text.replace(example, own)
        return [sys.executable, "-m", "cablestore", *shlex.split(text)]

    @property
    def environment(self) -> dict[str, str]:
        return environment(CABLESTORE_STORE=str(self.folder / "store"))

    def types(self, begin: str) -> str:
        done = subprocess.run(
            self.words(begin), cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def leaves_running(self, begin: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            self.words(begin), cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True
        )
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0


def line_of(process: subprocess.Popen[str], begin: str) -> str:
    assert process.stdout
    return next(line for line in process.stdout if line.startswith(begin)).strip()


@pytest.fixture
def control(tmp_path: Path) -> Person:
    community = made_store(tmp_path / "control" / "store", some_weeks(weeks=2))
    return Person(
        tmp_path / "control", **{"0.0.0.0:9025": f"{HERE}:0", "127.0.0.1:8080": f"{HERE}:0", "KEY": community}
    )


@pytest.fixture
def member(tmp_path: Path, control: Person) -> Person:
    (tmp_path / "member").mkdir()
    return Person(tmp_path / "member", KEY=control.instead["KEY"])


@pytest.mark.thorough
def test_a_control_node_and_a_member_run_the_documented_commands(
    control: Person, member: Person, serving: Callable[..., Served]
) -> None:
    served = serving(
        control.folder / "store", "--listen", ANY_PORT, "--no-follow", CABLESTORE_SERVE_CABAL_KEY=CABAL_KEY
    )
    assert served.address
    with control.leaves_running("archive run") as run:
        assert line_of(run, "magnet:")
        assert line_of(run, "announced")
        known = control.types("archive status")
        [listening] = [line.split()[-1] for line in known.splitlines() if line.startswith("listening")]
        member.instead |= {"192.0.2.7:9025": listening, "peer.example:13333": served.address}
        assert "in 1 channel," in member.types("sync peer.example:13333 --create")
        assert member.types("archive fetch newest").count("week of") == 2
        assert "is newest" in member.types("archive status")
        member.types("sync peer.example:13333 --cabal-key")
    assert served.stop() == 0
    assert digest(member.folder / "store") == digest(control.folder / "store")


@pytest.mark.thorough
def test_the_documented_single_steps_and_content_ids_work(control: Person, member: Person) -> None:
    assert control.types("archive create").startswith("created 2 archives")
    with control.leaves_running("archive seed") as seed:
        control.instead["magnet:?xt=urn:btih:..."] = line_of(seed, "magnet:")
        assert "announced in post" in control.types("archive announce 'magnet:")
        assert control.instead["magnet:?xt=urn:btih:..."] in control.types("archive status")
    with control.leaves_running("archive content content") as content:
        url = line_of(content, "serving").split()[-1]
        control.instead = {"http://127.0.0.1:8080": url} | control.instead
        link = control.types("archive publish").strip()
        control.instead["codex:zDvZR..."] = link
        assert "announced in post" in control.types("archive announce codex:")
        member.instead |= {"http://127.0.0.1:8080": url, "codex:zDvZR...": link}
        CableStore.open(member.folder / "store").close()
        assert member.types("archive fetch codex:").count("week of") == 2
