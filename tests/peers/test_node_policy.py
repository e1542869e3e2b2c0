"""The policy among real nodes: what is rejected, counted, not fetched again, and accepted after a change."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from by_hand import CABAL_KEY, ByHand, deliver, listening, offered, on_loop, only, post_request, running, texts
from clock import BlockingClock, SetClock
from history import NOW_MS
from peering import HOST, QUICK, Keeper, memory, network, raw_peer, soon, until
from people import ANN, BOB, CYD, Person

from cablestore import LEGACY, CableStore, Post, limits
from cablestore.errors import NodeError
from cablestore.index.verdict import Verdict
from cablestore.peers import Address, Node, NodeSettings
from cablestore.peers.connection import PauseReason
from cablestore.peers.policy import Action, Kind
from cablestore.protocol.post import decode_post

pytestmark = pytest.mark.usefixtures("quick_clock")

TALK = tuple(
    who.text(channel, f"{channel} {n}") for n in range(3) for who in (ANN, BOB) for channel in ("default", "spam")
)
RECONCILING = replace(QUICK, reconciles=True, reconcile_delay_ms=50, reconcile_every_s=0.2, reconcile_all_every_s=0.5)
BOTH = pytest.mark.parametrize("settings", [QUICK, RECONCILING], ids=["fetch", "reconcile"])


def chosen(folder: str, text: str, settings: NodeSettings = QUICK) -> NodeSettings:
    """Return settings with a policy."""
    file = Path(folder) / "policy.toml"
    file.write_text(text)
    return replace(settings, policy_path=file)


def rejected(node: Node, reason: str) -> float:
    """Return the number of rejections with a reason."""
    value = node.parts.context.metrics.registry.get_sample_value
    return value("cablestore_rejected_posts_total", {"reason": reason}) or 0.0


def held(store: CableStore, posts: tuple[Post, ...] = TALK) -> set[bytes]:
    return {post.hash for post in posts if store.get(post.hash) is not None}


def of(*authors: Person, channel: str | None = None) -> set[bytes]:
    keys = {who.key for who in authors}
    return {post.hash for post in TALK if post.author in keys and channel in (None, post.channel)}


def change(node: Node, action: Action, kind: Kind, name: str) -> bool:
    """Change the policy as a command does."""
    assert node.control is not None
    return node.control.policies.change(action, kind, name)


@BOTH
@on_loop
async def test_denied_authors_and_channels_are_not_stored_until_the_policy_changes(settings: NodeSettings) -> None:
    with TemporaryDirectory() as folder:
        ours = chosen(folder, f'[authors]\ndeny = ["{BOB.key.hex()}"]\n[channels]\ndeny = ["spam"]\n', settings)
        async with network(memory("talks", posts=TALK), settings=settings) as net:
            node = await net.add(memory("rules"), ours)
            await net.link(node, net.nodes[0])
            await until(lambda: held(node.store) == of(ANN, channel="default"))
            await until(lambda: rejected(node, "author") >= 6 and rejected(node, "channel") >= 3)
            assert change(node, "remove", "author", BOB.key.hex())
            await until(lambda: held(node.store) == of(ANN, BOB, channel="default"))
            (Path(folder) / "policy.toml").write_text("")
            assert node.reload_policy()
            await net.are_alike()
            await net.stop(node)
            node.store.close()


@on_loop
async def test_a_rejected_post_is_not_fetched_again_until_the_policy_changes() -> None:
    posts = {post.hash: post for post in texts(3)}
    with TemporaryDirectory() as folder:
        settings = chosen(folder, f'[authors]\ndeny = ["{ANN.key.hex()}"]\n')
        async with listening(channels=None, list_every_s=0.05, policy_path=settings.policy_path) as (node, address):
            first = await ByHand.connect(address)
            await soon(offered(first, tuple(posts)))
            await soon(deliver(first, posts))
            await until(lambda: rejected(node, "author") == 3)
            other = await ByHand.connect(address)
            await soon(offered(other, (*posts, bytes(32))))
            assert (await soon(post_request(other))).hashes == (bytes(32),)
            assert held(node.store, tuple(posts.values())) == set()
            assert change(node, "remove", "author", ANN.key.hex())
            last = await ByHand.connect(address)
            await soon(offered(last, tuple(posts)))
            await soon(deliver(last, posts))
            await until(lambda: held(node.store, tuple(posts.values())) == posts.keys())


@on_loop
async def test_a_post_that_is_checked_while_the_policy_changes_is_checked_again() -> None:
    [post] = texts(1)
    with TemporaryDirectory() as folder:
        settings = chosen(folder, f'[authors]\ndeny = ["{ANN.key.hex()}"]\n')
        async with listening(channels=None, policy_path=settings.policy_path) as (node, address):
            await ByHand.connect(address)
            await until(lambda: bool(node.connections))
            [link] = node.parts.links
            intake = node.parts.intake
            [first] = await intake.store(link, [post.raw])
            assert first.verdict is Verdict.REJECTED
            judged = intake.store(link, [post.raw])
            assert change(node, "remove", "author", ANN.key.hex())  # the rejection is forgotten after the judgement
            [second] = await judged
            assert second.verdict is Verdict.ACCEPTED
            assert held(node.store, (post,)) == {post.hash}


@BOTH
@on_loop
async def test_posts_of_the_owner_are_stored_with_any_policy(settings: NodeSettings) -> None:
    with TemporaryDirectory() as folder:
        owner, copy = memory("owner"), memory("copy")
        written = owner.post("default", "written before the disk failed")
        copy.ingest([written.raw], verify=False)
        text = f'[authors]\ndeny = ["{written.author.hex()}"]\n[channels]\ndeny = ["default"]\n[posts]\nmax-size = 1\n'
        async with network(copy, settings=settings) as net:
            node = await net.add(memory("owner"), chosen(folder, text, settings))
            await net.link(node, net.nodes[0])
            await until(lambda: node.store.get(written.hash) is not None)
            assert node.store.post("default", "an own post").channel == "default"
            await net.stop(node)
            node.store.close()
        owner.close()


@on_loop
async def test_forged_posts_do_not_use_up_the_rate_of_their_author() -> None:
    """The forger names the author of good posts. Those of the author are stored."""
    forged = {post.hash: post for post in map(forge, texts(5))}
    good = texts(2, "other")
    with TemporaryDirectory() as folder:
        settings = chosen(folder, "[authors]\nposts-per-minute = 1\nburst = 2\n")
        async with listening(channels=None, policy_path=settings.policy_path) as (node, address):
            forger, honest = await ByHand.connect(address), await ByHand.connect(address)
            await soon(offered(forger, tuple(forged)))
            await soon(deliver(forger, forged))
            await until(lambda: count(node, "bad_signature") == 5)
            await soon(offered(honest, tuple(post.hash for post in good)))
            await soon(deliver(honest, {post.hash: post for post in good}))
            await until(lambda: held(node.store, good) == {post.hash for post in good})


@BOTH
@on_loop
async def test_posts_above_the_rate_of_their_author_are_stored_later(settings: NodeSettings) -> None:
    clock = SetClock(NOW_MS)
    talk = tuple(ANN.text("default", f"{n}") for n in range(4))
    with TemporaryDirectory() as folder:
        ours = chosen(folder, "[authors]\nposts-per-minute = 6000\nburst = 1\n", settings)
        async with network(memory("talks", posts=talk), settings=settings, may_complain=True) as net:
            node = await net.add(memory("rules", clock=clock), ours)
            await net.link(node, net.nodes[0])
            await until(lambda: node.load().postponed_posts)

            def have_arrived() -> bool:  # a post may be above the rate again
                clock.now_ms += int(limits.POSTPONED_S * 1000)
                return len(held(node.store, talk)) == len(talk)

            await until(have_arrived)
            await net.are_alike()
            assert rejected(node, "author_rate") > 0
            await net.stop(node)
            node.store.close()


@on_loop
async def test_channels_are_requested_again_if_too_many_posts_are_postponed(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_POSTPONED_POSTS: of further posts only the time is kept, after POSTPONED_OVERFLOW_S."""
    monkeypatch.setattr(limits, "MAX_POSTPONED_POSTS", 2)
    clock = SetClock(NOW_MS)
    talk = tuple(ANN.text("default", f"{n}") for n in range(8))
    with TemporaryDirectory() as folder:
        ours = chosen(folder, "[authors]\nposts-per-minute = 6000\nburst = 1\n")
        async with network(memory("talks", posts=talk), may_complain=True) as net:
            node = await net.add(memory("rules", clock=clock), ours)
            await net.link(node, net.nodes[0])
            await until(lambda: rejected(node, "author_rate") >= 6)
            assert (node.load().postponed_posts, node.load().judged_posts) == (2, 0)

            def have_arrived() -> bool:
                clock.now_ms += int(limits.POSTPONED_OVERFLOW_S * 1000)
                return len(held(node.store, talk)) == len(talk)

            await until(have_arrived)
            await net.stop(node)
            node.store.close()


