"""Received posts: which are rejected and why, and when those that are too early are requested again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from by_hand import ByHand, on_loop, running
from clock import BlockingClock, SetClock
from history import NOW_MS
from peering import memory, soon, until
from people import ANN, BOB, Person

from cablestore import LEGACY, Text, encode_post, limits
from cablestore.errors import StoreClosedError
from cablestore.index.arrival_log import entries
from cablestore.index.verdict import Verdict
from cablestore.peers.rejected_posts import RejectionReason


def policy(folder: Path, *lines: str) -> Path:
    path = folder / "policy.toml"
    path.write_text("\n".join(lines))
    return path


@on_loop
async def test_posts_of_the_longest_permitted_size_and_own_posts_are_accepted(tmp_path: Path) -> None:
    fits, longer = ANN.text("default", "x"), ANN.text("default", "xy")
    assert len(longer.raw) == len(fits.raw) + 1
    path = policy(tmp_path, "[posts]", f"max-size = {len(fits.raw)}")
    with memory() as store:
        own = encode_post(
            Text("default", "xyz"), links=(), timestamp_ms=NOW_MS, identity=store.identity, dialect=LEGACY
        )
        async with running(store, policy_path=path) as (node, address):
            link = await (await ByHand.connect(address)).known_to(node)
            judge = node.parts.judge
            for given in ([fits, longer, own], [longer], [fits, own]):
                found = await judge.judge([*(post.raw for post in given), b"malformed"], link)
                expected = [RejectionReason.SIZE if post is longer else None for post in given]
                assert [outcome and outcome.reason for outcome in found.outcomes] == [*expected, None]
                assert not found.is_verified


@on_loop
async def test_posts_above_the_rate_of_their_author_are_due_later(tmp_path: Path) -> None:
    """POSTPONED_S: posts with wrong signatures do not count for the author that they name."""
    path = policy(tmp_path, "[authors]", "posts-per-minute = 1")
    clock = SetClock(NOW_MS)
    with memory(clock=clock) as store:
        async with running(store, policy_path=path) as (node, address):
            link = await (await ByHand.connect(address)).known_to(node)
            forged = bytearray(Person("forger").text("default", "x").raw)
            forged[:32] = ANN.key
            claimed = bytes(forged[:-1]) + b"y"
            own = store.public_key or b""
            posts = [
                claimed,
                own + claimed[32:],
                ANN.text("default", "1").raw,
                ANN.text("default", "2").raw,
                BOB.text("default", "3").raw,
                b"malformed",
            ]
            outcomes = await node.parts.intake.store(link, posts, link)
            assert [outcome.verdict for outcome in outcomes] == [
                Verdict.BAD_SIGNATURE,
                Verdict.BAD_SIGNATURE,
                Verdict.ACCEPTED,
                Verdict.POSTPONED,
                Verdict.ACCEPTED,
                Verdict.MALFORMED,
            ]
            postponed, due_ms = node.parts.intake.postponed, NOW_MS + int(limits.POSTPONED_S * 1000)
            assert len(postponed) == node.load().postponed_posts == 1
            assert not postponed.take_due(due_ms - 1).hashes
            assert postponed.take_due(due_ms).hashes == {link: [outcomes[3].hash]}
            metrics = node.parts.context.metrics.registry
            assert metrics.get_sample_value("cablestore_rejected_posts_total", {"reason": "author_rate"}) == 1
            assert metrics.get_sample_value("cablestore_posts_in_total", {"verdict": "postponed"}) == 1
            assert metrics.get_sample_value("cablestore_posts_in_total", {"verdict": "accepted"}) == 2


@on_loop
async def test_a_post_that_is_too_early_is_due_when_the_store_accepts_it() -> None:
    """MAX_FUTURE_MS."""
    post, clock = ANN.text("default", "early", at=NOW_MS + 10 + limits.MAX_FUTURE_MS), SetClock(NOW_MS)
    with memory(clock=clock) as store:
        async with running(store) as (node, address):
            link = await (await ByHand.connect(address)).known_to(node)
            early, due_ms = node.parts.intake.early, NOW_MS
            while not early.take_due(due_ms).hashes:
                due_ms += 1
                clock.now_ms = due_ms - 1
                [outcome] = await node.parts.intake.store(link, [post.raw], link)
                assert outcome.verdict is Verdict.TOO_FAR_AHEAD
                assert due_ms < NOW_MS + 20
            clock.now_ms = due_ms
            [outcome] = await node.parts.intake.store(link, [post.raw], link)
            assert outcome.verdict is Verdict.ACCEPTED


@pytest.mark.parametrize("by", ["policy", "quota"])
@on_loop
async def test_only_rejections_that_were_outdated_before_the_write_are_judged_again(tmp_path: Path, by: str) -> None:
    """The change occurs while the other posts are written. All outcomes are in the order of the posts."""
    path = policy(tmp_path, "[channels]", 'deny = ["spam"]')
    clock = BlockingClock(NOW_MS)
    names = ["spam", "default", "spam", "spam", "default"]
    posts = [ANN.text(name, f"{number}") for number, name in enumerate(names)]
    with memory(clock=clock) as store:
        async with running(store, policy_path=path) as (node, address):
            link = await (await ByHand.connect(address)).known_to(node)
            outcomes = node.parts.intake.store(link, [post.raw for post in posts])
            await until(clock.is_reached.is_set)
            if by == "policy":
                path.write_text("")
                assert node.reload_policy()
            else:
                node.parts.intake.rejected.forget(RejectionReason.QUOTA)
            clock.passes.set()
            found = await soon(outcomes)
            assert [outcome.hash for outcome in found] == [post.hash for post in posts]
            rejected = Verdict.ACCEPTED if by == "policy" else Verdict.REJECTED
            expected = [rejected if name == "spam" else Verdict.ACCEPTED for name in names]
            assert [outcome.verdict for outcome in found] == expected
            assert len(node.parts.intake.rejected) == (0 if by == "policy" else 3)
            again = await soon(node.parts.intake.store(link, [posts[0].raw]))
            assert [outcome.verdict for outcome in again] == [Verdict.REJECTED if by == "quota" else Verdict.DUPLICATE]


@on_loop
async def test_posts_of_one_peer_are_stored_in_their_order(tmp_path: Path) -> None:
    """The first wait for the rate of the policy. When it is lifted, the last need no judgement."""
    path = policy(tmp_path, "[peers]", "posts-per-minute = 1", "burst = 1")
    clock = SetClock(NOW_MS)
    share, *first = [ANN.text("first", f"{number}") for number in range(4)]
    later = [ANN.text("later", f"{number}") for number in range(3)]
    with memory(clock=clock) as store:
        async with running(store, policy_path=path) as (node, address):
            link = await (await ByHand.connect(address)).known_to(node)
            await soon(node.parts.intake.store(link, [share.raw]))
            outcomes = node.parts.intake.store(link, [post.raw for post in first])
            await asyncio.sleep(0)  # they wait for their share
            path.write_text("")
            assert node.reload_policy()  # the later posts have no rules to wait for
            last = node.parts.intake.store(link, [post.raw for post in later])
            assert {outcome.verdict for outcome in [*await soon(outcomes), *await soon(last)]} == {Verdict.ACCEPTED}
            with store.snapshot() as state:
                arrived = [entry.hash for entry in entries(state.reader, 0)]
            assert arrived == [post.hash for post in (share, *first, *later)]


@pytest.mark.parametrize("rules", ["", '[channels]\ndeny = ["spam"]'], ids=["without rules", "with rules"])
@on_loop
async def test_posts_are_judged_by_the_policy_of_the_moment_when_they_are_written(tmp_path: Path, rules: str) -> None:
    """The policy changes while posts wait in the queue behind others."""
    path, clock = policy(tmp_path, rules), BlockingClock(NOW_MS)
    with memory(clock=clock) as store:
        async with running(store, policy_path=path) as (node, address):
            link = await (await ByHand.connect(address)).known_to(node)
            writes, before = node.parts.context.writes, ANN.text("default", "1")
            first = node.parts.intake.store(link, [before.raw])
            await until(clock.is_reached.is_set)
            queued = node.parts.intake.store(link, [ANN.text("default", "2").raw, ANN.text("denied", "3").raw])
            await until(lambda: writes.queued_size_bytes > len(before.raw))
            path.write_text('[channels]\ndeny = ["denied"]')
            assert node.reload_policy()
            clock.passes.set()
            assert [outcome.verdict for outcome in await soon(first)] == [Verdict.ACCEPTED]
            assert [outcome.verdict for outcome in await soon(queued)] == [Verdict.ACCEPTED, Verdict.REJECTED]


@pytest.mark.parametrize("rules", ["", '[channels]\ndeny = ["spam"]'], ids=["without rules", "with rules"])
@on_loop
async def test_posts_that_a_closed_store_cannot_take_raise_its_error(tmp_path: Path, rules: str) -> None:
    with memory() as store:
        async with running(store, policy_path=policy(tmp_path, rules)) as (node, address):
            link = await (await ByHand.connect(address)).known_to(node)
            store.close()
            with pytest.raises(StoreClosedError):
                await soon(node.parts.intake.store(link, [ANN.text("default", "x").raw]))


@on_loop
async def test_posts_that_wait_for_their_share_are_postponed_when_the_node_stops(tmp_path: Path) -> None:
    path = policy(tmp_path, "[peers]", "posts-per-minute = 1", "burst = 1")
    with memory(clock=SetClock(NOW_MS)) as store:
        async with running(store, policy_path=path) as (node, address):
            link = await (await ByHand.connect(address)).known_to(node)
            await soon(node.parts.intake.store(link, [ANN.text("default", "share").raw]))
            waiting = node.parts.intake.store(link, [ANN.text("default", "waits").raw])
            await asyncio.sleep(0)
            assert not waiting.done()
        assert [outcome.verdict for outcome in await soon(waiting)] == [Verdict.POSTPONED]
