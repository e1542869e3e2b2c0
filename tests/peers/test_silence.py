"""Silent peers: when they are pinged, and when they are disconnected."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cablestore import limits
from cablestore.peers.silence import LifeCheck, Silence


def steps(silence: Silence, begin_s: int, end_s: int, *, is_delivered: bool = True) -> dict[int, LifeCheck]:
    """Check each second from one time to another, without received bytes. Return the results that are not "wait"."""
    found = {at: silence.check(at, begin_s, is_delivered=is_delivered) for at in range(begin_s, end_s)}
    return {at: check for at, check in found.items() if check is not LifeCheck.WAIT}


@pytest.mark.parametrize("is_ours", [False, True])
def test_a_silent_peer_is_probed_twice_and_then_disconnected(is_ours: bool) -> None:
    """SILENCE_S, LIFE_SIGN_TIMEOUT_S: it takes less than a minute, and only one side begins."""
    silence = Silence(0, is_ours=is_ours)
    silence.is_answerable = True
    found = steps(silence, 0, 60)
    first, second, *last = found
    assert list(found.values())[:3] == [LifeCheck.PROBE, LifeCheck.PROBE, LifeCheck.GIVE_UP]
    assert first >= limits.SILENCE_S
    assert (first > limits.SILENCE_S) is not is_ours
    assert last[0] - second == second - first == limits.LIFE_SIGN_TIMEOUT_S


@given(st.lists(st.integers(1, 40), max_size=50))
def test_a_peer_that_sends_data_in_time_is_never_disconnected(gaps_s: list[int]) -> None:
    silence, now_s = Silence(0, is_ours=True), 0
    silence.is_answerable = True
    for gap_s in gaps_s:
        assert LifeCheck.GIVE_UP not in steps(silence, now_s, now_s + gap_s).values()
        now_s += gap_s


@pytest.mark.parametrize(("is_answerable", "is_delivered"), [(False, True), (True, False)])
def test_a_peer_that_cannot_answer_is_not_disconnected(is_answerable: bool, is_delivered: bool) -> None:
    """The peer does not know this request, or the request is still in transit."""
    silence = Silence(0, is_ours=True)
    silence.is_answerable = is_answerable
    assert list(steps(silence, 0, 1_000, is_delivered=is_delivered).values()) == [LifeCheck.PROBE]


def test_a_change_of_the_network_causes_an_immediate_probe() -> None:
    silence = Silence(0, is_ours=True)
    assert silence.check(1, 1, is_delivered=True) is LifeCheck.WAIT
    silence.check_now()
    assert silence.check(2, 1, is_delivered=True) is LifeCheck.PROBE
    assert silence.check(3, 1, is_delivered=True) is LifeCheck.WAIT
