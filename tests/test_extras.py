"""`pip install .` without extras: the installed packages, the commands that work, and the errors for missing extras."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from folders import ROOT
from installing import FROM_SOURCE, PROJECT, Installed, install
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from waiting import LIMIT_S

from cablestore import CableStore, Identity
from cablestore.errors import ArchiveError, MissingExtraError
from cablestore.extras import OPTIONAL, install_command, naming_extras
from cablestore.sds import CausalLog

EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
ALWAYS = Marker("python_version >= '3'")
MAX_SIZE_BYTES = 45_000_000
"""Maximum installed size for a client that embeds the store."""


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(tmp_path_factory.mktemp("command"), "cli")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(tmp_path_factory.mktemp("plain"))


def named(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


def test_the_named_extra_installs_each_optional_module() -> None:
    for module, (name, extra) in OPTIONAL.items():
        distribution = "cityhash" if module == "farmhash" else canonicalize_name(name)
        assert distribution in named(EXTRAS[extra]), module
        assert distribution not in named(PROJECT["dependencies"])


def test_the_extra_all_contains_every_generally_available_extra() -> None:
    [everything] = map(Requirement, EXTRAS["all"])
    assert everything.extras == EXTRAS.keys() - {"all", "dev", "docs", "sds-nim"}


def test_an_installation_without_extras_is_small(plain: Installed) -> None:
    here = [text for text in PROJECT["dependencies"] if (Requirement(text).marker or ALWAYS).evaluate()]
    assert plain.distributions >= named(here)
    for name in ("click", "rich", "uvloop", "aiohttp", "libtorrent", "pycryptodome", "protobuf", "mmh3",
                 "cryptography", "loky", "noiseprotocol", "psutil", "zstandard", "pyspark"):  # fmt: skip
        assert name not in plain.distributions
    files = [Path(folder, name) for folder, _, names in os.walk(plain.site, followlinks=True) for name in names]
    assert sum(file.stat().st_size for file in files) < MAX_SIZE_BYTES


def test_a_client_does_not_import_the_command_line_or_rarely_used_modules(plain: Installed, tmp_path: Path) -> None:
    code = """
import sys
from cablestore import CableStore
assert not {"asyncio", "click", "structlog", "ssl"} & set(sys.modules), set(sys.modules)
later = ("loky", "cablestore.export", "cablestore.index.parallel", "cablestore.store.closed", "cablestore.store.touched")
assert not {*later} & set(sys.modules), set(sys.modules)
from cablestore.peers import Node
assert not {"click", "structlog", "rich"} & set(sys.modules), set(sys.modules)
"""
    found = plain.python(code, tmp_path)
    assert found.returncode == 0, found.stderr


def test_the_commands_work_without_other_extras(command: Installed, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    commands = {
        "init": "store ",
        "name ann": "your name is now ann",
        "post default hello": "posted (",
        "log default": "  ann  hello  ",
        "export export": "exported 3 posts",
        "verify-export export": "3 posts",
        "rebuild": "rebuilt 3 posts",
        "check": "no problems found",
    }
    done = command.run([words.split() for words in commands], tmp_path)
    for (words, expected), found in zip(commands.items(), done, strict=True):
        assert found.status == 0, (words, found)
        assert expected in found.output, words
    serve = command.command("serve", "--listen", "127.0.0.1:0", "--json", "--log-level", "error")
    variables = command.environment(CABLESTORE_STORE=str(tmp_path / "store"))
    with subprocess.Popen(serve, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())["listening"]
        try:
            *_, log = command.run(
                [
                    ["post", "default", "through the socket"],
                    ["sync", address, "--create", "--store", other],
                    ["log", "default", "--store", other],
                ],
                tmp_path,
            )
        finally:
            server.terminate()
            _, errors = server.communicate(timeout=LIMIT_S)
    assert (server.returncode, errors) == (0, "")
    assert "through the socket" in log.output


MISSING = {
    "archive list folder --control " + "11" * 32: "archives need pycryptodome: " + FROM_SOURCE.format("archive"),
    "sds status": "causal logs need mmh3: " + FROM_SOURCE.format("sds"),
    "search hello": "search needs apsw: " + FROM_SOURCE.format("search"),
    "verify-export s3://bucket/export": "URIs need pyarrow: " + FROM_SOURCE.format("storage"),
    "reindex export --out new": "this function needs pyarrow: " + FROM_SOURCE.format("reindex"),
}


def test_a_missing_extra_is_reported_in_one_line(command: Installed, tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "store", identity=Identity.generate()) as store:
        store.post("default", "hello")
        store.export(tmp_path / "export")
    with CausalLog.open(tmp_path / "store") as log:
        log.channel("room", "ann").send(b"x", 1)
    (tmp_path / "folder").mkdir()
    done = command.run([words.split() for words in MISSING], tmp_path)
    assert [(found.status, found.errors) for found in done] == [
        (2, f"cablestore: {line}\n") for line in MISSING.values()
    ]


def test_a_rebuild_works_in_one_process_without_the_extra_parallel(plain: Installed, tmp_path: Path) -> None:
    code = """
