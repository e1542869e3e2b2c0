"""Rejected actions: leaving a channel without membership, and hiding or blocking oneself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cablestore import CableStore

Run = Callable[..., tuple[int, str, str]]


def held(path: Path) -> tuple[int, list[str]]:
    """Return the number of the last change, and the channels of a store."""
    with CableStore.open(path, create=False) as store:
        return store.last_sequence, [channel.name for channel in store.channels()]


def test_leaving_a_channel_without_membership_is_rejected(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with CableStore.open(path) as store:
        store.post("garden", "hello")
    before = held(path)
    for channel in ("shed", "#shed", "gardens"):
        status, out, err = run("leave", channel, "-s", path)
        assert (status, out) == (2, "")
        assert "you are not a member" in err
    assert held(path) == before
    assert run("leave", "#garden", "-s", path)[0] == 0
    before = held(path)
    assert run("leave", "garden", "-s", path)[0] == 2
    assert held(path) == before


def test_hiding_or_blocking_oneself_is_rejected(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with CableStore.open(path) as store:
        store.set_name("ann")
        digits = store.identity.public_key.hex()[:8]
    before = held(path)
    for action in ("hide", "block"):
        for user in ("ann", digits):
            status, _, err = run(action, user, "-s", path)
            assert status == 2
            assert f"you cannot {action} yourself" in err
    assert held(path) == before
