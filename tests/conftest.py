"""Fixtures that several test files share."""

from __future__ import annotations

import gc
import logging
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import seeds
from exporting import copied, export, some_posts, stones_in
from hypothesis import HealthCheck, settings
from people import ANN, BOB, CYD, START_MS, Person, raws
from s3 import S3Server, s3_server
from serving import Served
from terminals import COLUMNS, LINES, Start, Terminal

from cablestore import LEGACY, CableStore, limits
from cablestore.cli import main
from cablestore.cli import serve as service
from cablestore.cli.serve_plan import ServePlan
from cablestore.export import verify_export
from cablestore.files import ObjectFolder, folder_of

settings.register_profile(
    "normal", max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), derandomize=not seeds.SEED
)
settings.register_profile("short", settings.get_profile("normal"), max_examples=30)
settings.register_profile(
    "soak", settings.get_profile("normal"), max_examples=5_000, derandomize=False, print_blob=True
)

# A shell that runs the tests in the background, or nohup, ignores signals. All child processes would inherit this.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


seeds.replace_system()


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest) -> None:
    """Seed shared fixtures by their own names, because any test may be the first to request them."""
    if fixturedef.scope != "function":
        seeds.begin(f"{fixturedef.baseid} {fixturedef.argname} {getattr(request, 'param_index', '')}")


@pytest.fixture(autouse=True)
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Seed all randomness of a test by its name. Returns a generator for the test itself."""
    return seeds.begin(request.node.nodeid.rpartition("/")[2])


@pytest.fixture(scope="session")
def s3_process() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def people_clock() -> None:
    """Start the timestamps of posts at the same time in each file, however many posts other files wrote."""
    Person.restart_clock()


@pytest.fixture
def s3(s3_process: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """Return an S3 server with a new bucket. The environment of the test points to the server."""
    for name, value in (s3_process.environment | {"XDG_CACHE_HOME": str(tmp_path / "cache")}).items():
        monkeypatch.setenv(name, value)
    return s3_process.with_new_bucket()


@pytest.fixture(params=["disk", "S3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectFolder:
    """Return a new folder, on disk or in an object store."""
    if request.param == "disk":
        return folder_of(tmp_path / "place")
    s3: S3Server = request.getfixturevalue("s3")
    return folder_of(s3.uri(f"{tmp_path.parent.name}/{tmp_path.name}"))


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[ServePlan]:
    """Return the plans of `serve`, which does not run."""
    found: list[ServePlan] = []

    def run(*arguments: Any) -> None:
        found.append(arguments[-1].plan)

    monkeypatch.setattr(service, "run", run)
    monkeypatch.setattr(service, "log_to_standard_error", lambda **_: None)
    for name in [name for name in os.environ if name.startswith("CABLESTORE_")]:
        monkeypatch.delenv(name)
    return found


LONG = (Path(__file__).parent / "long.txt").read_text().split("\n")[1:-1]
"""Files that run first in a run of all tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=["short", "all"], default="all", help="short is what `make test` runs")


def pytest_configure(config: pytest.Config) -> None:
    is_short = config.getoption("--tier") == "short"
    settings.load_profile("soak" if os.environ.get("CABLESTORE_SOAK") else "short" if is_short else "normal")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of longer tiers. A run of all tests starts with the slowest files."""
    tier = config.getoption("--tier")
    left_out = [item for item in items if _is_left_out(item, tier)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    if tier == "all":
        items.sort(key=_place)


def pytest_collection_finish() -> None:
    """Exclude modules and tests from garbage collection. Otherwise, each collection would visit all of them."""
    gc.collect()
    gc.freeze()


def _place(item: pytest.Item) -> int:
    """Return the index of a test's file in the list of slow files."""
    file = item.nodeid.partition("::")[0].removeprefix("tests/")
    return LONG.index(file) if file in LONG else len(LONG)


def _is_left_out(item: pytest.Item, tier: str) -> bool:
    if os.environ.get("CABLESTORE_SOAK"):
        return False
    # The keywords of an item also contain the names of its folders.
    return item.get_closest_marker("soak") is not None or (tier == "short" and _is_thorough(item))


