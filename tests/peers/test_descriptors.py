"""The limit of open files is raised for the peers that a node accepts. A limit that is too low is reported."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from by_hand import ByHand, listening, on_standing_loop
from clock import pass_time
from peering import logged
from separate import in_separate_process

from cablestore import limits
from cablestore.peers import descriptors
from cablestore.protocol.message import ListRequest

_PROGRAM = """
import logging, resource, sys
from cablestore.peers import descriptors
logging.basicConfig(format="%(message)s")
resource.setrlimit(resource.RLIMIT_NOFILE, (600, 2_000))
descriptors.allow(int(sys.argv[1]))
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def allowed(peers: int) -> tuple[int, str]:
    """Return the limit of a process that accepts this many peers, and what it logged."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(peers)], capture_output=True, text=True, check=True, timeout=300
    )
    return int(done.stdout), done.stderr.strip()


def test_the_limit_is_raised_as_far_as_the_peers_need_it() -> None:
    assert allowed(1) == (600, "")
    limit, logged = allowed(800)
    assert 800 < limit < 2_000
    assert logged == ""
    assert allowed(5_000) == (2_000, "the limit of open files is too low for all peers")


@contextmanager
def limited_to(allowed: int) -> Iterator[None]:
    """Limit the number of open files of this process. Open files with higher numbers remain open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("allowed", [101, 2 * limits.RESERVED_DESCRIPTORS - 1, 2 * limits.RESERVED_DESCRIPTORS + 100])
def test_the_reserved_descriptors_are_at_most_half_of_all(allowed: int) -> None:
    """RESERVED_DESCRIPTORS."""
    reserved = min(limits.RESERVED_DESCRIPTORS, allowed // 2)
    assert descriptors.reserved(allowed) == reserved
    if allowed > resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 0:
        pytest.skip("this system has a lower limit of open files")
    with limited_to(allowed):
        assert descriptors.rejection(allowed - reserved - 1) == ""
        reason = f"{allowed - reserved} of {allowed} file descriptors are in use, and the others are reserved"
        assert descriptors.rejection(allowed - reserved) == reason


@in_separate_process
@on_standing_loop
async def test_a_peer_that_would_use_a_reserved_descriptor_is_rejected_with_a_warning_every_ten_minutes() -> None:
    with logged() as log:
        async with listening() as (node, address):
            for pause_s, warnings in ((0.0, 1), (598.0, 1), (3.0, 2)):
                await pass_time(pause_s, step_s=10.0)
                with socket.socket() as lowest:
                    allowed = lowest.fileno() + 8
                with limited_to(allowed):
                    peer = await ByHand.connect(address)
                    assert await peer.is_ended()
                    await peer.close()
                found = [record for record in log.records if "too few file descriptors" in record.getMessage()]
                assert len(found) == warnings
            count = node.parts.context.metrics.registry.get_sample_value
            assert count("cablestore_refused_connections_total", {"limit": "descriptors"}) == 3
            assert len(log.reasons()) == 3
            await (await ByHand.connect(address)).answer(ListRequest(b"", 0, 0))
