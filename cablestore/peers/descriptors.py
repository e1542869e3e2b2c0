"""Limits of file descriptors: peer connections must leave enough of them for the store and for commands."""

from __future__ import annotations

import logging
import resource
from typing import Final

from cablestore import limits

_LOG: Final = logging.getLogger("cablestore.node")


def allow(peers: int) -> None:
    """Raise the limit of open files of this process to the number that `peers` connections may need.

    Most shells set a limit of 1,024 and let a process raise it. Logs a warning if the limit remains too low.
    """
    wanted = peers + limits.RESERVED_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError):  # a sandbox forbids it, or the kernel has a lower limit
        allowed = soft
    if allowed < wanted:
        room = {"allowed": allowed, "wanted": wanted, "room_for_peers": allowed - reserved(allowed)}
        _LOG.warning("the limit of open files is too low for all peers", extra=room)


def rejection(descriptor: int) -> str:
    """Return the reason to reject a connection with this descriptor, or "".

    The system assigns the lowest free number, so a descriptor's number is a lower bound of the descriptors in use. The
    limit is read each time, because `prlimit` may change it while a process runs.
    """
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY or descriptor < allowed - reserved(allowed):
        return ""
    return f"{descriptor} of {allowed} file descriptors are in use, and the others are reserved"


def reserved(allowed: int) -> int:
    """Return how many of the allowed descriptors are reserved."""
    return min(limits.RESERVED_DESCRIPTORS, allowed // 2)
