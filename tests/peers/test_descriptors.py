"""The limit of open files is raised for the peers that a node accepts. A limit that is too low is reported."""

from __future__ import annotations

import subprocess
import sys

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
