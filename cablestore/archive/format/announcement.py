"""Announcements: posts in which a control node publishes the link to its archives. Pure.

    archives CLOCK magnet:?xt=urn:btih:INFO-HASH&dn=COMMUNITY&tr=TRACKER
    archives CLOCK codex:CONTENT-ID-OF-THE-INDEX

The post is in the reserved channel `dialect.ARCHIVES_CHANNEL`. Members use only the control node's announcement with
the greatest clock. Clients that do not know the channel show announcements as messages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from cablestore.archive.format.cid import CODEC_MANIFEST, Cid
from cablestore.archive.format.magnet import Magnet
from cablestore.errors import ArchiveError
from cablestore.limits import MAX_TEXT_SIZE_BYTES
from cablestore.protocol.varint import MAX_VARINT

_TEXT: Final = re.compile(r"archives (0|[1-9][0-9]{0,19}) ([!-~]+)", re.ASCII)
CODEX: Final = "codex:"
"""Prefix of a link to a content id."""

Link = Magnet | Cid
"""Link to archives: a torrent, or the content id of an index."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """Announcement of a link to the newest archives: a magnet link, or the content id of their index.

    `clock` is 0 to 2**64 - 1 and grows with each announcement of a control node, such as milliseconds since 1970.
    """

    clock: int
    link: Link

    def __post_init__(self) -> None:
        """Raise ArchiveError for a clock outside 64 bits."""
        if not 0 <= self.clock <= MAX_VARINT:
            raise ArchiveError(f"invalid clock of an announcement: expected 0 to {MAX_VARINT}, got {self.clock}")

    def text(self) -> str:
        """Return the text of the post. Raises ArchiveError if it exceeds the limit of a post/text."""
        text = f"archives {self.clock} {link_text(self.link)}"
        if len(text.encode()) > MAX_TEXT_SIZE_BYTES:
            raise ArchiveError(
                f"announcement too large: {len(text.encode())} bytes, the maximum is {MAX_TEXT_SIZE_BYTES}. Use "
                "fewer trackers"
            )
        return text


def parse_announcement(text: str) -> Announcement:
    """Parse an announcement from the text of a post.

    Raises ArchiveError for text that `Announcement.text` does not return.
    """
    found = _TEXT.fullmatch(text)
    if found is None or len(text) > MAX_TEXT_SIZE_BYTES:
        raise ArchiveError(f"invalid announcement {text[:80]!r}: expected archives CLOCK LINK")
    link = parse_link(found[2])
    if link_text(link) != found[2]:
        raise ArchiveError(f"invalid link {found[2][:80]!r}: expected {link_text(link)[:80]!r}")
    return Announcement(int(found[1]), link)


def parse_link(text: str) -> Link:
    """Parse a pasted link, `magnet:?xt=...` or `codex:CONTENT-ID`. Raises ArchiveError for other text."""
    if text.startswith(CODEX):
        cid = Cid.parse(text.removeprefix(CODEX))
        if cid.codec != CODEC_MANIFEST:
            raise ArchiveError(f"invalid content id of an index: expected the id of its manifest, got {cid}")
        return cid
    if text.startswith("magnet:"):
        return Magnet.parse(text)
    raise ArchiveError(f"invalid link to archives {text[:80]!r}: expected magnet:?xt=urn:btih:... or {CODEX}CONTENT-ID")


def link_text(link: Link) -> str:
    """Return a link as in announcements. `parse_link` parses it."""
    return f"{CODEX}{link}" if isinstance(link, Cid) else str(link)
