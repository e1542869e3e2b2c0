"""Shares of the node's time: how much a peer may use at once, and when it may continue."""

from __future__ import annotations

from cablestore import limits
from cablestore.peers.shares import LoopShare, ReadShare


def test_rows_accrue_at_a_steady_rate_up_to_a_maximum() -> None:
    now_s = [100.0]
    share = ReadShare(lambda: now_s[0], rows_per_s=64, max_rows=32)
    share.charge(31)
    assert share.is_left()
    share.charge(1)
    assert not share.is_left()
    assert share.wait_s == 0.01
    now_s[0] += 0.25
    assert share.is_left()
    share.charge(48)  # 16 rows were left, so 32 are owed
    assert not share.is_left()
    assert share.wait_s == 0.01 + 0.5
    now_s[0] += 0.5
    assert not share.is_left()
    assert share.wait_s == 0.01
    now_s[0] += 1_000.0
    assert share.is_left()
    share.charge(31)
    assert share.is_left()
    share.charge(1)
    assert not share.is_left()


def test_used_time_is_paid_back_as_time_passes() -> None:
    """LOOP_SHARE, LOOP_SHARE_IN_ADVANCE_S: unused time is not saved."""
    share = LoopShare(1_000.0)
    assert share.charge(limits.LOOP_SHARE_IN_ADVANCE_S, 2_000.0) == 0
    assert share.charge(0.5, 2_000.0) == (limits.LOOP_SHARE_IN_ADVANCE_S + 0.5) / limits.LOOP_SHARE
    paid_s = 0.25 / limits.LOOP_SHARE
    assert round(share.charge(0.5, 2_000.0 + paid_s) * limits.LOOP_SHARE - limits.LOOP_SHARE_IN_ADVANCE_S, 6) == 0.75
