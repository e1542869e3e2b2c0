"""Separate machines for processes of a test: network namespaces behind a router. They need root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import pytest

PORT: Final = 13333


def needs_namespaces() -> None:
    """Skip the test if network namespaces cannot be created."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    probe = _name("probe")
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode:
        pytest.skip("this kernel or container allows no network namespace")
    _ip("netns", "del", probe)


def _name(what: str) -> str:
    return f"cs{os.getpid()}{what}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Machine:
    """A network namespace with one interface, `net0`, behind the router."""

    def __init__(self, router: str, number: int) -> None:
        self.name: Final = _name(str(number))
        self._outside = f"{_name(str(number))}r"[-14:]
        self.host: Final = f"10.77.{number}.2"
        self.other_host: Final = f"10.77.{number}.9"
        self._gateway = f"10.77.{number}.1"
        _ip("netns", "add", self.name)
        _ip("link", "add", "net0", "netns", self.name, "type", "veth", "peer", "name", self._outside, "netns", router)
        for namespace, link, host in ((self.name, "net0", self.host), (router, self._outside, self._gateway)):
            _ip("-n", namespace, "link", "set", "lo", "up")
            _ip("-n", namespace, "addr", "add", f"{host}/24", "dev", link)
            _ip("-n", namespace, "link", "set", link, "up")
        self._route()

    def _route(self) -> None:
        _ip("-n", self.name, "route", "add", "default", "via", self._gateway)

    @property
    def prefix(self) -> str:
        """Prefix of a command that runs in the namespace."""
        return f"ip netns exec {self.name}"

    def change_address(self) -> None:
        """Get another address, as on another network."""
        _ip("-n", self.name, "addr", "del", f"{self.host}/24", "dev", "net0")
        _ip("-n", self.name, "addr", "add", f"{self.other_host}/24", "dev", "net0")
        self._route()


class Router:
    """The network between the machines."""

    def __init__(self) -> None:
        self.name: Final = _name("r")
        _ip("netns", "add", self.name)
        self.forwards(True)

    def forwards(self, does: bool) -> None:
        """Forward packets, or drop all of them silently."""
        value = f"net.ipv4.ip_forward={int(does)}"
        subprocess.run(["ip", "netns", "exec", self.name, "sysctl", "-qw", value], check=True, capture_output=True)


@contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine, Router]]:
    """Yield two machines and the router between them."""
    needs_namespaces()
    with ExitStack() as stack:
        router = Router()
        stack.callback(_ip, "netns", "del", router.name)
        machines = []
        for number in (1, 2):
            machines.append(Machine(router.name, number))
            stack.callback(_ip, "netns", "del", machines[-1].name)
        yield machines[0], machines[1], router


@contextmanager
def machine_beside(own_host: str, host: str) -> Iterator[str]:
    """Yield the name of a namespace that a wire connects to this one, with an address at each end."""
    needs_namespaces()
    name, wire = _name("b"), _name("w")
    _ip("netns", "add", name)
    try:
        _ip("link", "add", wire, "type", "veth", "peer", "name", "net0", "netns", name)
        _ip("addr", "add", f"{own_host}/24", "dev", wire)
        _ip("link", "set", wire, "up")
        _ip("-n", name, "addr", "add", f"{host}/24", "dev", "net0")
        _ip("-n", name, "link", "set", "net0", "up")
        yield name
    finally:
        _ip("netns", "del", name)


def drop_answers(name: str, to: str) -> None:
    """Drop all packets from a namespace to an address."""
    _ip("-n", name, "route", "add", "blackhole", f"{to}/32")
