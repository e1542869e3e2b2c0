"""The removal of dropped posts while a node runs: it stops after a batch, and a later one continues it."""

from __future__ import annotations

import asyncio
import logging

import pytest
from by_hand import on_loop
from peering import logged, memory, until
from people import BOB

from cablestore import limits
from cablestore.peers.sweeper import Sweeper

LOG = logging.getLogger("cablestore.node")


@on_loop
async def test_a_removal_stops_after_a_batch_and_the_next_one_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    posts = [BOB.text("default", f"{number}") for number in range(6)]
    monkeypatch.setattr(limits, "MAX_BATCH_SIZE_BYTES", max(len(post.raw) for post in posts) + 1)
    with logged() as log, memory("one", posts=posts) as store:
        store.moderation.drop(posts=[post.hash for post in posts])
        first = Sweeper(store, LOG)
        unwatch = store.watch(first.stop)  # after the first batch
        first.check()
        first.close()
        unwatch()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.check()
        first.close()
        assert store.moderation.is_sweeping
        second = Sweeper(store, LOG)
        for _ in range(2):
            second.check()
            await until(lambda: not store.moderation.is_sweeping)
            assert not any(store.get(post.hash) for post in posts)
            second.close()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            posts = [BOB.text("other", f"{number}") for number in range(6)]
            store.ingest([post.raw for post in posts])
            store.moderation.drop(posts=[post.hash for post in posts])
        second.stop()
        assert log.records == []