import os
from cablestore import CableStore
from cablestore.errors import MissingExtraError
from cablestore.index import parallel
from cablestore.store.closed import ClosedStore
parallel.SHARED_OUT_FROM_SIZE_BYTES = 1
path = os.environ["CABLESTORE_STORE"]
with CableStore.open(path) as store:
    store.post("default", "hello")
store = ClosedStore(path)
print(store.rebuild().lost_posts, store.check().is_clean)
try:
    store.rebuild(processes=2)
except MissingExtraError as error:
    print(error)
"""
    found = plain.python(code, tmp_path)
    command = FROM_SOURCE.format("parallel")
    assert found.stdout.splitlines() == ["0 True", f"work in several processes needs loky: {command}"], found.stderr


ORIGINS = {
    "an index": (None, "pip install 'cablestore[archive,sds]'"),
    "a folder": ({"url": ROOT.as_uri(), "dir_info": {}}, f"pip install '{ROOT}[archive,sds]'"),
    "an editable folder": (
        {"url": ROOT.as_uri(), "dir_info": {"editable": True}},
        f"pip install --editable '{ROOT}[archive,sds]'",
    ),
    "a folder that was removed": (
        {"url": "file:///no/such/folder", "dir_info": {}},
        "pip install 'PATH-OF-CABLESTORE[archive,sds]'",
    ),
    "a wheel": (
        {"url": Path(__file__).as_uri(), "archive_info": {}},
        f"pip install '{Path(__file__)}[archive,sds]'",
    ),
    "a repository": (
        {"url": "https://example.org/cablestore", "vcs_info": {"vcs": "git", "commit_id": "5a" * 20}},
        f"pip install 'cablestore[archive,sds] @ git+https://example.org/cablestore@{'5a' * 20}'",
    ),
    "a site": (
        {"url": "https://example.org/cablestore.whl", "archive_info": {}},
        "pip install 'cablestore[archive,sds] @ https://example.org/cablestore.whl'",
    ),
}


@pytest.mark.parametrize("origin", ORIGINS)
def test_the_command_for_an_extra_uses_the_origin_of_the_package(plain: Installed, tmp_path: Path, origin: str) -> None:
    """pip writes the origin to the folder of the metadata (PEP 610), except for packages of an index."""
    url, command = ORIGINS[origin]
    metadata = tmp_path / "cablestore-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: cablestore\nVersion: 1\n")
    (metadata / "INSTALLER").write_text("pip")
    if url is not None:
        (metadata / "direct_url.json").write_text(json.dumps(url))
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from cablestore.extras import install_command
print(install_command("sds", "archive"))
"""
    found = plain.python(code, tmp_path)
    assert found.stdout == f"{command}\n", found.stderr


def test_metadata_of_a_build_in_the_source_is_not_an_installation(plain: Installed, tmp_path: Path) -> None:
    left = tmp_path / "cablestore.egg-info"
    left.mkdir()
    (left / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: cablestore\nVersion: 1\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nfrom cablestore.extras import install_command; print(install_command('sds'))"
    assert plain.python(code, tmp_path).stdout == f"{FROM_SOURCE.format('sds')}\n"


def test_the_command_for_an_extra_uses_the_installer_of_the_package(plain: Installed, tmp_path: Path) -> None:
    metadata = tmp_path / "cablestore-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: cablestore\nVersion: 1\n")
    (metadata / "INSTALLER").write_text("uv")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nfrom cablestore.extras import install_command; print(install_command('sds'))"
    assert plain.python(code, tmp_path).stdout == "uv pip install 'cablestore[sds]'\n"


