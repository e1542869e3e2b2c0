"""A wake-up or a change of the network: connected peers are checked, and disconnected peers are dialled."""

from __future__ import annotations

import asyncio
import subprocess

from by_hand import ByHand, listening, on_standing_loop
from clock import pass_time
from namespaces import needs_namespaces
from peering import HOST, logged, soon

from cablestore.peers import Address
from cablestore.peers.reachability import Reachability
from cablestore.peers.silence import LifeCheck


@on_standing_loop
async def test_a_wake_up_probes_connected_peers_and_dials_the_others() -> None:
    with logged() as log:
        async with listening() as (node, address):
            link = await (await ByHand.connect(address)).known_to(node)
            context, now_s = node.parts.context, asyncio.get_running_loop().time()
            dial = context.dials.add(Address(HOST, 1), only_reconciles=False)
            pause = asyncio.ensure_future(dial.pause(1_000_000.0))
            await asyncio.sleep(0)
            watch = Reachability(context, node.parts.links)
            for later_s, check in ((10.0, LifeCheck.WAIT), (21.0, LifeCheck.PROBE)):
                assert not pause.done()
                watch.check(now_s + later_s)
                assert link.silence.check(now_s, now_s, is_delivered=True) is check
            await soon(pause)
            [slept] = [vars(record) for record in log.records if record.getMessage() == "awake again"]
            assert slept["slept_s"] == 11
            watch.close()
            context.dials.remove(dial)


@on_standing_loop
async def test_a_changed_route_ends_the_pauses_between_attempts() -> None:
    needs_namespaces()
    async with listening() as (node, address):
        link = await (await ByHand.connect(address)).known_to(node)
        context = node.parts.context
        dial = context.dials.add(Address(HOST, 1), only_reconciles=False)
        pause = asyncio.ensure_future(dial.pause(1_000_000.0))
        await asyncio.sleep(0)
        link.ends = (("192.0.2.1", 1), link.ends[1])
        for action in ("add", "del"):
            subprocess.run(["ip", "route", action, "blackhole", "198.51.100.0/24"], check=True)  # noqa: ASYNC221 - short
        await pass_time(0.2)
        assert not pause.done()
        await pass_time(0.5)
        await soon(pause)
        assert "no longer has the address" in await soon(asyncio.shield(link.closed))
        context.dials.remove(dial)
