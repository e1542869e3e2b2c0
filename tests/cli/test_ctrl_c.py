"""Ctrl-C at difficult times: the exit status is 130, and commands that end by themselves print one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ctrl_c import INTERRUPTED, interrupted
from serving import cablestore
from terminals import Terminal
from waiting import LIMIT_S

AT_AN_IMPORT = """
import os, runpy, signal, sys
at = sys.argv.pop(1)
heard = []
def interrupt(event, what):
    if event == "import" and what[0] == at and not heard:
        heard.append(at)
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(interrupt)
runpy.run_module("cablestore", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    "at", ["cablestore.cli", "click", "cablestore.cli.options", "plyvel", "cablestore.index.check"]
)
def test_ctrl_c_prints_one_line_while_the_command_line_loads(tmp_path: Path, at: str) -> None:
    """This applies from our first line on. While Python itself starts, its output varies."""
    done = interrupted(AT_AN_IMPORT, at, "rebuild", "--store", tmp_path)
    assert (done.stderr.strip(), done.returncode) == INTERRUPTED


IN_A_STRING = """
from cablestore import cli
from cablestore.__main__ import main
cli.main = lambda: exec("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
main()
"""


def test_the_status_is_130_while_python_executes_a_string(tmp_path: Path) -> None:
    """Python executes text to create a dataclass, and remembers Ctrl-C there even after the exception is handled."""
    (tmp_path / "program.py").write_text(IN_A_STRING)
    command = [sys.executable, "-m", "program"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert (done.stderr.strip(), done.returncode) == INTERRUPTED


IN_A_WEAK_REFERENCE = """
import os, signal, time, weakref
from cablestore import cli
from cablestore.__main__ import main
class Thing:
    pass
def work():
    thing = Thing()
    last = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGINT))
    del thing
    time.sleep(600)
cli.main = work
main()
"""


def test_ctrl_c_is_not_lost_where_python_drops_exceptions() -> None:
    done = interrupted(IN_A_WEAK_REFERENCE)
    assert (done.stderr.strip(), done.returncode) == INTERRUPTED


BEFORE_A_LOOP = """
import asyncio, os, signal
from cablestore.__main__ import main
enter = asyncio.Runner.__enter__
def interrupted(runner):
    os.kill(os.getpid(), signal.SIGINT)
    return enter(runner)
asyncio.Runner.__enter__ = interrupted
main()
"""


IN_A_CLASS = """
import asyncio, os, signal
from cablestore.__main__ import main
class Interrupting:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), signal.SIGTERM)
enter = asyncio.Runner.__enter__
def interrupted(runner):
    type("Late", (), {"value": Interrupting()})
    return enter(runner)
asyncio.Runner.__enter__ = interrupted
main()
"""


def test_sigterm_while_python_creates_a_class_ends_serve(tmp_path: Path) -> None:
    """Late imports create classes. Python 3.11 replaces an exception that is raised during that."""
    assert cablestore("init", store=tmp_path / "store").returncode == 0
    done = interrupted(IN_A_CLASS, "serve", "--quiet", "--listen", "127.0.0.1:0", "--store", tmp_path / "store")
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.thorough("reconcile 127.0.0.1:9 --store", "serve --quiet --listen 127.0.0.1:0 --store")
@pytest.mark.parametrize(
    "command",
    [
        "serve --quiet --listen 127.0.0.1:0 --store",
        "sync 127.0.0.1:9 --store",
        "reconcile 127.0.0.1:9 --store",
        "archive content",
    ],
)
def test_ctrl_c_before_a_loop_runs_ends_the_command(tmp_path: Path, command: str) -> None:
    path = tmp_path / "store"
    assert command == "archive content" or cablestore("init", store=path).returncode == 0
    done = interrupted(BEFORE_A_LOOP, *command.split(), path)
    # Commands that run until Ctrl-C end without a line, as they do later.
    expected = ("", INTERRUPTED[1]) if command.startswith(("serve", "archive content")) else INTERRUPTED
    assert (done.stderr.strip(), done.returncode) == expected


def test_ctrl_c_ends_a_client_before_it_is_displayed(tmp_path: Path) -> None:
    assert cablestore("init", store=tmp_path / "store").returncode == 0
    client = Terminal([sys.executable, "-c", BEFORE_A_LOOP, "chat", "--store", tmp_path / "store"])
    try:
        assert (client.wait(), client.text.strip()) == (INTERRUPTED[1], "")
    finally:
        client.kill()


AT_THE_END = """
import atexit, os, runpy, signal, sys
sys.argv.pop(1)
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
runpy.run_module("cablestore", run_name="__main__", alter_sys=True)
"""


@pytest.mark.thorough
def test_ctrl_c_has_no_effect_after_a_command_is_complete(tmp_path: Path) -> None:
    assert cablestore("init", store=tmp_path / "store").returncode == 0
    done = interrupted(AT_THE_END, "-", "channels", "--store", tmp_path / "store")
    assert (done.stderr, done.returncode) == ("", 0)
