"""Real chat: two nodes, each with a random 90 % of the Raku logs, converge to equal dumps."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from peering import HOST, run, soon, until
from people import raws
from raku_logs import logs_of

from cablestore import CableStore, Post
from cablestore.index.reader import DATA_PREFIX
from cablestore.irc.importer import import_logs
from cablestore.irc.survey import find_logs
from cablestore.peers import Address, Node, ReconcileReport

FEW = frozenset({"raku-doc", "raku-land", "red", "mugs"})


def posts_of(data: Path, folder: Path, channels: frozenset[str] | None) -> list[Post]:
    """Return all posts of a year of these channels."""
    with CableStore.open(folder / "whole") as store:
        import_logs(store, find_logs([logs_of(data, folder / "logs", channels)]), seed_phrase="a phrase")
        with store.snapshot() as snapshot:
            hashes = [bytes.fromhex(key[len(DATA_PREFIX) :].decode()) for key, _ in snapshot.reader.prefix(DATA_PREFIX)]
        return [post for post in map(store.get, hashes) if post is not None]


async def converged(here: CableStore, there: CableStore) -> ReconcileReport:
    """Reconcile beside Cable, and again at the port of reconciliation."""
    async with Node(here) as one, Node(there) as other:
        cable = await one.listen(Address(HOST, 0))
        report = await asyncio.wait_for(other.reconcile_once(cable, over_cable=True), 3_000)
        await until(lambda: not len(one.parts.reconciler))
        again = await soon(other.reconcile_once(await one.reconcile_port.listen(Address(HOST, 0))))
        assert (again.posts_received, again.posts_sent, again.rounds) == (0, 0, 1)
    return report


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("channels", "least_posts"),
    [(FEW, 4_000), pytest.param(None, 250_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])],
    ids=["some channels", "all channels"],
)
def test_stores_with_random_nine_tenths_of_real_posts_converge(
    data: Path, tmp_path: Path, channels: frozenset[str] | None, least_posts: int
) -> None:
    posts = posts_of(data, tmp_path, channels)
    assert len(posts) > least_posts
    rng = random.Random(7)
    held = [{post for post in posts if rng.random() < 0.9} for _ in range(2)]
    stores = [CableStore.open(tmp_path / name) for name in ("here", "there")]
    try:
        for store, some in zip(stores, held, strict=True):
            store.ingest(raws(*some), verify=False)
        report = run(converged(*stores))
        assert (report.posts_received, report.posts_sent) == (len(held[0] - held[1]), len(held[1] - held[0]))
        assert len({store.dump_digest() for store in stores}) == 1
        assert all(store.check().is_clean for store in stores)
    finally:
        for store in stores:
            store.close()
