"""Invitation: the data that a new member needs to join a cabal, on one line.

    cable:<cabal key>?peer=<host:port>&peer=<host:port>&seed=<moderation seed>

The cabal key has 64 hex digits, and is omitted if connections are not encrypted. Peers are the addresses of members.
The seed is in hex digits, as moderation.md 4.7.2 defines it. The specification does not define how these values are
sent together. Names and values of the query are percent-encoded.
"""

from __future__ import annotations

import logging
import re
import stat
import sys
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import BinaryIO, Final, Self
from urllib.parse import parse_qsl, quote

from cablestore import limits
from cablestore.arguments import check_bytes
from cablestore.errors import ArgumentError, NodeError
from cablestore.files import text_of
from cablestore.moderation import Seed
from cablestore.peers.address import Address
from cablestore.protocol.crypto import KEY_SIZE_BYTES
from cablestore.reprs import hex_repr

_LOG: Final = logging.getLogger("cablestore.node")
_SCHEME: Final = "cable"
_KEY: Final = re.compile(r"[0-9A-Fa-f]{64}")
_HOST: Final = re.compile(r"[A-Za-z0-9_-]([A-Za-z0-9._-]{0,252})")
_STANDARD_INPUT: Final = "-"


@dataclass(frozen=True)
class Invitation:
    """Cabal key, addresses of peers, and the bytes of a moderation seed (b"" for none).

    `str` returns the text that `parse` reads. `repr` hides the key. Raises ArgumentError for invalid values.
    """

    cabal_key: bytes | None = field(repr=False)
    peers: tuple[Address, ...] = ()
    seed: bytes = b""

    __repr__ = hex_repr

    def __post_init__(self) -> None:
        """Reject values that others could not use."""
        if self.cabal_key is None and not self.peers:
            raise ArgumentError("invalid invitation: it contains neither a cabal key nor a peer. Add one of them")
        if self.cabal_key is not None:
            check_bytes("cabal_key", self.cabal_key)
            if len(self.cabal_key) != KEY_SIZE_BYTES:
                raise ArgumentError(f"invalid cabal key: it has {len(self.cabal_key)} bytes, expected {KEY_SIZE_BYTES}")
        if len(self.peers) > limits.MAX_INVITATION_PEERS:
            raise ArgumentError(
                f"too many peers: the invitation names {len(self.peers)}, the maximum is {limits.MAX_INVITATION_PEERS}"
            )
        for peer in self.peers:
            _require_reachable(peer)
        if self.seed:
            try:
                Seed.read(self.seed, 0)
            except ArgumentError as error:
                raise ArgumentError(f"invalid invitation: {error}") from None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an invitation, also with `cable://`. Raises ArgumentError, whose message does not contain the key."""
        if len(text) > limits.MAX_INVITATION_SIZE_CHARACTERS:
            raise ArgumentError(
                f"invalid invitation: it has more than {limits.MAX_INVITATION_SIZE_CHARACTERS:,} characters"
            )
        scheme, colon, rest = text.removeprefix("\ufeff").strip().partition(":")
        if not colon or scheme.lower() != _SCHEME:
            raise ArgumentError(
                f"invalid invitation: it does not begin with {_SCHEME}:. Copy the whole line that `cablestore invite` "
                "prints"
            )
        key, _, query = rest.removeprefix("//").partition("?")
        key = key.removesuffix("/")
        if key and _KEY.fullmatch(key) is None:
            raise ArgumentError(
                f"invalid invitation: expected a cabal key of {2 * KEY_SIZE_BYTES} hex digits, got {len(key)} "
                "characters. Copy the whole line"
            )
        peers, seeds = _fields(query)
        return cls(bytes.fromhex(key) if key else None, tuple(map(_address, peers)), _seed(seeds))

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """Read the invitation in a file, or on standard input if `path` is "-". Raises ArgumentError.

        Logs a warning if other users of the machine can read the file.
        """
        if str(path) == _STANDARD_INPUT:
            if sys.stdin is None:
                raise ArgumentError("cannot read an invitation from standard input: it is closed")
            return cls.parse(_text_of(sys.stdin.buffer, "standard input"))
        try:
            with Path(path).open("rb") as file:
                mode = Path(path).stat().st_mode
                text = _text_of(file, str(path))
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            raise ArgumentError(f"cannot read an invitation from {path}: {_reason(error)}") from None
        if stat.S_ISREG(mode) and mode & 0o077:
            fields = {"path": str(path), "mode": f"{stat.S_IMODE(mode):04o}"}
            _LOG.warning("other users of this machine can read the invitation: prevent it with chmod 600", extra=fields)
        return cls.parse(text)

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        pairs = [("peer", str(peer)) for peer in self.peers] + ([("seed", self.seed.hex())] if self.seed else [])
        query = "&".join(f"{name}={quote(value, safe=':[]')}" for name, value in pairs)
        key = "" if self.cabal_key is None else self.cabal_key.hex()
        return f"{_SCHEME}:{key}" + (f"?{query}" if query else "")


# --- parts ----------------------------------------------------------------------------------------


def _fields(query: str) -> tuple[list[str], list[str]]:
    """Return the peers and the seeds in a query."""
    found: dict[str, list[str]] = {"peer": [], "seed": []}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, errors="strict") if query else []
    except ValueError:
        raise ArgumentError(
            "invalid invitation: expected parameters such as peer=HOST:PORT after the ?, separated by &"
        ) from None
    for name, value in pairs:
        if name not in found:
            raise ArgumentError(
                f"invalid invitation: unknown parameter {name[:20]!r}, expected peer or seed. Use the version of "
                "cablestore that created it, or a newer one"
            )
        found[name].append(value)
    return found["peer"], found["seed"]


def _address(text: str) -> Address:
    try:
        return Address.parse(text)
    except NodeError as error:
        raise ArgumentError(f"invalid invitation: {error}") from None


def _seed(texts: list[str]) -> bytes:
    if not texts:
        return b""
    if len(texts) > 1:
        raise ArgumentError(f"invalid invitation: it contains {len(texts)} moderation seeds, expected one")
    try:
        return Seed.read_hex(texts[0], 0).write()
    except ArgumentError as error:
        raise ArgumentError(f"invalid invitation: {error}") from None


def _require_reachable(peer: Address) -> None:
    """Raise ArgumentError for an address that cannot be connected to."""
    host, port = peer
    try:
        if ":" in host:
            is_possible = not ip_address(host.partition("%")[0]).is_unspecified and "%" not in host
        else:
            is_possible = _HOST.fullmatch(host.encode("idna").decode()) is not None and host.isprintable()
            is_possible = is_possible and host != "0.0.0.0"  # noqa: S104 - this address is rejected
    except ValueError:
        is_possible = False
    if not is_possible or not 0 < port < 65_536:
        raise ArgumentError(
            f"invalid peer address {str(peer)[:100]!r}: expected an address that others can reach, such as chat.example:13333"
        )


def _text_of(file: BinaryIO, where: str) -> str:
    """Return the text at the start of an open file: enough that `parse` rejects a text that is too long.

    `where` names the file in the ArgumentError that is raised if it is not text.
    """
    try:
        return text_of(file.read(4 * limits.MAX_INVITATION_SIZE_CHARACTERS + 1))
    except UnicodeDecodeError:
        raise ArgumentError(f"cannot read an invitation from {where}: it is not text") from None


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
