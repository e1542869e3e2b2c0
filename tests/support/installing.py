"""The package as `pip install .` installs it, with the distributions that it requires, and no others.

Nothing is downloaded: the distributions of this environment are linked into a separate folder. Python runs there with
-S, so that it imports only from that folder and the standard library.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any, Final, NamedTuple

from folders import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from serving import environment

FROM_SOURCE: Final = f"pip install '{ROOT}[{{}}]'"
"""Command that the error of a missing extra names where `install` linked the checkout."""

PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@dataclass(frozen=True)
class Installed:
    """A folder of packages."""

    site: Path
    distributions: frozenset[str]

    def environment(self, **variables: str) -> dict[str, str]:
        return environment(PYTHONPATH=str(self.site), **variables)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-S", "-P", "-m", "cablestore", *words]

    def python(self, code: str, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-S", "-P", "-c", code, *arguments]
        variables = self.environment(CABLESTORE_STORE=str(cwd / "store"))
        return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)

    def run(self, commands: Sequence[Sequence[str]], cwd: Path) -> list[Done]:
        """Run commands in sequence, in one process, because starting one takes longer than most commands."""
        found = self.python(_RUN, cwd, json.dumps(commands))
        assert found.returncode == 0, found.stderr
        return [Done(*each) for each in json.loads(found.stdout)]


class Done(NamedTuple):
    """Result of a command."""

    status: int
    output: str
    errors: str


_RUN: Final = """
import contextlib, io, json, sys
from cablestore.cli import main
done = []
for words in json.loads(sys.argv[1]):
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            main(words)
        except SystemExit as end:
            done.append([end.code, output.getvalue(), errors.getvalue()])
print(json.dumps(done))
"""


def install(site: Path, *extras: str, wheel: Path | None = None) -> Installed:
    """Install the package and its requirements into the folder `site`: a wheel, or else the checkout."""
    if wheel is None:
        (site / "cablestore").symlink_to(ROOT / "cablestore")
    else:
        zipfile.ZipFile(wheel).extractall(site)
    wanted = [*PROJECT["dependencies"], *(text for extra in extras for text in PROJECT["optional-dependencies"][extra])]
    names: set[str] = set()
    for found in _required(wanted, {""}, names):
        for file in found.files or ():
            top = file.parts[0]
            if top not in {"..", "__pycache__"} and not (site / top).exists():
                (site / top).symlink_to(Path(str(found.locate_file(top))))
    return Installed(site, frozenset(names))


def _required(requirements: Iterable[str], extras: Iterable[str], seen: set[str]) -> Iterator[Distribution]:
    for text in requirements:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        is_wanted = requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras)
        if is_wanted and name not in seen:
            seen.add(name)
            found = distribution(name)
            if name != "cablestore":  # an extra that needs another one
                yield found
            yield from _required(found.requires or (), {"", *requirement.extras}, seen)
