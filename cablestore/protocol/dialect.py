"""The two dialects of the Cable wire format, with everything in which they differ.

All released implementations write an older format than the last draft of the specification. A store is made for one
dialect: cable-core.js 0.2, cable-client.js and cabin speak `legacy`; wire.md 1.0-draft8 is `draft8`. Posts of all types
except post/info have the same bytes in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from cablestore.errors import OpenError
from cablestore.protocol.keys import utf8

ARCHIVES_CHANNEL: Final = "cablestore-archives"
"""Channel in which control nodes announce history archives. The name is the same in both dialects."""
RESERVED_CHANNELS: Final = frozenset({ARCHIVES_CHANNEL})
"""Channels for messages between programs. They are stored, listed to peers and synced like all others, but not shown to
people."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Dialect of the wire format. What is not given is as in the specification, draft 8."""

    name: str
    request_id_size_bytes: int = 8
    circuit_id_size_bytes: int = 0
    requests_have_ttl: bool = False
    info_is_counted: bool = True
    """Whether post/info begins with the number of its pairs. Otherwise a key of length 0 ends them."""
    folds_channel_case: bool = True
    """Whether "cAbAL" is the same channel as "cabal" (wire.md 5.4.1, draft 8)."""

    def channel_id(self, name: str) -> str:
        """Return the form of a channel's name by which posts are compared, indexed and listed.

        Raises ArgumentError for a name that UTF-8 cannot say: no post can name that channel.
        """
        if not name.isascii():  # most names are, and this costs less than to encode them: each decoded post has one
            utf8(name, "a channel's name")
        return fold_case(name) if self.folds_channel_case else name


@lru_cache(maxsize=4096)
def fold_case(name: str) -> str:
    """Fold the case of each code point separately, so that a folded name never exceeds the limit on names."""
    return "".join(map(_fold_codepoint, name))


def _fold_codepoint(codepoint: str) -> str:
    for folded in (codepoint.casefold(), codepoint.lower()):
        if len(folded) == 1:
            return folded
    return codepoint


LEGACY: Final = Dialect(
    "legacy",
    request_id_size_bytes=4,
    circuit_id_size_bytes=4,
    requests_have_ttl=True,
    info_is_counted=False,
    folds_channel_case=False,
)
DRAFT8: Final = Dialect("draft8")
DIALECTS: Final = {dialect.name: dialect for dialect in (LEGACY, DRAFT8)}


def dialect_named(name: str) -> Dialect:
    """Return the dialect called `name`, or raise OpenError."""
    try:
        return DIALECTS[name]
    except KeyError:
        raise OpenError(
            f"unknown dialect {name!r}: this version of cablestore knows {', '.join(DIALECTS)}. Install a newer version"
        ) from None
