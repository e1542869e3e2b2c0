"""Repeated runs of `cablestore sync`: new posts of the peer with any date, and another peer at the address."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from people import ANN, BOB, START_MS, raws
from serving import HERE, Served, cablestore, own_host

from cablestore import CableStore, Post

DAY_MS = 86_400_000
NEWEST = [ANN.text("default", f"{n}", at=START_MS + 30 * DAY_MS + n) for n in range(30)]
LATE = [BOB.text("default", f"{n}", at=START_MS + n * DAY_MS) for n in range(9)]
OTHER = [BOB.text("elsewhere", "another store", at=START_MS)]


def fill(folder: Path, posts: list[Post]) -> None:
    with CableStore.open(folder) as store:
        store.ingest(raws(*posts))


def synced(*arguments: str, store: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cablestore("sync", *arguments, "--json", store=store).stdout)
    return found


def lacks(folder: Path, posts: list[Post]) -> int:
    with CableStore.open(folder) as store:
        return sum(store.get(post.hash) is None for post in posts)


@pytest.mark.thorough("any other with a key", "follows one channel")
@pytest.mark.parametrize(
    ("kind", "has_key"),
    [((), False), (("--no-reconcile",), True), (("--channels", "default"), False)],
    ids=["cablestore", "any other with a key", "follows one channel"],
)
def test_each_sync_fetches_the_missing_posts(
    tmp_path: Path, serving: Callable[..., Served], kind: tuple[str, ...], has_key: bool
) -> None:
    """The test covers late old posts, and then another store at the address with posts in a channel it does not follow."""
    here, there, third = tmp_path / "here", tmp_path / "there", tmp_path / "third"
    key = tmp_path / "key"
    key.write_text("22" * 32)
    key.chmod(0o600)
    options = ("--cabal-key", f"@{key}") if has_key else ()
    CableStore.open(here).close()
    fill(there, NEWEST)
    fill(third, OTHER + LATE)
    served = serving(there, "--listen", own_host(), *kind, *options)
    address = served.address
    assert "30 new posts" in cablestore("sync", address, *options, store=here).stdout
    served.stop()
    fill(there, LATE[:5])
    served = serving(there, "--listen", address, *kind, *options)
    assert served.address == address
    assert "5 new posts" in cablestore("sync", address, *options, store=here).stdout
    served.stop()
    assert serving(third, "--listen", address, *kind, *options).address == address
    assert "5 new posts" in cablestore("sync", address, *options, store=here).stdout
    assert lacks(here, NEWEST + LATE + OTHER) == 0
    assert cablestore("sync", address, *options, store=here).stdout.startswith("fetched 0 new posts")


def test_a_sync_with_a_store_transfers_only_differences_in_both_directions(
    tmp_path: Path, serving: Callable[..., Served]
) -> None:
    """A peer that was restored from a backup gets its later posts back."""
    here, there = tmp_path / "here", tmp_path / "there"
    shared = [ANN.text("default", f"{n}", at=START_MS + n) for n in range(1_000)]
    fill(here, [*shared, *LATE])
    fill(there, shared)
    served = serving(there, "--listen", HERE)
    first = synced(served.address, store=here)
    assert first["posts"] == 0
    assert first["received_size_bytes"] + first["sent_size_bytes"] < 20_000
    second = synced(served.address, store=here)
    assert second["received_size_bytes"] + second["sent_size_bytes"] < 4_000
    served.stop()
    assert lacks(there, LATE) == 0
