"""The lag of an event loop grows while the loop does not run, and is zero again when it does."""

from __future__ import annotations

import asyncio

from peering import run, until

from cablestore.peers.heartbeat import Heartbeat


def test_a_loop_that_hangs_has_a_lag_until_its_next_timely_beat() -> None:
    async def scenario() -> None:
        now_s = [0.0]
        heartbeat = Heartbeat(asyncio.get_running_loop(), lambda: now_s[0])
        await asyncio.sleep(0)
        assert heartbeat.lag_s == 0
        now_s[0] = 8.0  # the next beat was due at 1
        assert heartbeat.lag_s == 7
        now_s[0] = 10.0
        await until(lambda: heartbeat.lag_s < 9)  # the loop beats: once late, then in time
        assert heartbeat.lag_s == 0
        heartbeat.end()
        await asyncio.sleep(0)

    run(scenario())
