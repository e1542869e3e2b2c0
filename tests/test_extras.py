"""`pip install .` without extras: the installed packages, the commands that work, and the errors for missing extras."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from installing import PROJECT, Installed, install
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from waiting import LIMIT_S

from cablestore import CableStore, Identity
from cablestore.extras import OPTIONAL
from cablestore.sds import CausalLog

EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
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


def test_each_optional_module_is_brought_by_the_extra_that_is_named() -> None:
    for module, (name, extra) in OPTIONAL.items():
        distribution = "cityhash" if module == "farmhash" else canonicalize_name(name)
        assert distribution in named(EXTRAS[extra]), module
        assert distribution not in named(PROJECT["dependencies"])


def test_all_is_every_extra_that_every_python_can_have() -> None:
    [everything] = map(Requirement, EXTRAS["all"])
    assert everything.extras == EXTRAS.keys() - {"all", "dev", "docs", "sds-nim"}


def test_little_is_installed(plain: Installed) -> None:
    assert plain.distributions >= named(PROJECT["dependencies"]) - (
        {"backports-zstd"} if sys.version_info >= (3, 14) else set()
    )
    for name in ("click", "rich", "uvloop", "aiohttp", "libtorrent", "pycryptodome", "protobuf", "mmh3",
                 "cryptography", "noiseprotocol", "zstandard", "pyspark"):  # fmt: skip
        assert name not in plain.distributions
    files = [Path(folder, name) for folder, _, names in os.walk(plain.site, followlinks=True) for name in names]
    assert sum(file.stat().st_size for file in files) < MAX_SIZE_BYTES


def test_a_client_loads_nothing_of_the_command_line_and_of_rare_work(plain: Installed, tmp_path: Path) -> None:
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
    "archive list folder --control " + "11" * 32: "archives need pycryptodome: pip install 'cablestore[archive]'",
    "sds status": "causal logs need mmh3: pip install 'cablestore[sds]'",
    "search hello": "search needs apsw: pip install 'cablestore[search]'",
    "verify-export s3://bucket/export": "URIs need pyarrow: pip install 'cablestore[storage]'",
    "reindex export --out new": "this function needs pyarrow: pip install 'cablestore[reindex]'",
}


def test_a_missing_extra_is_named_in_one_line(command: Installed, tmp_path: Path) -> None:
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


def test_the_command_names_its_extra(plain: Installed, tmp_path: Path) -> None:
    found = subprocess.run(
        plain.command("init"), cwd=tmp_path, env=plain.environment(), capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == "cablestore: the command needs click: pip install 'cablestore[cli]'\n"


def test_a_missing_extra_is_named_to_programs_too(plain: Installed, tmp_path: Path) -> None:
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
        "causal logs need mmh3: pip install 'cablestore[sds]'",
        "pictures need aiohttp: pip install 'cablestore[archive]'",
        "No module named 'nonsense'",
    ], found.stderr
