"""Settings of a node. `cablestore.limits` defines most default values, with the reason for each."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal

from cablestore import limits
from cablestore.arguments import check_bytes
from cablestore.errors import NodeError
from cablestore.protocol.crypto import KEY_SIZE_BYTES
from cablestore.protocol.secure_channel import PROLOGUE
from cablestore.reprs import hex_repr
from cablestore.store.keep_ages import KeepAges

SYNC_OVERLAP_MS: Final = 3_600_000
FULL_PASS_EVERY_MS: Final = 86_400_000
PAGE_HASHES: Final = 4_096
"""Maximum number of hashes in an answer of existing clients."""


def _option(default: Any, meaning: str, *, name: str = "", unit: str = "", least: int = 1) -> Any:
    """Return a field with an option in `cablestore serve`, and `meaning` as its help."""
    is_number = not isinstance(default, bool)
    more = {"option": name, "unit": unit, "least": least, "changes": is_number}
    return field(default=default, metadata={"help": meaning, **more})


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Settings of a node. Names of sizes end in `_bytes`, names of times in `_s` or `_ms`."""

    cabal_key: bytes | None = field(default=None, repr=False)
    """32 bytes that all members know: connections are encrypted, and only members can connect. None for unencrypted
    connections, as in existing clients.
    """
    prologue: bytes = PROLOGUE
    """Part of the handshake. cable-handshake.ts 1.0 uses b"CABLE1.0"."""
    has_separate_static_key: bool = False
    """True if the handshake uses a separate key pair instead of the identity's, like cable-handshake.ts."""
    channels: frozenset[str] | None = None
    """The channels to follow, None for all channels of peers. Only followed channels are requested. The node answers
    requests of peers for any channel.
    """
    window_ms: int | None = None
    """Maximum age of requested posts, None for all."""
    keep: KeepAges = field(default_factory=KeepAges, metadata={"changes": True})
    """Maximum age of posts by channel. Older posts are removed, and not requested."""
    policy_path: Path | None = None
    """File of the policy, None for `policy.toml` in the store's folder, which may be missing."""
    policy_command: tuple[str, ...] = ()
    """Program that judges posts, with its arguments. Empty if no program judges posts."""
    policy_timeout_s: float = field(default=5.0, metadata={"changes": True})
    """Maximum time for the policy command to answer."""
    policy_failure: Literal["accept", "reject", "postpone"] = field(default="postpone", metadata={"changes": True})
    """Decision on posts that the policy command does not judge."""
    max_store_size_bytes: int = field(default=0, metadata={"changes": True})
    """Maximum size of the store's folder, 0 for unlimited. Near this size, the node accepts only some posts (`quota`)."""
    min_free_space_bytes: int = field(default=0, metadata={"changes": True})
    """Minimum free space on the store's disk, 0 for none."""
    page_hashes: int = PAGE_HASHES
    """Maximum number of hashes in one page of history."""
    list_every_s: float = _option(
        limits.LIST_EVERY_S, "Interval at which new channels are requested from peers.", unit="s"
    )
    """Peers that announce new channels are requested to list them every sixth time."""
    relays: bool = _option(True, "Forward requests of legacy peers according to their ttl.", name="relay")
    spares_cable_js: bool = _option(
        True,
        "Withhold posts that crash cable.js from legacy peers: names, topics and channels that are long in bytes.",
        name="spare-cable-js",
    )
    """A legacy peer may be cable.js if its connection is not encrypted and it is not known to be cablestore."""
    reconciles: bool = _option(
        True, "Reconcile with peers that run cablestore. Other peers are not affected.", name="reconcile"
    )
    reconcile_every_s: float = _option(
        300.0, "Interval at which recent posts are reconciled with each peer that this node connects to.", unit="s"
    )
    reconcile_window_ms: int = _option(
        3_600_000, "Maximum age of recent posts, which are reconciled at intervals.", unit="ms"
    )
    reconcile_delay_ms: int = _option(
        20_000,
        "Minimum age of recent posts, because younger posts are still arriving. After a change, all posts are reconciled "
        "when the store has not changed further for this time.",
        unit="ms",
    )
    reconcile_all_every_s: float = _option(
        86_400.0, "Interval at which all posts are reconciled without a change.", unit="s"
    )
    max_talks: int = limits.MAX_TALKS
    talk_silence_s: float = limits.TALK_SILENCE_S
    max_peers: int = _option(limits.MAX_PEERS, "Maximum number of connected peers.")
    max_peers_per_address: int = _option(
        limits.MAX_PEERS_PER_ADDRESS, "Maximum number of connected peers from one address."
    )
    max_handshakes: int = _option(limits.MAX_HANDSHAKES, "Maximum number of concurrent handshakes.")
    max_handshakes_per_address: int = _option(
        limits.MAX_HANDSHAKES_PER_ADDRESS, "Maximum number of concurrent handshakes with one address."
    )
    handshake_timeout_s: float = limits.HANDSHAKE_TIMEOUT_S
    first_retry_s: float = limits.FIRST_RETRY_S
    longest_retry_s: float = limits.LONGEST_RETRY_S
    idle_timeout_s: float = _option(
        limits.IDLE_TIMEOUT_S, "Time without data before the node closes a connection without live requests.", unit="s"
    )
    grace_s: float = limits.GRACE_S
    """How long a stopping node waits for a peer to request a post of the local user after its announcement."""
    answer_timeout_s: float = limits.ANSWER_TIMEOUT_S
    max_requests_alive: int = limits.MAX_REQUESTS_ALIVE
    max_queued_size_bytes: int = limits.MAX_QUEUED_SIZE_BYTES
    max_queued_total_size_bytes: int = _option(
        limits.MAX_QUEUED_TOTAL_SIZE_BYTES,
        "Maximum total size of the data queued for slow peers.",
        name="max-queued-size",
        unit="bytes",
        least=limits.MAX_MESSAGE_SIZE_BYTES,
    )
    max_faults: int = limits.MAX_FAULTS
    max_invalid_posts: int = limits.MAX_INVALID_POSTS
    rows_per_s: int = _option(limits.ROWS_PER_S, "Database rows per second that one peer may read.")
    rows_in_advance: int = _option(
        limits.ROWS_IN_ADVANCE, "Database rows that one peer may read at once after a pause."
    )

    __repr__ = hex_repr

    def __post_init__(self) -> None:
        """Reject a cabal key of the wrong type or size."""
        if self.cabal_key is None:
            return
        check_bytes("cabal_key", self.cabal_key)
        if len(self.cabal_key) != KEY_SIZE_BYTES:
            raise NodeError(f"invalid cabal key: it has {len(self.cabal_key)} bytes, expected {KEY_SIZE_BYTES}")

    def with_changes_of(self, other: NodeSettings) -> NodeSettings:
        """Return a copy with the values of `other` that a running node can change: limits, intervals and ages."""
        names = [each.name for each in fields(NodeSettings) if each.metadata.get("changes")]
        return replace(self, **{name: getattr(other, name) for name in names})
