"""Addresses of this machine: a connection from an address that it has lost cannot continue."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from contextlib import closing

import pytest
from by_hand import on_standing_loop
from clock import pass_time
from namespaces import needs_namespaces

from cablestore.peers.network_watch import NetworkWatch, SleepDetector, has_address, source_address

HAS_IPV6 = socket.has_ipv6 and source_address(("::1", 1, 0, 0)) == "::1"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_local_end_of_a_connection_is_an_address_of_the_machine(host: str) -> None:
    if host == "::1" and not HAS_IPV6:
        pytest.skip("this machine has no IPv6")
    family = socket.AF_INET if host == "127.0.0.1" else socket.AF_INET6
    with closing(socket.create_server((host, 0), family=family)) as listener:
        with socket.create_connection(listener.getsockname()[:2]) as connection:
            assert has_address(connection.getsockname())
        assert source_address(listener.getsockname()) == host


def test_a_gap_of_either_clock_between_two_checks_is_sleep() -> None:
    """The clock of the loop may stop during sleep. A busy loop may be up to ten seconds late."""
    wall_s = [5_000.0]
    sleep = SleepDetector(100.0, lambda: wall_s[0])
    found = []
    for now_s, passed_s in ((101.0, 1.0), (111.0, 10.0), (122.0, 1.0), (123.0, 60.0), (124.0, 1.0)):
        wall_s[0] += passed_s
        found.append(sleep.slept_s(now_s))
    assert found == [0.0, 0.0, 11.0, 60.0, 0.0]


@on_standing_loop
async def test_a_group_of_network_changes_is_reported_once_when_it_has_settled() -> None:
    needs_namespaces()
    loop, changes = asyncio.get_running_loop(), list[float]()
    watch = NetworkWatch(loop, lambda: changes.append(loop.time()))

    def change() -> None:
        for action in ("add", "del"):
            subprocess.run(["ip", "route", action, "blackhole", "198.51.100.0/24"], check=True)

    for times in (1, 2):
        await asyncio.to_thread(change)
        await pass_time(0.4)
        assert len(changes) < times
        await pass_time(0.2)
        assert len(changes) == times
    await asyncio.to_thread(change)
    await pass_time(0.1)
    watch.close()
    await asyncio.to_thread(change)
    await pass_time(1.0)
    watch.close()
    assert len(changes) == 2


@pytest.mark.parametrize("end", [("192.0.2.1", 1), ("2001:db8::1", 1, 0, 0)])
def test_an_unassigned_address_is_not_an_address_of_the_machine(end: tuple[object, ...]) -> None:
    assert not has_address(end)
