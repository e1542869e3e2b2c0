"""The two dialects of the Cable wire format, and their differences.

All released implementations write an older format than the last draft of the specification. A store has one dialect:
cable-core.js 0.2, cable-client.js and cabin use `legacy`; wire.md 1.0-draft8 is `draft8`. Posts of all types except
post/info have the same bytes in both.
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
"""Channels for messages between programs. They are stored, listed to peers and synced like all other channels, but
hidden from users.
"""


@dataclass(frozen=True, slots=True)
class Dialect:
    """A dialect of the wire format. The defaults are the values of the specification, draft 8."""

    name: str
    request_id_size_bytes: int = 8
    circuit_id_size_bytes: int = 0
    requests_have_ttl: bool = False
    info_is_counted: bool = True
    """True if post/info starts with the number of its pairs. Otherwise a key of length 0 ends them."""
    folds_channel_case: bool = True
    """True if "cAbAL" is the same channel as "cabal" (wire.md 5.4.1, draft 8)."""

    def channel_id(self, name: str) -> str:
        """Return the form of a channel's name in which posts are compared, indexed and listed.

        Raises ArgumentError for a name that cannot be encoded as UTF-8. Posts cannot contain such a name.
        """
        if not name.isascii():  # encoding the name of each decoded post would cost more
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
    """Return the dialect called `name`. Raises OpenError for an unknown name."""
    try:
        return DIALECTS[name]
    except KeyError:
        raise OpenError(
            f"unknown dialect {name!r}: this version of cablestore knows {', '.join(DIALECTS)}. Install a newer version"
        ) from None
