"""`make` selects a suitable Python before it downloads anything, or reports the missing part in two lines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from folders import ROOT

OLD = (3, 10, 0, "final", 0)
ON_ARM = "import platform, sysconfig\nsys.version_info = {version}\nplatform.machine = lambda: 'aarch64'"


def find(*pythons: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "tools" / "find-python"), *map(str, pythons)]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)


def interpreter(folder: Path, name: str, before: str) -> Path:
    """Create a command that runs this Python, with the statements `before` executed before the program."""
    path = folder / name
    path.write_text(f"""#!{sys.executable}
import sys
{before}
sys.argv = sys.argv[1:]
code = sys.argv[1]
sys.argv = ["-c", *sys.argv[2:]]
exec(code)
""")
    path.chmod(0o755)
    return path


def test_the_current_interpreter_is_accepted() -> None:
    assert find(sys.executable).stdout == f"{sys.executable}\n"
    assert find().returncode == 0


def test_the_first_suitable_interpreter_is_selected(tmp_path: Path) -> None:
    old = interpreter(tmp_path, "python3", f"sys.version_info = {OLD}")
    found = find("no-such-python", old, sys.executable)
    assert (found.returncode, found.stdout, found.stderr) == (0, f"{sys.executable}\n", "")


@pytest.mark.parametrize(
    ("before", "variables", "message"),
    [
        (f"sys.version_info = {OLD}", {}, "cablestore needs Python 3.11 to 3.14, and {} is Python 3.10."),
        ("sys.exit(1)", {}, "cablestore needs Python 3.11 to 3.14, and {} does not run."),
        ("sys.modules['ensurepip'] = None", {}, "and cannot make an environment: its modules venv and ensurepip are missing."),
        ("", {"CC": "no-such-compiler"}, "and no-such-compiler cannot compile C for it: the compiler or Python's headers are missing."),
        (
            ON_ARM.format(version=(3, 12, 0, "final", 0)),
            {"CXX": "no-such-compiler"},
            "{} is Python 3.12, for which plyvel has no wheel here: it is compiled, and LevelDB's headers or a C++ compiler are missing.",
        ),
    ],
    ids=["too old", "broken", "no venv", "no compiler", "no headers of LevelDB"],
)  # fmt: skip
def test_missing_parts_are_reported_in_two_lines(
    before: str, variables: dict[str, str], message: str, tmp_path: Path
) -> None:
    python = interpreter(tmp_path, "python", before)
    found = find(python, "no-such-python", **variables)
    assert (found.returncode, found.stdout) == (1, "")
    first, second = found.stderr.splitlines()
    assert first.endswith(message.format(python)), first
    assert second.startswith("Install ")
    if "LevelDB" in message:
        for package in (
            "libleveldb-dev",
            "leveldb-devel",
            "pacman -S leveldb",
            "apk add leveldb-dev",
            "brew install leveldb",
            "make PYTHON=python3.13",
        ):
            assert package in second


@pytest.mark.parametrize("minor", [13, 14])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_new_interpreters_do_not_need_the_headers_of_leveldb(minor: int, machine: str, tmp_path: Path) -> None:
    version = (3, minor, 0, "final", 0)
    python = interpreter(tmp_path, "python", ON_ARM.format(version=version).replace("aarch64", machine))
    found = find(python, CXX="no-such-compiler")
    assert (found.returncode, found.stdout, found.stderr) == (0, f"{python}\n", "")


def test_make_reports_a_missing_python_before_any_download(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "setup.py", "tools", "cablestore"):
        (tmp_path / name).symlink_to(ROOT / name)
    command = ["make", "demo", "PYTHON=no-such-python"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "there is no no-such-python.\nInstall it, or name another one: make PYTHON=python3.13\n" in found.stderr
    assert not (tmp_path / ".venv").exists()
