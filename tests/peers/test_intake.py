"""Received posts: which are rejected and why, and when those that are too early are requested again."""

from __future__ import annotations

from pathlib import Path

from by_hand import ByHand, on_loop, running
from clock import SetClock
from history import NOW_MS
from peering import memory
from people import ANN, BOB, Person

from cablestore import LEGACY, Text, encode_post, limits
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
    """POSTPONED_S: posts with wrong signatures do not count, whoever is named as their author."""
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