@on_loop
async def test_the_node_stops_reading_from_a_peer_whose_posts_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_JUDGED_SIZE_BYTES_PER_PEER: posts above the rate of an address wait, up to this size. Others are read."""
    monkeypatch.setattr(limits, "MAX_JUDGED_SIZE_BYTES_PER_PEER", 10_000)
    with TemporaryDirectory() as folder:
        settings = chosen(folder, "[peers]\nposts-per-minute = 1\nburst = 1\n")
        async with listening(channels=None, policy_path=settings.policy_path) as (node, address):
            peer = await raw_peer(address, Keeper, posts=texts(500))
            await until(lambda: node.connections and PauseReason.JUDGING in only(node).pauses)
            other = await ByHand.connect(address)
            assert len(await other.hashes()) < 500
            assert settings.policy_path is not None
            settings.policy_path.write_text("")
            assert node.reload_policy()
            await until(lambda: node.store.stats().posts.get("text") == 500)
            await until(lambda: not any(each.pauses for each in node.connections))
            await peer.close()


@BOTH
@on_loop
async def test_the_rate_of_an_address_delays_posts_without_losing_any(settings: NodeSettings) -> None:
    talk = tuple(CYD.text("default", f"{n}") for n in range(60))
    with TemporaryDirectory() as folder:
        ours = chosen(folder, "[peers]\nposts-per-minute = 6000\nburst = 5\n", settings)
        async with network(memory("talks", posts=talk), settings=settings) as net:
            node = await net.add(memory("rules"), ours)
            await net.link(node, net.nodes[0])
            await net.are_alike()
            await net.stop(node)
            node.store.close()


@pytest.mark.parametrize("key", [None, CABAL_KEY], ids=["plain", "encrypted"])
@on_loop
async def test_rejected_peers_are_disconnected_and_their_connections_rejected(key: bytes | None) -> None:
    with TemporaryDirectory() as folder, memory("b") as store:
        settings = chosen(folder, "")
        async with (
            listening(cabal_key=key, policy_path=settings.policy_path) as (node, address),
            Node(store, NodeSettings(cabal_key=key)) as other,
        ):
            link = await soon(other.connect(address))
            await until(node.peers)
            [peer] = node.peers()
            name = HOST if peer.key is None else peer.key.hex()
            assert change(node, "deny", "peer", name)
            await soon(asyncio.shield(link.closed))
            await until(lambda: not node.peers())
            await refused(other, address)
            assert change(node, "allow", "peer", "192.0.2.1")
            await refused(other, address)  # only others are allowed
            assert change(node, "allow", "peer", name)
            await soon(other.connect(address))
            await until(node.peers)
            value = node.parts.context.metrics.registry.get_sample_value
            assert (value("cablestore_refused_connections_total", {"limit": "policy"}) or 0) >= 2
            with pytest.raises(NodeError, match="no policy file"):
                change(other, "deny", "peer", HOST)


@on_loop
async def test_a_peer_that_is_no_longer_rejected_is_dialled_now() -> None:
    """The pause after the failed attempts would last a day."""
    pauses = NodeSettings(first_retry_s=86_400.0, longest_retry_s=86_400.0)
    with TemporaryDirectory() as folder, memory("b") as store:
        settings = chosen(folder, f'[peers]\ndeny = ["{HOST}"]\n', pauses)
        async with listening(cabal_key=None) as (_, address), Node(store, settings) as other:
            other.keep_connected(address)
            await until(lambda: any("the policy rejects" in dial.reason for dial in other.dials()))
            chosen(folder, "")
            assert other.reload_policy()
            await until(other.peers)


async def refused(node: Node, address: Address) -> None:
    """Check that a connection ends before the peer uses it."""
    [found] = await soon(asyncio.gather(node.connect(address), return_exceptions=True))
    if not isinstance(found, BaseException):  # the handshake of the side that connects ends first
        await soon(asyncio.shield(found.closed))


@on_loop
async def test_posts_accepted_by_an_old_policy_are_checked_again_before_the_write() -> None:
    """The first post is being written when the policy changes, the others wait in the queue."""
    (first,), later = texts(1), texts(3, "later")
    clock = BlockingClock(NOW_MS)
    with TemporaryDirectory() as folder, memory(clock=clock) as store:
        settings = chosen(folder, "")
        async with running(store, channels=None, policy_path=settings.policy_path) as (node, address):
            one, other = await ByHand.connect(address), await ByHand.connect(address)
            await soon(offered(one, (first.hash,)))
            await soon(deliver(one, {first.hash: first}))
            await until(clock.is_reached.is_set)
            await soon(offered(other, tuple(post.hash for post in later)))
            await soon(deliver(other, {post.hash: post for post in later}))
            await until(lambda: node.load().ingest_queued_size_bytes == sum(len(post.raw) for post in (first, *later)))
            assert change(node, "deny", "channel", "later")
            clock.passes.set()
            await until(lambda: rejected(node, "channel") == 3)
            assert held(store, (first, *later)) == {first.hash}


def forge(post: Post) -> Post:
    """Return the post with a wrong signature."""
    raw = bytearray(post.raw)
    raw[40] ^= 1
    return decode_post(bytes(raw), LEGACY)


def count(node: Node, verdict: str) -> float:
    value = node.parts.context.metrics.registry.get_sample_value
    return value("cablestore_posts_in_total", {"verdict": verdict}) or 0.0
