"""Sessions with deployed peers: transcripts of the real modules, and a model with the same bytes as the transcripts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nwaku import NwakuPeer, equal_partitioning
from reconciling import HEADERS, HOUR_NS, NOW_NS, VECTORS, Pair, an_id, converse, reconciled, session, sets

from cablestore.reconcile.dialects import NWAKU_036, NWAKU_037, SyncDialect
from cablestore.reconcile.ids import SyncID, of_times
from cablestore.reconcile.payload import Header, Shards, Topics


@pytest.mark.parametrize(
    ("transcript", "dialect", "header"),
    [
        ("session_nwaku_v036", NWAKU_036, Shards(1, (0,))),
        ("session_nwaku_v037_no_topics", NWAKU_037, Topics()),
    ],
)
def test_recorded_sessions_are_replayed_byte_for_byte(transcript: str, dialect: SyncDialect, header: Header) -> None:
    """The model sends the recorded bytes. The session finds the same on either side, and with another session."""
    parameters = VECTORS["session_parameters"]
    first_ns, last_ns = parameters["window"]
    ids = [an_id(f"waku-sync-kat-{i}", NOW_NS + i * 1_000_003) for i in range(64)]
    here = [i for at, i in enumerate(ids) if at not in parameters["initiator_lacks"]]
    there = [i for at, i in enumerate(ids) if at not in parameters["responder_lacks"]]

    def model(held: list[SyncID]) -> NwakuPeer:
        return NwakuPeer(held, dialect, header, threshold=parameters["threshold"], partitions=parameters["partitions"])

    initiator = model(here)
    outcome = converse(initiator, model(there), initiator.initiate(first_ns, last_ns))
    assert [said.hex() for said in outcome.said] == [said["hex"] for said in VECTORS[transcript]]
    assert outcome.is_exactly(here, there)
    for said in VECTORS[transcript][1:4:2]:  # the messages of the responder, passed to the session only
        step = session(here, dialect, header=header).receive(bytes.fromhex(said["hex"]), at_s=0.0)
        assert sorted(i.hash.hex() for i in step.need) == sorted(said["receiver_recv"])
        assert sorted(i.hash.hex() for i in step.have) == sorted(said["receiver_send"])

    ours = session(here, dialect, header=header)
    window = of_times(first_ns, last_ns)
    assert converse(ours, model(there), ours.initiate(window, at_s=0.0)).is_exactly(here, there)
    initiator = model(here)
    ours = session(there, dialect, header=header)
    assert converse(initiator, ours, initiator.initiate(first_ns, last_ns)).is_exactly(here, there)
    assert reconciled(here, there, dialect, within=window).is_exactly(here, there)


@pytest.mark.parametrize("vector", VECTORS["equal_partitioning"], ids=lambda vector: f"{vector['a']}-{vector['b']}")
def test_the_model_splits_time_as_deployed_nodes_do(vector: dict[str, Any]) -> None:
    assert equal_partitioning(vector["a"], vector["b"], vector["count"]) == [tuple(part) for part in vector["parts"]]


@pytest.mark.parametrize("dialect", [NWAKU_036, NWAKU_037], ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("begins", ["ours", "theirs"])
@settings(max_examples=40)
@given(pair=sets(most=1_500), threshold=st.sampled_from([4, 100]))
def test_a_session_with_a_deployed_peer_loses_nothing(
    dialect: SyncDialect, begins: str, pair: Pair, threshold: int
) -> None:
    """The session finds exactly the difference on either side, even if deployed peers lose it among themselves.

    An empty peer does not learn the missing ids: it expects to be sent the posts.
    """
    here, there = ([i for i in ids if NOW_NS <= i.timestamp_ns < NOW_NS + 2 * HOUR_NS] for ids in pair)
    peer = NwakuPeer(there, dialect, HEADERS[dialect.name], threshold=threshold, partitions=8)
    ours = session(here, dialect)
    if begins == "ours":
        outcome = converse(ours, peer, ours.initiate(of_times(NOW_NS, NOW_NS + 2 * HOUR_NS), at_s=0.0))
        have, need = outcome.have, outcome.need
    else:
        outcome = converse(peer, ours, peer.initiate(NOW_NS, NOW_NS + 2 * HOUR_NS))
        have, need = outcome.peer_have, outcome.peer_need
    assert peer.is_done
    assert sorted(have) == sorted(set(here) - set(there))
    assert sorted(need) == sorted(set(there) - set(here))


@pytest.mark.parametrize("dialect", [NWAKU_036, NWAKU_037], ids=lambda dialect: dialect.name)
def test_a_session_finds_differences_that_deployed_peers_lose_among_themselves(dialect: SyncDialect) -> None:
    """With more than a hundred ids within eight nanoseconds, the range is missing from their answers."""
    flood = [an_id(f"{number}") for number in range(150)]
    here, there = flood[1:], flood[:-1]

    def model(held: list[SyncID]) -> NwakuPeer:
        return NwakuPeer(held, dialect, HEADERS[dialect.name])

    one, other = model(here), model(there)
    assert converse(one, other, one.initiate(NOW_NS - 14, NOW_NS + 2)).is_exactly([], [])
    assert one.is_done
    assert other.is_done
    for window in (of_times(NOW_NS - 14, NOW_NS + 2), of_times(NOW_NS - HOUR_NS, NOW_NS + HOUR_NS)):
        ours = session(here, dialect)
        assert converse(ours, model(there), ours.initiate(window, at_s=0.0)).is_exactly(here, there)
        one = model(here)
        begun = one.initiate(window.lower.timestamp_ns, window.upper.timestamp_ns)
        assert converse(one, session(there, dialect), begun).is_exactly(here, there)


def test_a_deployed_peer_with_other_shards_is_detected() -> None:
    """The peer answers with an empty frame, and accepts the frames of the session."""
    header = Shards(1, (7,))
    ours, theirs = session([an_id("a")], NWAKU_036), NwakuPeer([an_id("b")], NWAKU_036, header)
    assert converse(ours, theirs, ours.initiate(at_s=0.0)).said[1:] == [b""]
    assert ours.is_mismatch
    ours, theirs = session([an_id("a")], NWAKU_036), NwakuPeer([an_id("b")], NWAKU_036, header)
    assert converse(theirs, ours, theirs.initiate(NOW_NS, NOW_NS + 9)).said[1:] == [b""]
    assert theirs.is_done
