from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from cablestore import CableStore

settings.register_profile(
    "normal", max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), derandomize=False
)
settings.register_profile("soak", settings.get_profile("normal"), max_examples=5_000)
settings.load_profile("soak" if os.environ.get("CABLESTORE_SOAK") else "normal")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("CABLESTORE_SOAK"):
        return
    for item in items:
        if "soak" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="a long run: make soak"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CableStore]:
    """A store in a folder; whatever a test does to it, it must be whole afterwards."""
    with CableStore.open(tmp_path / "store") as opened:
        yield opened
        report = opened.check()
        assert report.is_clean, [str(problem) for problem in report.problems]


@pytest.fixture(scope="session")
def data() -> Path:
    """The optional folder with large real data."""
    folder = os.environ.get("CABLESTORE_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("CABLESTORE_DATA names no folder")
    return Path(folder)
