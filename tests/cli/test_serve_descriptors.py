"""`serve` with few file descriptors: peers leave some for the store, commands and metrics, and accepting resumes."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from serving import HERE, Served, cablestore, fetch
from waiting import LIMIT_S, wait_until

from cablestore.peers import Address

Serving = Callable[..., Served]


def serve(serving: Serving, store: Path, *arguments: str) -> Served:
    cablestore("init", store=store)
    process = serving(store, "--listen", HERE, "--metrics", HERE, *arguments)
    process.hear("listening")
    return process


def allow(process: Served, descriptors: int) -> None:
    _, hard = resource.prlimit(process.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.process.pid, resource.RLIMIT_NOFILE, (descriptors, hard))


def used(process: Served) -> int:
    return sum(1 for _ in Path(f"/proc/{process.process.pid}/fd").iterdir())


def connect(process: Served, number: int) -> list[socket.socket]:
    address = Address.parse(process.address)
    return [socket.create_connection(address, LIMIT_S) for _ in range(number)]


def test_peers_leave_descriptors_for_commands_and_metrics(serving: Serving, tmp_path: Path) -> None:
    """limits.RESERVED_DESCRIPTORS, of which a small limit leaves half."""
    process = serve(serving, tmp_path / "store")
    allow(process, 96)
    peers = connect(process, 120)
    wait_until(lambda: process.metric("cablestore_refused_connections_total", limit="descriptors") >= 70)
    assert used(process) <= 96 // 2 + 8  # including those of this test
    posted = cablestore("post", "default", "while full", store=process.store)
    assert posted.returncode == 0, posted.stderr
    assert "while full" in cablestore("log", "default", store=process.store).stdout
    assert fetch(f"http://{process.hear('metrics')}/healthz")[0] == 200
    [warning] = process.logged("too few file descriptors: further peers are rejected")
    assert "of 96 file descriptors are in use" in warning["reason"]
    reasons = [line["reason"] for line in process.logged("disconnected")]
    assert sum("file descriptors are in use" in reason for reason in reasons) >= 70
    for peer in peers:
        peer.close()
    cablestore("init", store=tmp_path / "other")
    wait_until(lambda: cablestore("sync", process.address, store=tmp_path / "other").returncode == 0)
    assert "while full" in cablestore("log", "default", store=tmp_path / "other").stdout


@pytest.mark.thorough("arguments1")
@pytest.mark.parametrize("arguments", [(), ("--cabal-key", "ab" * 32)])
def test_serve_accepts_connections_again_after_it_had_no_descriptors(
    serving: Serving, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    process = serve(serving, tmp_path / "store", *arguments)
    _, before = resource.prlimit(process.process.pid, resource.RLIMIT_NOFILE)
    allow(process, used(process))
    [peer] = connect(process, 1)
    wait_until(lambda: process.logged("cannot accept connections"))
    allow(process, min(before, 1024))
    other = cablestore("sync", "--create", *arguments, process.address, store=tmp_path / "other")
    assert other.returncode == 0, other.stderr
    peer.close()
    assert len(process.logged("cannot accept connections")) == 1


def test_rejected_connections_are_counted_by_their_limit(serving: Serving, tmp_path: Path) -> None:
    process = serve(serving, tmp_path / "store", "--max-peers", "20")
    peers = connect(process, 21)
    wait_until(lambda: process.metric("cablestore_refused_connections_total", limit="peers") == 1)
    assert process.metric("cablestore_refused_connections_total", limit="descriptors") == 0
    for peer in peers:
        peer.close()
