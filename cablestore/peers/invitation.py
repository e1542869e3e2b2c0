"""Invitation: what somebody needs to join a cabal, on one line.

    cable:<cabal key>?peer=<host:port>&peer=<host:port>&seed=<moderation seed>

The cabal key is in 64 hex digits, and is left out if connections are not encrypted. Peers are where members can be
reached. The seed is in hex digits, as moderation.md 4.7.2 defines it. The specification leaves open how the three travel
together. Names and values of the query are percent-encoded.
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

    `str` gives the text that `parse` reads. `repr` shows no key. Raises ArgumentError for what is no invitation.
    """

    cabal_key: bytes | None = field(repr=False)
    peers: tuple[Address, ...] = ()
    seed: bytes = b""

    __repr__ = hex_repr

    def __post_init__(self) -> None:
        """Refuse what others could not use."""
        if self.cabal_key is None and not self.peers:
            raise ArgumentError("the invitation has neither a cabal key nor a peer: one of them is needed")
        if self.cabal_key is not None and len(self.cabal_key) != KEY_SIZE_BYTES:
            raise ArgumentError(f"a cabal key has {KEY_SIZE_BYTES} bytes, this one {len(self.cabal_key)}")
        if len(self.peers) > limits.MAX_INVITATION_PEERS:
            raise ArgumentError(
                f"the invitation names {len(self.peers)} peers, allowed are {limits.MAX_INVITATION_PEERS}"
            )
        for peer in self.peers:
            _require_reachable(peer)
        if self.seed:
            try:
                Seed.read(self.seed, 0)
            except ArgumentError as error:
                raise ArgumentError(f"the invitation cannot be used: {error}") from None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text of an invitation, also with `cable://`. Raises ArgumentError, which shows no key."""
        if len(text) > limits.MAX_INVITATION_SIZE_CHARACTERS:
            raise ArgumentError(
                f"the text has more than {limits.MAX_INVITATION_SIZE_CHARACTERS:,} characters: it is not an invitation"
            )
        scheme, colon, rest = text.removeprefix("\ufeff").strip().partition(":")
        if not colon or scheme.lower() != _SCHEME:
            raise ArgumentError(f"an invitation begins with {_SCHEME}: and is a text as `cablestore invite` prints it")
        key, _, query = rest.removeprefix("//").partition("?")
        key = key.removesuffix("/")
        if key and _KEY.fullmatch(key) is None:
            raise ArgumentError(
                f"the cabal key of an invitation has {2 * KEY_SIZE_BYTES} hex digits; {len(key)} characters are there "
                "that are no such key. Copy the whole line"
            )
        peers, seeds = _fields(query)
        return cls(bytes.fromhex(key) if key else None, tuple(map(_address, peers)), _seed(seeds))

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """Read the invitation in a file, or on standard input if `path` is "-". Raises ArgumentError.

        A file that other users of the machine can read is a warning in the log.
        """
        if str(path) == _STANDARD_INPUT:
            if sys.stdin is None:
                raise ArgumentError("no invitation can be read from standard input: it is closed")
            return cls.parse(_text_of(sys.stdin.buffer, "standard input"))
        try:
            with Path(path).open("rb") as file:
                mode = Path(path).stat().st_mode
                text = _text_of(file, str(path))
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            raise ArgumentError(f"no invitation can be read from {path}: {_reason(error)}") from None
        if stat.S_ISREG(mode) and mode & 0o077:
            fields = {"path": str(path), "mode": f"{stat.S_IMODE(mode):04o}"}
            _LOG.warning("other users of this machine can read the invitation: chmod 600 prevents it", extra=fields)
        return cls.parse(text)

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        pairs = [("peer", str(peer)) for peer in self.peers] + ([("seed", self.seed.hex())] if self.seed else [])
        query = "&".join(f"{name}={quote(value, safe=':[]')}" for name, value in pairs)
        key = "" if self.cabal_key is None else self.cabal_key.hex()
        return f"{_SCHEME}:{key}" + (f"?{query}" if query else "")


# --- parts ----------------------------------------------------------------------------------------


def _fields(query: str) -> tuple[list[str], list[str]]:
    """Return the peers and the seeds that a query names."""
    found: dict[str, list[str]] = {"peer": [], "seed": []}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, errors="strict") if query else []
    except ValueError:
        raise ArgumentError("after the ? of an invitation come parts like peer=HOST:PORT with & in between") from None
    for name, value in pairs:
        if name not in found:
            raise ArgumentError(
                f"the invitation has a part {name[:20]!r}, known are peer and seed: use the version of cablestore that "
                "made it, or a newer one"
            )
        found[name].append(value)
    return found["peer"], found["seed"]


def _address(text: str) -> Address:
    try:
        return Address.parse(text)
    except NodeError as error:
        raise ArgumentError(f"the invitation cannot be used: {error}") from None


def _seed(texts: list[str]) -> bytes:
    if not texts:
        return b""
    if len(texts) > 1:
        raise ArgumentError(f"the invitation has {len(texts)} moderation seeds, allowed is one")
    try:
        return Seed.read_hex(texts[0], 0).write()
    except ArgumentError as error:
        raise ArgumentError(f"the invitation cannot be used: {error}") from None


def _require_reachable(peer: Address) -> None:
    """Raise ArgumentError for an address to which nobody can connect."""
    host, port = peer
    try:
        if ":" in host:
            is_possible = not ip_address(host.partition("%")[0]).is_unspecified and "%" not in host
        else:
            is_possible = _HOST.fullmatch(host.encode("idna").decode()) is not None and host.isprintable()
            is_possible = is_possible and host != "0.0.0.0"  # noqa: S104 - that is what is refused
    except ValueError:
        is_possible = False
    if not is_possible or not 0 < port < 65_536:
        raise ArgumentError(
            f"{str(peer)[:100]!r} is not an address to connect to: expected one that others can reach, as in chat.example:13333"
        )


def _text_of(file: BinaryIO, where: str) -> str:
    """Return the text of an open file, as far as an invitation may reach."""
    try:
        return text_of(file.read(4 * limits.MAX_INVITATION_SIZE_CHARACTERS + 1))
    except UnicodeDecodeError:
        raise ArgumentError(f"{where} has no invitation: it is not text") from None


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
