"""Live requests over real sockets: new posts are announced once to the peers with a matching request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from by_hand import ByHand, deliver, listening, offered, on_loop
from history import histories
from hypothesis import given, settings
from hypothesis import strategies as st
from peering import ANSWERS_ONLY, QUICK, Raw, memory, network, raw_peer, run, until
from people import ANN, BOB, CYD, START_MS, Person, raws
from stores import public

from cablestore import DRAFT8, LEGACY, CableStore, Dialect, Info, Post, Role, Verdict, limits
from cablestore.peers import Node
from cablestore.protocol.message import (
    CancelRequest,
    HashResponse,
    ListRequest,
    Message,
    ModerationRequest,
    PostRequest,
    StateRequest,
    TimeRangeRequest,
)
from cablestore.store import answers

CHANNEL = "default"


def at(second: int) -> int:
    return START_MS + 1000 * second


@asynccontextmanager
async def asking(*posts: Post) -> AsyncIterator[tuple[Node, CableStore, Raw]]:
    """Yield a node with these posts, and a raw peer that is connected to it."""
    async with network(memory("a", posts=posts), settings=ANSWERS_ONLY) as net:
        peer = await raw_peer(net.addresses[net.nodes[0]])
        yield net.nodes[0], net.nodes[0].store, peer
        assert not net.log.faults()
        await peer.close()


async def settled(peer: Raw) -> None:
    """Wait until all stored posts are announced: the last stored post is announced last."""
    number = len(peer.received)
    request_id = peer.send_request(ListRequest(b"", 0, 0))
    await until(lambda: peer.is_concluded(request_id), lambda: peer.received[number:])


async def quiet(peer: Raw, number: int, asked: bytes, wait_s: float = 0.1) -> list[bytes]:
    """Wait for N hashes, and a moment longer for an extra one."""
    await until(lambda: len(peer.hashes(asked)) >= number, lambda: peer.received)
    await asyncio.sleep(wait_s)
    return peer.hashes(asked)


# --- time ranges -------------------------------------------------------------------------------


def test_a_post_is_not_announced_to_the_peer_that_sent_it() -> None:
    """Others get it. The peer itself gets it again if the post counts again."""

    @on_loop
    async def scenario() -> None:
        first, second = (ANN.topic(CHANNEL, text, at=at(n)) for n, text in enumerate(("first", "second")))
        posts = {post.hash: post for post in (first, second, ANN.text(CHANNEL, "words", at=at(3)))}
        async with listening(channels=frozenset([CHANNEL])) as (node, address):
            giver, other = await ByHand.connect(address), await ByHand.connect(address)
            live: list[Message] = [
                TimeRangeRequest(giver.new_id(), CHANNEL, 0, 0, 50),
                StateRequest(giver.new_id(), CHANNEL, 1),
            ]
            giver.send(*live)
            other.send(*live)
            await offered(giver, tuple(posts))
            await deliver(giver, posts)
            received: set[bytes] = set()
            while len(received) < len(posts):
                received |= announced(await other.receive())
            deletion = ANN.delete(second, at=at(5))
            node.store.ingest([deletion.raw])
            received.clear()
            while len(received) < 2:
                received |= announced(await giver.receive())
            assert received == {deletion.hash, first.hash}

    scenario()


def announced(message: Message | None) -> set[bytes]:
    return set(message.hashes) if isinstance(message, HashResponse) else set()


def test_history_and_live_hashes_share_the_limit() -> None:
    async def main() -> None:
        known = [ANN.text(CHANNEL, str(n), at=at(n)) for n in range(3)]
        async with asking(*known) as (node, store, peer):
            asked = peer.send_request(TimeRangeRequest(b"", CHANNEL, at(1), 0, 4))
            assert await quiet(peer, 2, asked) == [known[2].hash, known[1].hash]
            assert not peer.is_concluded(asked)
            early = ANN.text(CHANNEL, "before the start", at=at(0) + 1)
            elsewhere = ANN.text("elsewhere", "x", at=at(5))
            changes = [BOB.text(CHANNEL, str(n), at=at(n)) for n in (6, 7, 8)]
            store.ingest(raws(early, elsewhere, *changes))
            await until(lambda: peer.is_concluded(asked))
            assert peer.hashes(asked)[2:] == [post.hash for post in changes[:2]]
            assert not node.parts.serving.live.count

    run(main())


def test_deletions_are_announced_in_the_channel_of_the_deleted_post() -> None:
    async def main() -> None:
        here, there = ANN.text(CHANNEL, "x", at=at(1)), ANN.text("there", "x", at=at(2))
        late = ANN.text(CHANNEL, "comes dead", at=at(3))
        async with asking(here, there) as (_, store, peer):
            in_channel = peer.send_request(TimeRangeRequest(b"", CHANNEL, 0, 0, 0))
            in_there = peer.send_request(TimeRangeRequest(b"", "there", 0, 0, 0))
            await quiet(peer, 1, in_channel)
            both, waits = ANN.delete(here, there, at=at(4)), ANN.delete(late, at=at(5))
            store.ingest(raws(both, waits))
            assert await quiet(peer, 2, in_channel) == [here.hash, both.hash]
            assert await quiet(peer, 2, in_there) == [there.hash, both.hash]
            store.ingest(raws(late))  # only now the channel of its deletion is known
            assert await quiet(peer, 3, in_channel) == [here.hash, both.hash, waits.hash]

    run(main())


@pytest.mark.thorough
def test_a_deletion_of_two_texts_is_announced_once() -> None:
    async def main() -> None:
        texts = [ANN.text(CHANNEL, str(n), at=at(n)) for n in range(2)]
        async with asking(*texts) as (_, store, peer):
            asked = peer.send_request(TimeRangeRequest(b"", CHANNEL, 0, 0, 0))
            await quiet(peer, 2, asked)
            both = ANN.delete(*texts, at=at(4))
            store.ingest(raws(both))
            assert (await quiet(peer, 3, asked))[2:] == [both.hash]

    run(main())


def test_every_deletion_of_a_deleted_post_is_announced() -> None:
    """The channel's time range lists all of them, up to MAX_DELETIONS_LISTED."""

    async def main() -> None:
        text = ANN.text(CHANNEL, "x", at=at(0))
        second = ANN.delete(text, at=at(5))
        async with asking(text, second) as (_, store, peer):
            asked = peer.send_request(TimeRangeRequest(b"", CHANNEL, 0, 0, 0))
            assert await quiet(peer, 1, asked) == [second.hash]
            first, third = ANN.delete(text, at=at(4)), ANN.delete(text, at=at(6))
            store.ingest(raws(first))
            store.ingest(raws(third, BOB.text(CHANNEL, "y", at=at(7))))
            assert (await quiet(peer, 4, asked))[:3] == [second.hash, first.hash, third.hash]

    run(main())


