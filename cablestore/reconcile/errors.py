"""Errors of reconciliations, which nodes distinguish. Programs catch NodeError."""

from __future__ import annotations

from cablestore.errors import NodeError


class ReconcileError(NodeError):
    """A reconciliation cannot continue: malformed bytes, a limit, or a dialect that cannot express a range."""


class ReconcileLimitError(ReconcileError):
    """A reconciliation found too many differences.

    The found posts are transferred, and the next reconciliation finds the rest.
    """


class PeerRefusedError(ReconcileError):
    """The peer rejected or ended a reconciliation. `reason` is the peer's reason in one word."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason
