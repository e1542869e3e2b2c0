"""The quota of a store: which posts are accepted near it, that it holds, and what arrives after it is raised."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from by_hand import on_loop
from history import NOW_MS
from peering import QUICK, memory, network, until
from people import ANN, BOB, raws

from cablestore import CableStore, Post, StoreOptions, limits
from cablestore.files import disk_usage
from cablestore.peers import Node, NodeSettings
from cablestore.peers.quota import QuotaLimits
from cablestore.remote.checkpoint import checkpoint

CHOICE = random.Random(__name__)


def large(number: int, channel: str = "default", size_bytes: int = 4_000) -> tuple[Post, ...]:
    """Return new texts that cannot be compressed."""
    return tuple(
        ANN.text(channel, CHOICE.randbytes(size_bytes // 2).hex(), at=NOW_MS - 1000 * n) for n in range(number)
    )


@contextmanager
def on_disk(*posts: Post) -> Iterator[CableStore]:
    with (
        TemporaryDirectory() as folder,
        CableStore.open(Path(folder) / "store", create=True, options=StoreOptions(clock=lambda: NOW_MS + 1)) as store,
    ):
        store.ingest(raws(*posts), verify=False)
        yield store


def size_of(store: CableStore) -> int:
    assert store.path is not None
    usage = disk_usage(store.path)
    assert usage is not None
    return usage.store_size_bytes


def near(store: CableStore, settings: NodeSettings = QUICK) -> NodeSettings:
    """Return settings with a quota of which 4 % are left."""
    return replace(settings, max_store_size_bytes=int(size_of(store) / 0.96))


def held(node: Node, posts: tuple[Post, ...]) -> list[bool]:
    return [node.store.get(post.hash) is not None for post in posts]


def rejected(node: Node) -> float:
    value = node.parts.context.metrics.registry.get_sample_value
    return value("cablestore_rejected_posts_total", {"reason": "quota"}) or 0.0


@on_loop
async def test_near_the_quota_new_texts_of_joined_channels_and_actions_are_accepted() -> None:
    new, old = NOW_MS - limits.QUOTA_NEWEST_MS + 60_000, NOW_MS - limits.QUOTA_NEWEST_MS
    wanted = (BOB.text("default", "new", at=new), BOB.join("other", at=old), BOB.named("bob", at=new))
    unwanted = (BOB.text("default", "old", at=old), BOB.text("other", "new", at=new))
    with on_disk(*large(500)) as store:
        store.join("default")
        async with network(memory("talks", posts=(*wanted, *unwanted))) as net:
            node = await net.add(store, near(store))
            assert node.load().quota == "near"
            await net.link(node, net.nodes[0])
            await until(lambda: all(held(node, wanted)) and rejected(node) == 2)
            assert held(node, unwanted) == [False, False]
            own = store.post("other", "an own post")
            assert store.get(own.hash) is not None
            node.change_settings(replace(node.settings, max_store_size_bytes=0))
            await until(lambda: all(held(node, unwanted)))
            assert node.load().quota == "off"
            await net.stop(node)


@on_loop
async def test_an_address_uses_only_its_share_near_the_quota() -> None:
    flood = large(60, size_bytes=600)
    honest = tuple(BOB.text("default", f"{n}", at=NOW_MS - 1000 * n) for n in range(20))
    with on_disk(*large(500)) as store:
        async with network(memory("flood", posts=flood), memory("honest", posts=honest)) as net:
            node = await net.add(store, near(store))
            await net.link(net.nodes[0], node)
            await until(lambda: sum(held(node, flood)) + rejected(node) >= len(flood))
            share_bytes = node.settings.max_store_size_bytes * limits.QUOTA_MARGIN * limits.QUOTA_SHARE
            assert 0 < sum(len(post.raw) for post in flood if store.get(post.hash)) <= share_bytes
            await net.link(node, net.nodes[1])
            await until(lambda: all(held(node, honest)))
            await net.stop(node)


@on_loop
async def test_searches_and_checkpoints_do_not_use_the_quota() -> None:
    """The index contains each text again, and a checkpoint has a second link to each table."""
    with on_disk(*large(500)) as store:
        store.compact()
        settings = near(store)
        store.update_search_index()
        with checkpoint(store):
            async with network() as net:
                node = await net.add(store, settings)
                assert node.load().quota == "near"
                await net.stop(node)


@on_loop
async def test_a_store_does_not_grow_beyond_its_quota() -> None:
    posts = large(2_000)
    with on_disk() as store:
        async with network(memory("talks", posts=posts)) as net:
            settings = replace(QUICK, max_store_size_bytes=3_000_000)
            node = await net.add(store, settings)
            await net.link(node, net.nodes[0])
            await until(lambda: sum(held(node, posts)) + rejected(node) >= len(posts))
            assert node.load().quota in ("full", "exceeded")
            assert 500 < sum(held(node, posts)) < 800
            assert size_of(store) < 2 * settings.max_store_size_bytes  # a compaction writes a second copy first
            node.change_settings(replace(settings, max_store_size_bytes=50_000_000))
            await until(lambda: all(held(node, posts)))
            await net.stop(node)


@on_loop
async def test_the_disk_is_measured_even_without_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """QUOTA_MEASURED_EVERY_S: another program writes a file, which is part of the folder's size."""
    monkeypatch.setattr(limits, "QUOTA_MEASURED_EVERY_S", 0.1)
    with on_disk() as store:
        async with network(memory("talks")) as net:
            node = await net.add(store, replace(QUICK, max_store_size_bytes=10_000_000))
            assert node.load().quota == "ok"
            assert store.path is not None
            (store.path / "foreign").write_bytes(bytes(9_500_000))
            await until(lambda: node.load().quota == "near")
            (store.path / "foreign").unlink()
            await until(lambda: node.load().quota == "ok")
            await net.stop(node)