@settings(max_examples=settings().max_examples // 8)
@given(st.integers(0, 2**32).map(Random))
def test_nothing_is_lost_or_sent_twice_between_history_and_live_hashes(choice: Random) -> None:
    """Posts are stored at the same time as others send requests."""
    posts = [ANN.text(CHANNEL, str(n), at=at(n)) for n in range(150)]

    async def main() -> None:
        async with asking(*posts[:30]) as (node, store, peer):
            asked: list[bytes] = []

            def write() -> None:
                for post in posts[30:]:
                    store.ingest([post.raw])

            thread = threading.Thread(target=write)
            thread.start()
            while thread.is_alive() or not asked:
                if len(asked) > limits.MAX_LIVE_ALIKE // 2:
                    peer.say(CancelRequest(b"\xffcan", asked.pop(0)))
                asked.append(peer.send_request(TimeRangeRequest(b"", CHANNEL, 0, 0, 0)))
                if choice.random() < 0.3:
                    peer.say(CancelRequest(b"\xffcan", asked.pop()))
                await asyncio.sleep(choice.random() * 0.01)
            thread.join()
            for one in asked:
                assert len(await quiet(peer, len(posts), one, wait_s=0)) == len(posts)
            await asyncio.sleep(0.05)
            for one in asked:
                found = peer.hashes(one)
                assert len(found) == len(set(found)) == len(posts)
            assert node.parts.serving.live.count == len(asked)

    run(main())


@pytest.mark.thorough("state")
@pytest.mark.parametrize(
    "request_",
    [TimeRangeRequest(b"", CHANNEL, 0, 0, 0), StateRequest(b"", CHANNEL, 1), ModerationRequest(b"", (CHANNEL,), 1, 0)],
    ids=["range", "state", "moderation"],
)
def test_a_cancel_ends_a_live_request(request_: Any) -> None:
    async def main() -> None:
        async with asking(ANN.text(CHANNEL, "x")) as (node, store, peer):
            asked, other = peer.send_request(request_), peer.send_request(TimeRangeRequest(b"", CHANNEL, 0, 0, 0))
            await until(lambda: node.parts.serving.live.count == 2)
            await quiet(peer, 1, other)
            peer.say(CancelRequest(b"\xffcan", asked))
            await until(lambda: node.parts.serving.live.count == 1)
            before = len(peer.answers_to(asked))
            store.ingest(raws(ANN.join(CHANNEL), ANN.topic(CHANNEL, "t"), BOB.text(CHANNEL, "y"), act()))
            await quiet(peer, 2, other)
            assert len(peer.answers_to(asked)) == before

    run(main())


# --- state -------------------------------------------------------------------------------------


def test_posts_that_replace_deleted_ones_are_announced() -> None:
    """The posts that replace the deleted ones are announced: the previous topic, join and info."""

    async def main() -> None:
        topics = [ANN.topic(CHANNEL, str(n), at=at(n)) for n in range(2)]
        joins = [ANN.join(CHANNEL, at=at(n)) for n in range(2)]
        infos = [ANN.named(str(n), at=at(n)) for n in range(2)]
        async with asking(*topics, *joins, *infos) as (_, store, peer):
            asked = peer.send_request(StateRequest(b"", CHANNEL, 1))
            now = await quiet(peer, 3, asked)
            assert set(now) == {topics[1].hash, joins[1].hash, infos[1].hash}
            for kind in (topics, joins, infos):
                before = len(peer.hashes(asked))
                store.ingest(raws(ANN.delete(kind[1], at=at(10))))
                assert kind[0].hash in (await quiet(peer, before + 1, asked))[before:]

    run(main())


def test_a_state_has_the_info_of_a_user_whose_leave_is_deleted() -> None:
    async def main() -> None:
        here, leaves, named = ANN.text(CHANNEL, "x", at=at(0)), ANN.leave(CHANNEL, at=at(1)), ANN.named("Ann", at=at(0))
        async with asking(here, leaves, named) as (_, store, peer):
            asked = peer.send_request(StateRequest(b"", CHANNEL, 1))
            assert await quiet(peer, 1, asked) == [leaves.hash]
            store.ingest(raws(ANN.delete(leaves, at=at(2))))
            assert await quiet(peer, 2, asked) == [leaves.hash, named.hash]

    run(main())


@pytest.mark.thorough
def test_a_state_has_the_info_of_a_user_who_left_and_writes_again() -> None:
    async def main() -> None:
        leaves, named = ANN.leave(CHANNEL, at=at(1)), ANN.named("Ann", at=at(0))
        async with asking(leaves, named) as (_, store, peer):
            asked = peer.send_request(StateRequest(b"", CHANNEL, 1))
            assert await quiet(peer, 1, asked) == [leaves.hash]
            store.ingest(raws(ANN.text(CHANNEL, "x", at=at(2))))
            assert await quiet(peer, 2, asked) == [leaves.hash, named.hash]

    run(main())


def test_a_state_has_the_infos_of_new_members_and_new_names_of_members() -> None:
    async def main() -> None:
        bob_is, cyd_is = BOB.named("Bob", at=at(1)), CYD.named("Cyd", at=at(1))
        async with asking(bob_is, cyd_is, ANN.text(CHANNEL, "x", at=at(1))) as (_, store, peer):
            asked = peer.send_request(StateRequest(b"", CHANNEL, 1))
            elsewhere = peer.send_request(StateRequest(b"", "elsewhere", 1))
            await settled(peer)
            joins, says = BOB.join(CHANNEL, at=at(2)), CYD.text(CHANNEL, "hi", at=at(2))
            store.ingest(raws(joins, says))
            assert set(await quiet(peer, 3, asked)) == {joins.hash, bob_is.hash, cyd_is.hash}
            renamed, unknown = BOB.named("Rob", at=at(3)), Person("dan").named("Dan", at=at(3))
            store.ingest(raws(renamed, unknown))
            assert (await quiet(peer, 4, asked))[3:] == [renamed.hash]
            assert not peer.hashes(elsewhere)

    run(main())


@settings(max_examples=settings().max_examples // 7)
@given(histories(), st.integers(0, 2**32).map(Random))
def test_history_and_live_hashes_together_are_the_state(history: tuple[Dialect, list[Post]], choice: Random) -> None:
    """A peer with a request at any moment ends with the same hashes as a peer with a request at the end."""
    dialect, posts = history
    posts = public(posts)
    choice.shuffle(posts)
    cut = choice.randint(0, len(posts))
    channels = sorted({post.channel for post in posts if post.channel})

    async def main() -> None:
        async with network(memory("a", dialect, posts[:cut]), settings=ANSWERS_ONLY) as net:
            node = net.nodes[0]
            peer = await raw_peer(net.addresses[node], dialect=dialect)
            asked = {
                c: (peer.send_request(StateRequest(b"", c, 1)), peer.send_request(TimeRangeRequest(b"", c, 0, 0, 0)))
                for c in channels
            }
            acts = peer.send_request(ModerationRequest(b"", tuple(channels), 1, 0))
            if choice.random() < 0.7:
                await settled(peer)
            for post in posts[cut:]:
                node.store.ingest([post.raw])

            def gaps() -> dict[str, set[bytes]]:
                with node.store.snapshot() as snapshot:
                    reader = snapshot.reader
                    due = {f"state {c}": (one, answers.channel_state(reader, c)) for c, (one, _) in asked.items()}
                    due |= {
                        f"range {c}": (two, answers.channel_time_range(reader, c, 0, 0))
                        for c, (_, two) in asked.items()
                    }
                    due["moderation"] = acts, answers.moderation_state(reader, channels)
                    missing = {name: set(hashes) - set(peer.hashes(one)) for name, (one, hashes) in due.items()}
                return {name: hashes for name, hashes in missing.items() if hashes}

            await until(lambda: not gaps(), lambda: (gaps(), posts[cut:]))
            await peer.close()

    run(main())


# --- moderation --------------------------------------------------------------------------------


def act(second: int = 1, channel: str = CHANNEL, role: int = 1) -> Post:
    return ANN.post(Role("", 0, channel, BOB.key, role), at=at(second))


def test_moderation_requests_stay_live() -> None:
    async def main() -> None:
        old, other = act(1), act(2, "other")
        async with asking(old, other) as (_, store, peer):
            asked = peer.send_request(ModerationRequest(b"", (CHANNEL,), 1, 0))
            assert await quiet(peer, 1, asked) == [old.hash]
            new, foreign = act(3, role=2), act(4, "other", role=2)
            store.ingest(raws(new, foreign, BOB.text(CHANNEL, "x")))
            assert (await quiet(peer, 2, asked))[1:] == [new.hash]
            store.ingest(raws(ANN.delete(new, at=at(5))))
            assert old.hash in (await quiet(peer, 3, asked))[2:], "the replaced action applies again"

    run(main())


def info(second: int, *, accepts: bool | None = None, name: str = "bob") -> Post:
    return BOB.post(Info.of(name=name, accept_role=accepts), at=at(second))


def test_a_rename_is_not_a_moderation_change_but_accepting_roles_again_is() -> None:
    """A peer gets the roles of a user who accepts roles again, each once. It gets nothing when a user is renamed."""

    async def main() -> None:
        given, elsewhere, other = act(1), act(1, "other"), ANN.post(Role("", 0, CHANNEL, CYD.key, 1), at=at(1))
        async with asking(given, elsewhere, other) as (_, store, peer):
            asked = peer.send_request(ModerationRequest(b"", (CHANNEL,), 1, 0))
            assert set(await quiet(peer, 2, asked)) == {given.hash, other.hash}
            store.ingest(raws(info(2, name="Robert"), CYD.named("Cyd", at=at(2)), ANN.named("Ann", at=at(2))))
            store.ingest(raws(info(3, accepts=False)))
            store.ingest(raws(info(4, accepts=False, name="Bobby")))
            await settled(peer)
            assert len(peer.hashes(asked)) == 2
            again = info(5, accepts=True)
            store.ingest(raws(again))
            assert (await quiet(peer, 3, asked))[2:] == [given.hash]
            store.ingest(raws(info(6, name="Bob")))
            await settled(peer)
            assert len(peer.hashes(asked)) == 3

    run(main())


def test_a_role_counts_again_when_the_post_info_that_declined_is_deleted() -> None:
    async def main() -> None:
        given, declines = act(1), info(2, accepts=False)
        async with asking(given, declines) as (_, store, peer):
            asked = peer.send_request(ModerationRequest(b"", (CHANNEL,), 1, 0))
            new = ANN.post(Role("", 0, CHANNEL, CYD.key, 1), at=at(3))
            store.ingest(raws(new))
            assert await quiet(peer, 1, asked) == [new.hash]
            store.ingest(raws(BOB.delete(declines, at=at(4))))
            assert (await quiet(peer, 2, asked))[1:] == [given.hash]

    run(main())


def test_a_rejected_post_info_that_accepts_roles_again_is_a_change() -> None:
    async def main() -> None:
        given = act(1)
        async with asking(given, info(2, accepts=False)) as (_, store, peer):
            block = store.moderation.block([BOB.key]).posts[0]
            asked = peer.send_request(ModerationRequest(b"", (CHANNEL,), 1, 0))
            assert await quiet(peer, 1, asked) == [block.hash]
            assert store.ingest(raws(info(4, accepts=True)))[0].verdict is Verdict.BLOCKED
            assert (await quiet(peer, 2, asked))[1:] == [given.hash]

    run(main())


# --- nodes -------------------------------------------------------------------------------------


@pytest.mark.thorough("draft8")
@pytest.mark.parametrize("dialect", [LEGACY, DRAFT8], ids=lambda d: d.name)
def test_new_posts_reach_all_nodes_of_a_line(dialect: Dialect) -> None:
    """The posts travel along a line of nodes. Known posts are not requested again."""
    ann = Person("ann", dialect)

    async def main() -> None:
        slow = QUICK.__class__(list_every_s=60, relays=False)
        stores = [memory(n, dialect, [ann.text(CHANNEL, "x", at=at(0))]) for n in range(4)]
        async with network(*stores, settings=slow) as net:
            await net.line()
            await until(lambda: sum(node.parts.serving.live.count for node in net.nodes) == 3 * 2 * 3)
            text, topic = ann.text(CHANNEL, "now", at=at(1)), ann.topic(CHANNEL, "now", at=at(2))
            stores[0].ingest(raws(text, topic, ann.join(CHANNEL, at=at(3)), ann.named("Ann", at=at(4))))
            await net.are_alike()
            stores[3].ingest(raws(ann.delete(text, at=at(5))))
            await net.are_alike()
            assert stores[0].get(text.hash) is None
            asked = [c.session for node in net.nodes for c in node.connections]
            assert all(
                not isinstance(e.request, PostRequest) for session in asked for e in session.open_requests.values()
            )

    run(main())
