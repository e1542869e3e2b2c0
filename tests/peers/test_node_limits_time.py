"""A node's limits on time, on the number of peers, and on each one's share of its time.

A peer that is too slow is disconnected, one with too many requests waits, and others are served.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import pytest
from by_hand import (
    ALL,
    CABAL_KEY,
    LIVE,
    MANY,
    ByHand,
    listening,
    on_loop,
    on_standing_loop,
    only,
    slow_reader,
    texts,
)
from clock import pass_time
from peering import HOST, Keeper, logged, raw_peer, until
from people import ANN

from cablestore import DRAFT8, LEGACY, limits
from cablestore.peers import Address, threads
from cablestore.peers.connection import Connection, PauseReason
from cablestore.peers.shares import LoopShare
from cablestore.peers.threads import Stopwatch
from cablestore.protocol.message import (
    CancelRequest,
    HashResponse,
    ListRequest,
    ListResponse,
    Message,
    ModerationRequest,
    PostRequest,
    StateRequest,
    TimeRangeRequest,
    encode_message,
)

pytestmark = pytest.mark.usefixtures("quick_clock")


# --- time --------------------------------------------------------------------------------------


@on_standing_loop
async def test_handshake_timeout_s_and_max_handshakes_limit_unfinished_handshakes() -> None:
    """HANDSHAKE_TIMEOUT_S and MAX_HANDSHAKES: a peer that stops during its handshake frees its slot for others."""
    with logged() as log:
        async with listening(cabal_key=CABAL_KEY, max_handshakes=3, handshake_timeout_s=0.5) as (node, address):
            idlers = [await ByHand.connect(address) for _ in range(3)]
            await until(lambda: len(node.connections) == 3)
            one_more = await ByHand.connect(address)
            assert await one_more.is_ended()
            assert log.reasons() == ["too many handshakes in progress: the maximum is 3"]
            idlers[0].raw(b"half of one")
            await until(lambda: any(known.received_size_bytes for known in node.connections))
            await pass_time(2.0)
            for idler in idlers:
                assert await idler.is_ended()
            honest = await ByHand.connect(address, cabal_key=CABAL_KEY)
            assert await honest.hashes() == []
            await pass_time(2.0)
            assert await honest.hashes() == []  # it is done with its handshake
            await honest.close()
            assert [reason.partition(":")[0] for reason in log.reasons()[1:]] == ["the handshake took too long"] * 3


@on_loop
async def test_max_handshakes_per_address_limits_one_address() -> None:
    """MAX_HANDSHAKES_PER_ADDRESS: a peer with many unfinished handshakes blocks only its own address."""
    with logged() as log:
        async with listening(cabal_key=CABAL_KEY, max_handshakes_per_address=3) as (node, address):
            for _ in range(3):
                await ByHand.connect(address)
            await until(lambda: len(node.connections) == 3)
            one_more = await ByHand.connect(address)
            assert await one_more.is_ended()
            assert log.reasons() == ["too many handshakes in progress with one address: the maximum is 3"]
            honest = await ByHand.connect(address, cabal_key=CABAL_KEY, host="127.0.0.2")
            assert await honest.hashes() == []
            await honest.close()


async def drip(peer: ByHand, data: bytes) -> bool:
    """Send one byte per second of an incomplete message. Return True if the node closes the connection before the end."""
    peer.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for at in range(len(data) - 1):
        if peer.reader.at_eof() or peer.reader.exception() is not None:
            return True
        with suppress(ConnectionError):
            peer.writer.write(data[at : at + 1])
        await pass_time(1.0, step_s=0.5)
    return False


@pytest.mark.parametrize("key", [None, CABAL_KEY], ids=["plain", "encrypted"])
@on_standing_loop
async def test_a_peer_that_sends_a_message_byte_by_byte_is_disconnected(key: bytes | None) -> None:
    """MIN_MESSAGE_BYTES_PER_S and MAX_SLOW_S; MAX_SLOW_FIRST_S for the first message."""
    with logged() as log:
        async with listening(cabal_key=key) as (node, address):
            first, later, silent = [await ByHand.connect(address, cabal_key=key) for _ in range(3)]
            assert await later.hashes() == []
            await until(lambda: sum(known.is_established for known in node.connections) == 3)
            message = encode_message(PostRequest(b"none", (bytes(32),) * 100), LEGACY)
            data = message if first.channel is None else first.channel.send(message)
            assert await drip(first, data[: 3 * limits.MAX_SLOW_FIRST_S])
            assert log.reasons() == ["the peer sends messages too slowly"]
            data = message if later.channel is None else later.channel.send(message)
            assert await drip(later, data[: 3 * limits.MAX_SLOW_S])
            assert log.reasons() == ["the peer sends messages too slowly"] * 2
            assert len(node.connections) == 1
            await silent.close()


@on_standing_loop
async def test_a_peer_on_a_slow_line_is_not_disconnected() -> None:
    """The duration of a long message is not limited, and the line may be interrupted for a while."""
    with logged() as log:
        async with listening() as (_, address):
            peer = await ByHand.connect(address)
            assert await peer.hashes() == []
            message = encode_message(PostRequest(b"none", tuple(bytes([at % 256]) * 32 for at in range(2_000))), LEGACY)
            for at in range(0, len(message), 2 * limits.MIN_MESSAGE_BYTES_PER_S):
                peer.writer.write(message[at : at + 2 * limits.MIN_MESSAGE_BYTES_PER_S])
                await pass_time(1.0, step_s=0.5)
                if at == 20_000:
                    await pass_time(2.0 * limits.MAX_SLOW_S, step_s=0.5)
            assert not log.reasons()
            assert await peer.hashes() == []
            await peer.close()


@pytest.mark.parametrize("key", [None, CABAL_KEY], ids=["plain", "encrypted"])
@on_standing_loop
async def test_a_slow_peer_of_the_reconciliation_port_is_disconnected(key: bytes | None) -> None:
    with logged() as log:
        async with listening(cabal_key=key, reconciles=True) as (node, _):
            address = await node.reconcile_port.listen(Address(HOST, 0))
            peer = await ByHand.connect(address)
            await until(lambda: len(node.reconcile_port.links) == 1)
            assert await drip(peer, b"\x90\x01" + bytes(100))
            reason = "the peer sends messages too slowly" if key is None else "the handshake took too long"
            assert [each.partition(":")[0] for each in log.reasons()] == [reason]


@on_standing_loop
async def test_idle_timeout_s_disconnects_only_idle_peers() -> None:
    with logged() as log:
        async with listening(idle_timeout_s=0.3) as (node, address):
            silent, live, talker = [await ByHand.connect(address) for _ in range(3)]
            live.send(LIVE)
            await until(lambda: len(node.connections) == 3 and node.parts.serving.live.count == 1)
            for _ in range(10):
                assert await talker.hashes() == []
                await pass_time(0.1)
            assert await silent.is_ended()
            assert log.reasons() == ["idle"]
            assert len(node.connections) == 2
            await live.close()


@pytest.mark.thorough
@on_loop
async def test_no_channels_are_requested_from_a_silent_peer() -> None:
    """A silent peer costs little, for any size of the store, and is disconnected after IDLE_TIMEOUT_S."""
    posts = [ANN.text(f"channel {i}", "x") for i in range(50)]
    settings: dict[str, Any] = {"channels": None, "answer_timeout_s": 0.1, "idle_timeout_s": 0.3, "list_every_s": 0.1}
    async with listening(posts, **settings) as (_, address):
        peer = await ByHand.connect(address)
        heard = []
        while (message := await peer.receive()) is not None:
            heard.append(message)
        assert ListRequest in {type(message) for message in heard}
        assert not {TimeRangeRequest, StateRequest} & {type(message) for message in heard}


@on_standing_loop
async def test_answer_timeout_s_cancels_unanswered_requests() -> None:
    """ANSWER_TIMEOUT_S: a request without an answer is cancelled, except while the node itself does not read."""
    async with listening(channels=None, answer_timeout_s=0.2) as (node, address):
        peer = await ByHand.connect(address)
        asked = await peer.receive()
        assert isinstance(asked, ListRequest)
        only(node).pause(PauseReason.STORING)
        await pass_time(0.5)
        assert only(node).session.open_requests, "unread answers cannot be late"
        only(node).resume(PauseReason.STORING)
        await pass_time(0.5)
        cancel = await peer.receive()
        assert isinstance(cancel, CancelRequest)
        assert cancel.cancel_id == asked.request_id
        peer.send(ListResponse(asked.request_id, ()))  # late, but valid
        await peer.hashes()
        assert only(node).faults == 0


@pytest.mark.parametrize("cabal_key", [None, CABAL_KEY])
@on_standing_loop
async def test_slow_message_s_extends_the_timeout_of_an_arriving_answer(cabal_key: bytes | None) -> None:
    """SLOW_MESSAGE_S: an answer on a slow line may take longer than the timeout of a request, encrypted or not."""
    async with listening(channels=None, answer_timeout_s=3.0, cabal_key=cabal_key) as (node, address):
        peer = await ByHand.connect(address, cabal_key=cabal_key)
        asked = await peer.receive()
        assert isinstance(asked, ListRequest)
        names = tuple(f"channel {number}" for number in range(5))
        answer = encode_message(ListResponse(asked.request_id, names), LEGACY)
        sent = answer if peer.channel is None else peer.channel.send(answer)
        for at in range(0, len(sent), 20):
            read = only(node).received_size_bytes + len(sent[at : at + 20])
            peer.writer.write(sent[at : at + 20])
            await until(lambda read=read: only(node).received_size_bytes == read)  # type: ignore[misc] # the argument has its default
            await pass_time(2)
        while not isinstance(following := await peer.receive(), ModerationRequest):
            assert isinstance(following, StateRequest | TimeRangeRequest), "a request timed out"
        assert following.channels == names
        await peer.close()  # the clock does not move, so the node would wait for it


@on_standing_loop
async def test_dialect_wait_s_lets_the_peer_speak_first() -> None:
    """DIALECT_WAIT_S: a node of draft 8 lets the peer speak first. A legacy client never gets a message of draft 8."""
    async with listening(dialect=DRAFT8, channels=None) as (node, address):
        silent = await ByHand.connect(address, DRAFT8)
        await until(lambda: len(node.connections) == 1)
        await pass_time(limits.DIALECT_WAIT_S * 0.9)
        assert only(node).sent_size_bytes == 0
        await pass_time(limits.DIALECT_WAIT_S * 0.2)
        assert isinstance(await silent.receive(), ListRequest)
        legacy = await ByHand.connect(address, LEGACY)
        await until(lambda: len(node.connections) == 2)
        [new] = [known for known in node.connections if not known.sent_size_bytes]
        await pass_time(limits.DIALECT_WAIT_S / 2)
        assert new.sent_size_bytes == 0
        legacy.send(ALL)
        # The answer and the node's own request both wait for the reading thread, so either may arrive first.
        while not isinstance(heard := await legacy.receive(), ListRequest):
            assert isinstance(heard, HashResponse)


@on_loop
async def test_end_timeout_s_disconnects_a_half_closed_slow_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """END_TIMEOUT_S: a peer that closed its writing side and does not read is disconnected."""
    monkeypatch.setattr(limits, "END_TIMEOUT_S", 0.3)
    with logged() as log:
        async with listening(texts(MANY)) as (node, address):
            peer = await slow_reader(address)
            await until(lambda: only(node).is_slow)
            peer.writer.write_eof()
            await until(lambda: not node.connections)
            assert log.reasons() == ["the peer does not close the connection"]
            await peer.close()


@on_loop
async def test_idle_timeout_s_disconnects_a_peer_that_does_not_read() -> None:
    with logged() as log:
        async with listening(texts(MANY), idle_timeout_s=0.5) as (node, address):
            peer = await slow_reader(address)
            await until(lambda: not node.connections)
            assert log.reasons() == ["the peer does not read"]
            await peer.close()


@on_loop
async def test_keepalive_options_are_set_for_every_connection() -> None:
    """KEEPALIVE_AFTER_S, KEEPALIVE_EVERY_S and KEEPALIVE_PROBES are set for every connection."""
    import socket

    async with listening() as (node, address):
        peer = await ByHand.connect(address)
        await peer.hashes()
        transport = only(node)._transport
        assert transport is not None
        sock = transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle = getattr(socket, "TCP_KEEPIDLE", 0x10)  # TCP_KEEPALIVE of macOS
        names = (idle, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        values = [sock.getsockopt(socket.IPPROTO_TCP, name) for name in names]
        assert values == [limits.KEEPALIVE_AFTER_S, limits.KEEPALIVE_EVERY_S, limits.KEEPALIVE_PROBES]


# --- how many ----------------------------------------------------------------------------------


@on_loop
async def test_max_peers_and_max_peers_per_address_limit_connections() -> None:
    """MAX_PEERS and MAX_PEERS_PER_ADDRESS; a peer that leaves frees its slot."""
    with logged() as log:
        async with listening(max_peers=5, max_peers_per_address=3) as (node, address):
            first = [await ByHand.connect(address) for _ in range(3)]
            assert await (await ByHand.connect(address)).is_ended()
            second = [await ByHand.connect(address, host="127.0.0.2") for _ in range(2)]
            assert await (await ByHand.connect(address, host="127.0.0.3")).is_ended()
            assert log.reasons() == [
                "too many peers from one address: the maximum is 3",
                "too many peers: the maximum is 5",
            ]
            value = node.parts.context.metrics.registry.get_sample_value
            for limit in ("address", "peers"):
                assert value("cablestore_refused_connections_total", {"limit": limit}) == 1
            for peer in (*first, *second):
                assert await peer.hashes() == []
            await first[0].close()
            await until(lambda: len(node.connections) == 4)
            assert await (await ByHand.connect(address, host="127.0.0.3")).hashes() == []


# --- shares ------------------------------------------------------------------------------------


@on_standing_loop
async def test_rows_per_s_and_rows_in_advance_limit_the_rows_of_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """ROWS_PER_S and ROWS_IN_ADVANCE: a peer that requests more waits, and the others do not."""
    monkeypatch.setattr(threads, "Stopwatch", lambda: Stopwatch(lambda: 0.0, lambda: 0.0))  # rows alone count
    in_advance = MANY + 100  # all rows, and the cost of each part
    async with listening(texts(MANY), rows_in_advance=in_advance, rows_per_s=2 * MANY) as (node, address):
        greedy = await ByHand.connect(address)
        await greedy.hashes()
        [known] = node.connections
        greedy.send(*[ALL] * 2)
        await until(lambda: known.answers._wakes_up)  # it waits for its share, and the clock does not move
        for _ in range(5):
            other = await ByHand.connect(address)
            assert len(await other.hashes(limit=100)) == 100
            await other.close()
        assert len(known.session.to_answer) == 2
        passed_s = 0.0
        while known.session.to_answer:
            await pass_time(0.1)
            passed_s += 0.1
            await until(lambda: known.answers._wakes_up or not known.session.to_answer)
        assert 0.7 < passed_s < 1.3  # for twice as many rows as it gets in half a second


def test_loop_share_and_loop_share_in_advance_s_pause_a_busy_peer() -> None:
    """A peer may use LOOP_SHARE_IN_ADVANCE_S immediately. Then it pauses until its share of the time is LOOP_SHARE."""
    share = LoopShare(1_000.0)
    assert share.charge(limits.LOOP_SHARE_IN_ADVANCE_S, 1_000.0) == 0
    pause_s = share.charge(0.01, 1_000.0)
    assert pause_s * limits.LOOP_SHARE == pytest.approx(limits.LOOP_SHARE_IN_ADVANCE_S + 0.01)
    assert share.charge(limits.LOOP_SHARE_IN_ADVANCE_S * 0.9, 1_000.0 + pause_s) == 0
    assert share.charge(limits.LOOP_SHARE_IN_ADVANCE_S * 0.2, 1_000.0 + pause_s) > 0


@pytest.mark.thorough
@on_loop
async def test_a_peer_that_keeps_the_loop_busy_is_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    """LOOP_SHARE, LOOP_SHARE_IN_ADVANCE_S: requests that are cancelled immediately cost time of the loop, but no rows."""
    reasons: list[PauseReason] = []
    pause = Connection.pause

    def counted(connection: Connection, reason: PauseReason) -> None:
        reasons.append(reason)
        pause(connection, reason)

    monkeypatch.setattr(Connection, "pause", counted)
    async with listening() as (_, address):
        peer, other = await ByHand.connect(address), await ByHand.connect(address)
        request_id = peer.new_id()
        ask = ALL._replace(request_id=request_id)
        pair: list[Message] = [ask, CancelRequest(request_id, request_id)]
        for _ in range(50):  # reads differ in size, and so in cost
            peer.send(*pair * 5000)
            last = asyncio.ensure_future(peer.hashes())
            while not last.done():
                assert await other.hashes() == []
            assert await last == []
            if reasons.count(PauseReason.SHARE) > 3:
                return
        pytest.fail(f"only {reasons}")


@on_loop
async def test_max_live_channels_limits_live_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_LIVE_CHANNELS: a node polls further channels."""
    monkeypatch.setattr(limits, "MAX_LIVE_CHANNELS", 2)
    posts = [ANN.text(f"channel {number}", "x") for number in range(4)]
    async with listening(channels=None, list_every_s=0.1) as (node, address):
        peer = await raw_peer(address, Keeper, posts=posts)
        await until(lambda: all(node.store.get(post.hash) for post in posts))
        await until(lambda: len(peer.requests_of(TimeRangeRequest)) > 10)
        assert len([asked for asked in peer.requests_of(TimeRangeRequest) if asked.is_live]) == 2
        await peer.close()