@on_loop
async def test_at_the_quota_actions_are_accepted_and_texts_are_not() -> None:
    action, text = BOB.join("default", at=NOW_MS), BOB.text("default", "text", at=NOW_MS)
    with on_disk(*large(500)) as store:
        async with network(memory("talks", posts=(action, text))) as net:
            node = await net.add(store, replace(QUICK, max_store_size_bytes=int(size_of(store) / 1.04)))
            assert node.load().quota == "full"
            await net.link(node, net.nodes[0])
            await until(lambda: held(node, (action,)) == [True] and rejected(node) == 1)
            assert held(node, (text,)) == [False]
            await net.stop(node)


@on_loop
async def test_the_states_begin_at_exact_sizes() -> None:
    with on_disk() as store:
        async with network() as net:
            node = await net.add(store, replace(QUICK, max_store_size_bytes=100_000_000))
            quota, margin = node.parts.quota, int(100_000_000 * limits.QUOTA_MARGIN)
            assert quota.room_bytes is not None
            assert size_of(store) == 100_000_000 - quota.room_bytes
            for room, state in (
                (margin + 1, "ok"),
                (margin, "near"),
                (1, "near"),
                (0, "full"),
                (1 - margin, "full"),
                (-margin, "exceeded"),
            ):
                quota.accept(0, quota.room_bytes - room)
                assert (quota.room_bytes, quota.state) == (room, state)
            quota.accept(2, 5)
            assert quota.room_bytes == -margin - 2_005  # the rows of a post are about as large as a short text
            await until(lambda: quota.state == "ok")  # it was measured again
            await net.stop(node)