def test_documents_install_the_package_from_its_folder() -> None:
    """It is not on an index, so the documents name its folder."""
    for document in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        found = re.findall(r"pip install [^\n`]*\bcablestore\b", document.read_text())
        assert not found, document


def test_the_command_reports_its_missing_extra(plain: Installed, tmp_path: Path) -> None:
    found = subprocess.run(
        plain.command("init"), cwd=tmp_path, env=plain.environment(), capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == f"cablestore: the command needs click: {FROM_SOURCE.format('cli')}\n"


def test_a_missing_extra_is_also_reported_to_programs(plain: Installed, tmp_path: Path) -> None:
    code = """
from cablestore.errors import CableStoreError
from cablestore.extras import naming_extras
try:
    import cablestore.sds.log
except CableStoreError as error:
    print(error)
try:
    with naming_extras("pictures need"):
        import aiohttp.web
except ImportError as error:
    print(error)
try:
    with naming_extras():
        import nonsense
except ModuleNotFoundError as error:
    print(error)
"""
    found = plain.python(code, tmp_path)
    assert found.stdout.splitlines() == [
        "causal logs need mmh3: " + FROM_SOURCE.format("sds"),
        "pictures need aiohttp: " + FROM_SOURCE.format("archive"),
        "No module named 'nonsense'",
    ], found.stderr


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        (None, "'cablestore[archive,cli]'"),
        ({"url": "https://host/cablestore.whl"}, "'cablestore[archive,cli] @ https://host/cablestore.whl'"),
        (
            {"url": "https://host/repo", "vcs_info": {"vcs": "git", "commit_id": "ab12"}},
            "'cablestore[archive,cli] @ git+https://host/repo@ab12'",
        ),
        ({"url": "file:///no/such%20folder"}, "'PATH-OF-CABLESTORE[archive,cli]'"),
        ({"url": f"file://{ROOT}"}, f"'{ROOT}[archive,cli]'"),
        ({"url": f"file://{ROOT}", "dir_info": {}}, f"'{ROOT}[archive,cli]'"),
        ({"url": f"file://{ROOT}", "dir_info": {"editable": True}}, f"--editable '{ROOT}[archive,cli]'"),
    ],
)
@pytest.mark.parametrize(("installer", "command"), [("uv\n", "uv pip install "), ("pip\n", "pip install ")])
def test_an_extra_is_added_from_the_origin_of_the_installation(
    origin: dict[str, object] | None, requirement: str, installer: str, command: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The first entry of the path has metadata without an installer, as a build leaves them."""
    for folder, files in (
        ("built", {}),
        ("installed", {"INSTALLER": installer} | ({} if origin is None else {"direct_url.json": json.dumps(origin)})),
    ):
        metadata = tmp_path / folder / "cablestore-1.dist-info"
        metadata.mkdir(parents=True)
        for name, text in {"METADATA": "Metadata-Version: 2.1\nName: cablestore\nVersion: 1\n", **files}.items():
            (metadata / name).write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "built"), str(tmp_path / "installed")])
    assert install_command("cli", "archive") == command + requirement


def test_without_an_installation_an_extra_is_added_from_the_source_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    assert install_command("cli") == f"pip install '{ROOT}[cli]'"


def test_only_missing_optional_modules_name_their_extra() -> None:
    both = pytest.raises(ArchiveError, match=r"^archives need pycryptodome: .*\[archive,reindex\]'$")
    with both, naming_extras("archives need", ArchiveError, "reindex"):
        raise ModuleNotFoundError(name="Crypto.Cipher")
    with pytest.raises(MissingExtraError, match=r"this function needs .*\[sds\]'$"), naming_extras(extra="sds"):
        raise ModuleNotFoundError(name="aiohttp.web")
    for unchanged in (ModuleNotFoundError(name="elsewhere"), MissingExtraError("named already")):
        with pytest.raises(ModuleNotFoundError) as caught, naming_extras():
            raise unchanged
        assert caught.value is unchanged
