"""`serve` on a store that another process has open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from serving import HERE, Served, cablestore
from waiting import wait_until

from cablestore import CableStore, limits
from cablestore.cli.output import Output
from cablestore.cli.serve_start import ServePages, open_served
from cablestore.errors import StoreLockedError
from cablestore.serving import offer

WAITING = "waiting until another process closes the store"


def test_serve_waits_for_a_command_that_has_the_store_open(tmp_path: Path, serving: Callable[..., Served]) -> None:
    """A command opens the store itself if `serve` has crashed and is not yet restarted."""
    with CableStore.open(tmp_path / "store"):
        served = serving(tmp_path / "store", "--listen", HERE)
        wait_until(lambda: served.logged(WAITING))
        assert served.process.poll() is None
    assert served.address
    assert len(served.logged(WAITING)) == 1
    assert served.stop() == 0


def test_sigterm_ends_the_wait(tmp_path: Path, serving: Callable[..., Served]) -> None:
    with CableStore.open(tmp_path / "store"):
        served = serving(tmp_path / "store", "--listen", HERE)
        wait_until(lambda: served.logged(WAITING))
        assert served.stop() == 0


def test_serve_does_not_wait_for_another_serving_process(tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "store") as store, offer(store):
        found = cablestore("serve", "--listen", HERE, store=tmp_path / "store")
    assert found.returncode == 2
    assert "Only one process at a time" in found.stderr


def test_the_wait_for_the_store_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BUSY_STORE_WAIT_S", 0.0)
    with (
        CableStore.open(tmp_path / "store"),
        ServePages(None, Output(as_json=False)) as pages,
        pytest.raises(StoreLockedError),
    ):
        open_served(tmp_path / "store", pages, create=False)
