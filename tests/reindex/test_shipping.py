"""The package that Spark sends to workers has all modules, and can be imported from its file alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import cablestore
from cablestore.reindex.shipping import write_package


def test_the_sent_package_has_every_module_and_works_alone(tmp_path: Path) -> None:
    package = write_package(tmp_path)
    folder = Path(cablestore.__file__).parent
    with ZipFile(package) as archive:
        sent = {name: archive.read(name) for name in archive.namelist()}
    names = [
        path.relative_to(folder.parent) for each in (".", "views", "reindex") for path in (folder / each).rglob("*.py")
    ]
    assert sent == {name.as_posix(): (folder.parent / name).read_bytes() for name in names}
    code = f"import sys; sys.path.insert(0, {str(package)!r}); import cablestore.reindex; print(cablestore.__file__)"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, f"{package}/cablestore/__init__.py"), done.stderr
    (tmp_path / "again").mkdir()
    again = write_package(tmp_path / "again")
    assert (again.name, again.read_bytes()) == (package.name, package.read_bytes())
