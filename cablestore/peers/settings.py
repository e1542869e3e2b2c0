"""What can be set about a node: every number has its default and its reason in `cablestore.limits`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from cablestore import limits
from cablestore.errors import NodeError
from cablestore.protocol.crypto import KEY_SIZE_BYTES
from cablestore.protocol.secure_channel import PROLOGUE

DEFAULT_PORT: Final = 13333
"""The port that cable-client.js takes."""

SYNC_OVERLAP_MS: Final = 3_600_000
FULL_PASS_EVERY_MS: Final = 86_400_000
PAGE_HASHES: Final = 4_096
"""What existing clients give at most in one answer."""


class Address(NamedTuple):
    """Where a peer listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, default_port: int = DEFAULT_PORT) -> Address:
        """Read `host`, `host:port` or `[v6]:port`. Raises NodeError."""
        host, port = text, str(default_port)
        if text.startswith("["):
            host, bracket, rest = text[1:].partition("]")
            port = (rest.removeprefix(":") or port) if bracket else ""
        elif text.count(":") == 1:
            host, port = text.split(":")
        if not host or not port.isdecimal() or int(port) > 65_535:
            raise NodeError(f"{text!r} is no address: expected host:port, as in 127.0.0.1:{default_port}")
        return cls(host, int(port))

    def __str__(self) -> str:
        """Return the form that `parse` reads."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """How a node behaves. Sizes are in bytes, times in seconds, both named so."""

    cabal_key: bytes | None = None
    """32 bytes that all members know: connections are encrypted and nobody else gets in. None speaks as existing clients do."""
    prologue: bytes = PROLOGUE
    """Part of the handshake; cable-handshake.ts 1.0 has b"CABLE1.0"."""
    has_separate_static_key: bool = False
    """Show a key pair of its own in the handshake instead of the identity's, as cable-handshake.ts does."""
    channels: frozenset[str] | None = None
    """The channels to follow; None follows all that peers name. Only what is followed is asked for; everything is answered."""
    window_ms: int | None = None
    """How far back posts are asked for, None from the beginning."""
    page_hashes: int = PAGE_HASHES
    """Hashes of one page of history; older ones are asked for page by page."""
    list_every_s: float = limits.LIST_EVERY_S
    """How often peers are asked for channels that are new; those that tell of them, every sixth time."""
    reconciles: bool = True
    """Whether stores like this one are kept in step by reconciliation. Other peers notice nothing of it."""
    reconcile_every_s: float = 300.0
    """How often the recent posts are reconciled with each peer that we connected to."""
    reconcile_window_ms: int = 3_600_000
    """How far back recent posts go."""
    reconcile_delay_ms: int = 20_000
    """How far back recent posts end: younger ones are on their way anyhow."""
    reconcile_all_every_s: float = 86_400.0
    """How often all posts are reconciled."""
    max_talks: int = limits.MAX_TALKS
    talk_silence_s: float = limits.TALK_SILENCE_S
    relays: bool = True
    """Whether requests of legacy peers go on to others by their ttl."""
    spares_cable_js: bool = True
    """Whether what ends cable.js is kept from legacy peers that may be it: not encrypted, and not known to be cablestore."""
    max_peers: int = limits.MAX_PEERS
    max_peers_per_address: int = limits.MAX_PEERS_PER_ADDRESS
    max_handshakes: int = limits.MAX_HANDSHAKES
    max_handshakes_per_address: int = limits.MAX_HANDSHAKES_PER_ADDRESS
    handshake_timeout_s: float = limits.HANDSHAKE_TIMEOUT_S
    idle_timeout_s: float = limits.IDLE_TIMEOUT_S
    answer_timeout_s: float = limits.ANSWER_TIMEOUT_S
    max_requests_alive: int = limits.MAX_REQUESTS_ALIVE
    max_queued_size_bytes: int = limits.MAX_QUEUED_SIZE_BYTES
    max_queued_total_size_bytes: int = limits.MAX_QUEUED_TOTAL_SIZE_BYTES
    max_faults: int = limits.MAX_FAULTS
    max_invalid_posts: int = limits.MAX_INVALID_POSTS
    rows_per_s: int = limits.ROWS_PER_S
    rows_in_advance: int = limits.ROWS_IN_ADVANCE

    def __post_init__(self) -> None:
        """Refuse a cabal key of the wrong size."""
        if self.cabal_key is not None and len(self.cabal_key) != KEY_SIZE_BYTES:
            raise NodeError(f"a cabal key has {KEY_SIZE_BYTES} bytes, this one {len(self.cabal_key)}")