def _is_thorough(item: pytest.Item) -> bool:
    """Return True if a mark names the parameters of the test, or has no parameters."""
    parameters = getattr(item, "callspec", None)
    return any(not mark.args or (parameters and parameters.id in mark.args) for mark in item.iter_markers("thorough"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CableStore]:
    """Yield a store in a folder. It must be consistent after the test."""
    with CableStore.open(tmp_path / "store") as opened:
        yield opened
        report = opened.check()
        assert report.is_clean, [str(problem) for problem in report.problems]


@pytest.fixture(scope="session")
def data() -> Path:
    """Return the optional folder with large real data."""
    folder = os.environ.get("CABLESTORE_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("CABLESTORE_DATA names no folder")
    return Path(folder)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an export with several segments of both kinds."""
    folder = tmp_path_factory.mktemp("whole") / "export"
    manifest = export(some_posts(), folder, LEGACY, segment_size_bytes=600)
    assert len(manifest.post_segments) > 2
    assert len(manifest.tombstone_segments) > 1
    assert {stone.is_effective for stone in stones_in(manifest)} == {True, False}
    assert verify_export(folder, signatures=True).is_clean
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return copied(whole, tmp_path / "copy")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """Yield a function that runs a command in this process. Logging that it sets up ends with the test."""

    def command(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        found = capsys.readouterr()
        return int(str(exit_.value.code or 0)), found.out, found.err

    yield command
    for handler in [each for each in logging.root.handlers if type(each) is logging.StreamHandler]:
        logging.root.removeHandler(handler)


@pytest.fixture
def chat(store: CableStore) -> CableStore:
    """Return a store with a channel of 25 messages by three people, with joins and a deletion."""
    posts = [ANN.named("Ann"), ANN.join("default"), BOB.join("default")]
    posts += [(ANN, BOB, CYD)[i % 3].text("default", str(i), at=START_MS + 1000 * i) for i in range(25)]
    gone = ANN.text("default", "gone", at=START_MS + 5500)
    store.ingest(raws(*posts, gone, ANN.delete(gone, at=START_MS + 5600), CYD.leave("default", at=START_MS + 10**9)))
    return store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the path of a closed store with a few posts."""
    path = tmp_path / "store"
    with CableStore.open(path) as store:
        store.set_info(name="Me")
        store.ingest(
            raws(
                ANN.named("Ann \x1b[31m"),
                ANN.join("default"),
                ANN.topic("default", "a topic that is longer than any screen is wide, " * 4),
                *(ANN.text("default", f"text {number}") for number in range(5)),
            )
        )
        store.post("default", "mine")
        store.post("other", "mine too")
    return path


@pytest.fixture
def serving() -> Iterator[Callable[..., Served]]:
    """Yield a function that starts `serve`. Running processes are killed after the test."""
    started: list[Served] = []

    def start(store: Path, *arguments: object, **more: str) -> Served:
        started.append(Served(store, *arguments, **more))
        return started[-1]

    yield start
    for served in started:
        served.process.kill()
        served.process.wait()
        assert served.process.stdout is not None
        served.process.stdout.close()


@pytest.fixture
def start_chat(tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts `cablestore chat` in a new terminal. Running clients are killed after the test."""
    started: list[Terminal] = []

    def start(*arguments: str, **more: str) -> Terminal:
        environment = {"XDG_CONFIG_HOME": str(tmp_path / "settings")} | more  # not the developer's own settings
        command = [sys.executable, "-m", "cablestore", "chat", *arguments]
        started.append(Terminal(command, tmp_path, (COLUMNS, LINES), None, **environment))
        return started[-1]

    yield start
    for terminal in started:
        terminal.kill()


@pytest.fixture
def quick_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check timeouts frequently, so that tests of timeouts are fast."""
    monkeypatch.setattr(limits, "TIMEOUTS_EVERY_S", 0.02)
