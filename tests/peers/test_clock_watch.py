"""Checks of the clock: which jumps are noticed, and when posts and channels are requested again."""

from __future__ import annotations

from typing import Any

from by_hand import on_standing_loop, running
from clock import SetClock, pass_time
from history import NOW_MS
from peering import Keeper, Log, logged, memory, raw_peer, until
from people import ANN

from cablestore import limits
from cablestore.peers import Node
from cablestore.peers.clock_watch import ClockWatch
from cablestore.protocol.message import ListRequest, PostRequest

JUMP = "the clock was set, or the machine slept"
EARLY = "posts are dated in the future. Check the clock"
DAY_S = 86_400.0


def watch_of(node: Node) -> ClockWatch:
    parts = node.parts
    return ClockWatch(parts.context, parts.intake, parts.sync, parts.reconciler)


def fields(log: Log, message: str) -> list[dict[str, Any]]:
    return [vars(record) for record in log.records if record.getMessage() == message]


@on_standing_loop
async def test_a_change_of_a_minute_is_a_jump_in_either_direction() -> None:
    clock = SetClock(NOW_MS)
    with logged() as log, memory("a", clock=clock) as store:
        async with running(store) as (node, _):
            watch, now_s, jumps = watch_of(node), 1_000.0, []
            for passed_s, clock_ms in (
                (0.0, 0),
                (100.0, 100_000),
                (1.0, 60_999),
                (1.0, 61_000),
                (1.0, -58_999),
                (1.0, -59_000),
                (60.0, 0),
                (1.0, 2**53 - 1 - NOW_MS - 200_000),
            ):
                now_s += passed_s
                clock.now_ms += clock_ms
                before = len(fields(log, JUMP))
                watch.check(now_s)
                jumps += [found["by_s"] for found in fields(log, JUMP)[before:]]
            assert jumps[:-1] == [60, -60, -60]
            assert fields(log, JUMP)[-1]["clock"] == "9999-12-31T23:59:59+00:00"
            assert fields(log, EARLY) == []


@on_standing_loop
async def test_posts_and_channels_are_requested_again_when_early_posts_become_acceptable() -> None:
    """Channels are requested from all peers at most once a minute."""
    clock, post = SetClock(NOW_MS), ANN.text("default", "early")
    with logged() as log, memory("a", clock=clock) as store:
        async with running(store, channels=None, list_every_s=10 * DAY_S) as (node, address):
            peer: Keeper = await raw_peer(address, Keeper, posts=[])
            await until(lambda: peer.requests_of(ListRequest))
            [link] = node.connections
            watch, early, now_s = watch_of(node), node.parts.intake.early, 1_000.0
            early.reject(post.hash, NOW_MS + 10_000, link)
            watch.check(now_s)
            [warning] = fields(log, EARLY)
            assert (warning["refused"], warning["stored"]) == (1, 0)
            clock.now_ms += 10_000
            watch.check(now_s + 10.0)
            await until(lambda: peer.requests_of(PostRequest))
            assert peer.requests_of(PostRequest)[0].hashes == (post.hash,)
            assert len(peer.requests_of(ListRequest)) == 1
            for later_s, count in ((20.0, 2), (79.0, 2), (80.0, 3)):
                if later_s != 80.0:
                    early.reject(bytes(32), clock.now_ms, None)  # nobody is known to have it
                clock.now_ms = NOW_MS + int(later_s * 1000)
                watch.check(now_s + later_s)
                if count == len(peer.requests_of(ListRequest)) + 1:
                    await until(lambda count=count: len(peer.requests_of(ListRequest)) == count)  # type: ignore[misc] # the argument has its default
                assert len(peer.requests_of(ListRequest)) == count
                if later_s == 79.0:
                    await pass_time(
                        limits.CHANNELS_REQUESTED_EVERY_S + 0.05
                    )  # less than a second: the node's own checks
            for later_s, warnings in ((DAY_S - 1, 1), (DAY_S, 2)):
                early.reject(bytes(32), clock.now_ms + 2 * int(DAY_S * 1000), None)
                clock.now_ms = NOW_MS + int(later_s * 1000)
                watch.check(now_s + later_s)
                assert len(fields(log, EARLY)) == warnings
            await peer.close()
