"""Health of a running node: failures that a restart may repair, and failures that it does not repair."""

from __future__ import annotations

from typing import Final

from cablestore.errors import CableStoreError
from cablestore.peers.context import PeerContext
from cablestore.peers.health import Health, State
from cablestore.peers.metrics import NodeLoad
from cablestore.peers.serving import Serving

STUCK_S: Final = 10.0
"""A loop that has not run for this long is stuck. A lag of some hundredths of a second is normal."""


def node_health(context: PeerContext, serving: Serving, load: NodeLoad, lag_s: float) -> Health:
    """Return the health of a node whose event loop is late by `lag_s`. Callable in any thread."""
    reason = _failure(context, serving, lag_s)
    state = State.FAILING if reason else State.OK
    if not reason:
        reason = _lasting_failure(context)
        state = State.DEGRADED if reason else State.OK
    details = {
        "peers": load.peers,
        "live_requests": load.live_requests,
        "queued_bytes": load.queued_size_bytes,
        "reads_waiting": load.reads_waiting,
        "ingest_queued_bytes": load.ingest_queued_size_bytes,
        "wanted_hashes": load.wanted_hashes,
        "early_posts": load.early_posts,
        "loop_lag_s": round(lag_s, 3),
    }
    return Health(state, reason, details)


def _failure(context: PeerContext, serving: Serving, lag_s: float) -> str:
    """Return the failure that a restart may repair, or ""."""
    if lag_s > STUCK_S:
        return f"the event loop has been stuck for {lag_s:.0f} s"
    is_mended = bool(_write_failure(context))  # after a failed write, the node opens the database again every second
    try:
        context.store.stats()
    except CableStoreError as error:
        if not is_mended:
            return f"cannot read the store: {error}"
    if serving.feed.failure:
        return f"peers miss updates until they reconnect: {serving.feed.failure}"
    return ""


def _lasting_failure(context: PeerContext) -> str:
    """Return the failure that a restart does not repair, or ""."""
    failure = _write_failure(context)
    if failure:
        return f"cannot store posts, retrying every second: {failure}"
    if context.restrictions.failure:
        return f"cannot read the moderation state: {context.restrictions.failure}"
    return ""


def _write_failure(context: PeerContext) -> str:
    return context.store.write_state.failure or context.writes.failure