@on_loop
async def test_a_state_ends_when_a_reserve_is_free() -> None:
    """Near the quota, only texts of joined channels are accepted."""
    with on_disk() as store:
        store.join("default")
        async with network() as net:
            node = await net.add(store, replace(QUICK, max_store_size_bytes=100_000_000))
            quota = node.parts.quota
            used = size_of(store)

            async def state_with(room: int) -> str:
                quota.change(QuotaLimits(used + room))
                await quota.measure()
                assert quota.room_bytes == room
                return quota.state

            margin = int(used * limits.QUOTA_MARGIN)
            reserve = int((used + margin // 16) * limits.QUOTA_MARGIN) // 16
            states = [await state_with(room) for room in (1, 0, 1, reserve, reserve + 2, 0, -margin, 0, reserve + 2)]
            assert states == ["near", "full", "full", "full", "near", "full", "exceeded", "full", "near"]
            joined, other = (BOB.text(name, "x", at=NOW_MS) for name in ("default", "other"))
            assert [quota.rejects(text, None, NOW_MS) for text in (other, joined)] == [True, False]
            assert await state_with(100_000_000) == "ok"
            quota.change(QuotaLimits())
            await quota.measure()
            assert (quota.state, quota.room_bytes) == ("off", None)
            assert not quota.rejects(other, None, NOW_MS)
            await net.stop(node)


def test_the_margin_is_a_part_of_the_smaller_limit() -> None:
    """QUOTA_MARGIN."""
    assert [QuotaLimits(*given).margin_bytes for given in ((0, 0), (500, 0), (0, 700), (500, 700), (700, 500))] == [
        int(smaller * limits.QUOTA_MARGIN) for smaller in (0, 500, 700, 500, 500)
    ]


@on_loop
async def test_posts_that_wait_or_arrive_during_a_measurement_use_room() -> None:
    with on_disk() as store:
        async with network() as net:
            node = await net.add(store, replace(QUICK, max_store_size_bytes=100_000_000))
            quota, writes = node.parts.quota, node.parts.context.writes
            await quota.measure()
            before = quota.room_bytes or 0
            writes.queued_size_bytes += 70_000  # as if they were written before the folder is measured
            measuring = asyncio.ensure_future(quota.measure())
            await asyncio.sleep(0)
            writes.queued_size_bytes -= 70_000
            quota.accept(3, 12_000)
            await measuring
            assert quota.room_bytes == before - 70_000 - 15_000
            await quota.measure()
            assert quota.room_bytes == before
            await net.stop(node)


@on_loop
async def test_an_address_has_an_exact_share_each_day() -> None:
    """QUOTA_SHARE, QUOTA_NEWEST_MS: rejected posts are not charged."""
    with on_disk() as store:
        store.join("default")
        async with network() as net:
            node = await net.add(store, replace(QUICK, max_store_size_bytes=10_000_000))
            quota, margin = node.parts.quota, int(10_000_000 * limits.QUOTA_MARGIN)
            now_ms = NOW_MS - NOW_MS % 86_400_000
            old, new = (
                ANN.text("default", "x" * 3_000, at=now_ms - limits.QUOTA_NEWEST_MS + more_ms) for more_ms in (0, 1)
            )
            assert not quota.rejects(old, "192.0.2.1", now_ms)
            quota.accept(0, (quota.room_bytes or 0) - margin // 2)
            before = quota.room_bytes or 0
            assert quota.rejects(old, None, now_ms)
            assert quota.room_bytes == before
            posts = int(margin * limits.QUOTA_SHARE) // len(new.raw)
            assert 1 < posts < 50
            for address in ("192.0.2.1", "192.0.2.2"):
                found = [quota.rejects(new, address, now_ms) for _ in range(posts + 2)]
                assert found == [False] * posts + [True] * 2
                smaller = BOB.join("default", at=now_ms)
                assert quota.rejects(smaller, address, now_ms) is (
                    posts * len(new.raw) + len(smaller.raw) > margin * limits.QUOTA_SHARE
                )
            assert not quota.rejects(new, None, now_ms)
            charged = (2 * posts + 1) * (len(new.raw) + 1_000)
            assert before - (quota.room_bytes or 0) - charged in (0, 2 * (len(smaller.raw) + 1_000))
            tomorrow_ms = now_ms + 86_400_000
            assert quota.rejects(smaller, "192.0.2.1", tomorrow_ms - 1) is quota.rejects(smaller, "192.0.2.2", now_ms)
            later = ANN.text("default", "x" * 3_000, at=tomorrow_ms)
            assert [quota.rejects(later, "192.0.2.1", tomorrow_ms) for _ in range(posts + 1)] == [False] * posts + [
                True
            ]
            await net.stop(node)


@pytest.mark.parametrize("settings", [replace(QUICK, min_free_space_bytes=2**60)])
@on_loop
async def test_only_own_posts_are_stored_if_the_disk_lacks_the_required_free_space(settings: NodeSettings) -> None:
    post, action = BOB.text("default", "text", at=NOW_MS), BOB.join("default", at=NOW_MS)
    with on_disk() as store:
        async with network(memory("talks", posts=(post, action))) as net:
            node = await net.add(store, settings)
            assert node.load().quota == "exceeded"
            await net.link(node, net.nodes[0])
            await until(lambda: rejected(node) >= 2)
            assert held(node, (post, action)) == [False, False]
            assert store.get(store.post("default", "own").hash) is not None
            await net.stop(node)
