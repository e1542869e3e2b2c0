"""Errors of reconciliations, which nodes tell apart. Programs catch NodeError."""

from __future__ import annotations

from cablestore.errors import NodeError


class ReconcileError(NodeError):
    """A reconciliation cannot continue: malformed bytes, a limit, or a dialect that cannot express a range."""


class ReconcileLimitError(ReconcileError):
    """A reconciliation found more than it may hold. What it found is transferred; the next one finds the rest."""


class PeerRefusedError(ReconcileError):
    """The peer refused or ended a reconciliation; `reason` is its reason in one word."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason
