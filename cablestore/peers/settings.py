"""Settings of a node. `cablestore.limits` has the default of every number, with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from cablestore import limits
from cablestore.errors import NodeError
from cablestore.protocol.crypto import KEY_SIZE_BYTES
from cablestore.protocol.secure_channel import PROLOGUE

DEFAULT_PORT: Final = 13333
"""The default port of cable-client.js."""

SYNC_OVERLAP_MS: Final = 3_600_000
FULL_PASS_EVERY_MS: Final = 86_400_000
PAGE_HASHES: Final = 4_096
"""The most that existing clients give in one answer."""


class Address(NamedTuple):
    """Host and port where a peer listens."""

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
    """Settings of a node. Names of sizes end in `_bytes`, names of times in `_s` or `_ms`."""

    cabal_key: bytes | None = None
    """32 bytes that all members know: connections are encrypted and nobody else gets in. None: not encrypted, as existing clients."""
    prologue: bytes = PROLOGUE
    """Part of the handshake; cable-handshake.ts 1.0 has b"CABLE1.0"."""
    has_separate_static_key: bool = False
    """Whether the handshake uses a key pair of its own instead of the identity's, as cable-handshake.ts does."""
    channels: frozenset[str] | None = None
    """The channels to follow, None for all that peers name. Only these are asked for. Requests for any channel are answered."""
    window_ms: int | None = None
    """How far back posts are asked for, None for all."""
    page_hashes: int = PAGE_HASHES
    """Hashes of one page of history. Older ones are asked for page by page."""
    list_every_s: float = limits.LIST_EVERY_S
    """How often peers are asked for new channels. Those that announce them are asked every sixth time."""
    reconciles: bool = True
    """Whether to reconcile with peers that are cablestore too. Other peers notice nothing of it."""
    reconcile_every_s: float = 300.0
    """How often recent posts are reconciled with each peer that we connected to."""
    reconcile_window_ms: int = 3_600_000
    """How far back recent posts go."""
    reconcile_delay_ms: int = 20_000
    """How far back recent posts end: newer ones are on their way already."""
    reconcile_all_every_s: float = 86_400.0
    """How often all posts are reconciled."""
    max_talks: int = limits.MAX_TALKS
    talk_silence_s: float = limits.TALK_SILENCE_S
    relays: bool = True
    """Whether requests of legacy peers are forwarded to others by their ttl."""
    spares_cable_js: bool = True
    """Whether legacy peers that may be cable.js get nothing that ends it: peers without encryption, not known to be cablestore."""
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
