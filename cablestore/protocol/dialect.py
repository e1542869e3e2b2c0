"""The two wires that Cable peers speak, and everything in which they differ.

All released implementations write an older wire than the last draft of the specification. A store is made for one of
them: `legacy` is what cable-core.js 0.2, cable-client.js and cabin speak, `draft8` is wire.md 1.0-draft8. Posts of all
types but post/info are the same bytes in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from cablestore.errors import FormatError

ARCHIVES_CHANNEL: Final = "cablestore-archives"
"""Where control nodes announce history archives. Both dialects compare it by this name."""
RESERVED_CHANNELS: Final = frozenset({ARCHIVES_CHANNEL})
"""Channels in which programs speak to programs. They are stored, named to peers and synced as any other, but people are not
shown them."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One wire. Sizes are in bytes."""

    name: str
    request_id_size_bytes: int
    circuit_id_size_bytes: int
    requests_have_ttl: bool
    info_is_counted: bool
    """post/info starts with the number of its pairs; otherwise a key of length 0 ends them."""
    folds_channel_case: bool
    """wire.md 5.4.1 (draft 8): "cAbAL" is the same channel as "cabal"."""

    def channel_id(self, name: str) -> str:
        """Return the form of a channel's name by which posts are compared, indexed and listed."""
        return fold_case(name) if self.folds_channel_case else name


@lru_cache(maxsize=4096)
def fold_case(name: str) -> str:
    """Fold case code point by code point, so that a folded name is never longer than the limit on names allows."""
    return "".join(map(_fold_codepoint, name))


def _fold_codepoint(codepoint: str) -> str:
    for folded in (codepoint.casefold(), codepoint.lower()):
        if len(folded) == 1:
            return folded
    return codepoint


LEGACY: Final = Dialect(
    name="legacy",
    request_id_size_bytes=4,
    circuit_id_size_bytes=4,
    requests_have_ttl=True,
    info_is_counted=False,
    folds_channel_case=False,
)
DRAFT8: Final = Dialect(
    name="draft8",
    request_id_size_bytes=8,
    circuit_id_size_bytes=0,
    requests_have_ttl=False,
    info_is_counted=True,
    folds_channel_case=True,
)
DIALECTS: Final = {dialect.name: dialect for dialect in (LEGACY, DRAFT8)}


def dialect_named(name: str) -> Dialect:
    """Return the dialect called `name`, or raise FormatError."""
    try:
        return DIALECTS[name]
    except KeyError:
        raise FormatError(f"unknown dialect {name!r}; this version knows {', '.join(DIALECTS)}") from None
