"""`serve` on machines whose network changes or vanishes, and the printed addresses. Each runs in a process."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from ipaddress import ip_address
from itertools import chain
from pathlib import Path

import pytest
from namespaces import PORT, two_machines
from serving import KEY, Served, cablestore
from waiting import wait_until

from cablestore.peers import Address
from cablestore.peers.own_addresses import address_of, reachable_at

Serving = Callable[..., Served]


def reasons(served: Served) -> list[str]:
    return [line["reason"] for line in served.logged("disconnected")]


def first_reason(served: Served) -> str:
    """Wait until a connection has ended, and return the reason."""
    return wait_until(lambda: reasons(served))[0]


def wait_for_sync(here: Served, there: Served) -> None:
    wait_until(lambda: here.logged("connected") and there.logged("connected"))
    wait_until(lambda: here.logged("reconciled", outcome="done"))


def test_the_peer_is_dialled_immediately_after_a_change_of_address(serving: Serving, tmp_path: Path) -> None:
    """The pauses after failures are not involved: the log has no failures."""
    with two_machines() as (one, other, _):
        there = serving(tmp_path / "there", "--create", "--listen", f"{other.host}:{PORT}", prefix=other.prefix)
        there.hear("listening")
        here = serving(tmp_path / "here", "--create", "--connect", f"{other.host}:{PORT}", prefix=one.prefix)
        wait_until(lambda: here.logged("connected"))
        one.change_address()
        wait_until(lambda: len(here.logged("connected")) == 2)
        assert reasons(here) == [f"this machine no longer has the address {one.host}"]
        wait_until(lambda: len(there.logged("connected")) == 2)
        assert [line["peer"].split(":")[0] for line in there.logged("connected")] == [one.host, one.other_host]


@pytest.mark.thorough
def test_both_ends_detect_a_vanished_network(serving: Serving, tmp_path: Path) -> None:
    """Packets are lost silently, as when a router loses its uplink. Both ends detect this alone, encrypted or not."""
    with two_machines() as (one, other, router):
        pairs = []
        for port, name, options in (PORT, "plain", ()), (PORT + 1, "encrypted", ("--cabal-key", KEY)):
            address = f"{other.host}:{port}"
            there = serving(tmp_path / f"{name} there", "--create", "--listen", address, *options, prefix=other.prefix)
            there.hear("listening")
            here = serving(tmp_path / f"{name} here", "--create", "--connect", address, *options, prefix=one.prefix)
            pairs.append((here, there))
        for here, there in pairs:
            wait_for_sync(here, there)
        router.forwards(False)
        for served in chain.from_iterable(pairs):
            assert first_reason(served).startswith("no answer for ")
        router.forwards(True)
        wait_until(lambda: all(len(here.logged("connected")) >= 2 for here, _ in pairs))


# --- addresses ------------------------------------------------------------------------------------


def printed(served: Served) -> list[str]:
    """Return all addresses that a `serve` prints, which it does before it reports that it is ready."""
    wait_until(lambda: served.logged("listening"))
    served.stop()
    assert served.process.stdout is not None
    return [line.split('"')[3] for line in served.process.stdout.read().splitlines() if '"listening"' in line]


def can_connect(address: str) -> bool:
    with socket.create_connection(Address.parse(address), timeout=60):
        return True


@pytest.mark.thorough("0.0.0.0", "127.0.0.1", "localhost")
@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "localhost", "127.0.0.1"])
def test_printed_addresses_are_reachable(host: str, serving: Serving, tmp_path: Path) -> None:
    """Port 0 selects a free port, also if a name has several addresses."""
    if host == "[::]" and not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    served = serving(tmp_path / "a", "--create", "--listen", f"{host}:0", "--log-format", "json")
    first = served.hear("listening")
    assert can_connect(first)
    found = [first, *printed(served)]
    assert all(Address.parse(address).port for address in found)
    assert not any(ip_address(Address.parse(address).host).is_unspecified for address in found)
    if host == "0.0.0.0":
        assert any(address.startswith("127.0.0.1:") for address in found)
        assert ip_address(Address.parse(found[-1]).host).is_loopback


def link_local() -> str:
    """Return a link-local address of this machine with its zone, or skip the test."""
    for address in reachable_at(Address("::", 0)):
        if ip_address(address.host).is_link_local:
            return address.host
    pytest.skip("this machine has no link-local address")


def test_a_link_local_address_is_printed_with_its_zone(serving: Serving, tmp_path: Path) -> None:
    host = link_local()
    served = serving(tmp_path / "a", "--create", "--listen", f"[{host}]:0", "--log-format", "json")
    address = served.hear("listening")
    assert Address.parse(address).host == host
    synced = cablestore("sync", "--create", address, "--json", store=tmp_path / "b")
    assert synced.returncode == 0, synced.stderr
    wait_until(lambda: served.logged("connected"))
    assert "%" in served.logged("connected")[0]["peer"]


def test_socket_addresses_are_converted() -> None:
    [(number, name), *_] = socket.if_nameindex()
    assert address_of(("192.0.2.1", 5)) == Address("192.0.2.1", 5)
    assert address_of(("2001:db8::1", 5, 0, 0)) == Address("2001:db8::1", 5)
    assert address_of(("fe80::1", 5, 0, number)) == Address(f"fe80::1%{name}", 5)
    assert address_of(("fe80::1", 5, 0, 2**31 - 1)) == Address(f"fe80::1%{2**31 - 1}", 5)


def test_the_unspecified_address_is_printed_unchanged_without_the_extra(tmp_path: Path) -> None:
    """The extra `serve` installs `ifaddr`."""
    code = """
import sys
sys.modules["ifaddr"] = None
from cablestore.peers import Address
from cablestore.peers.own_addresses import reachable_at
print(*reachable_at(Address("0.0.0.0", 5)))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert found.stdout == "0.0.0.0:5\n", found.stderr
