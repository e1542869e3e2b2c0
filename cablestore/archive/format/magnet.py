"""Magnet links of communities' torrents, community ids and tracker URLs (BEP 9). Pure, without libtorrent."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import parse_qsl, quote, urlsplit

from cablestore import limits
from cablestore.errors import ArchiveError

_COMMUNITY: Final = re.compile(r"(0x)?[0-9a-f]{1,128}")
_INFO_HASH: Final = re.compile(r"[0-9a-f]{40}")
_TRACKER_SCHEMES: Final = frozenset({"udp", "http", "https"})


@dataclass(frozen=True, slots=True)
class Magnet:
    """Magnet link: `magnet:?xt=urn:btih:INFO-HASH&dn=COMMUNITY&tr=TRACKER`. `str()` returns its text."""

    info_hash: str
    """40 hex digits."""
    community: str
    trackers: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a link. Parameters other than xt, dn and tr are ignored. Raises ArchiveError for an invalid link."""
        size_bytes = len(text.encode(errors="replace"))
        if size_bytes > limits.MAX_MAGNET_SIZE_BYTES:
            raise ArchiveError(
                f"magnet link too large: {size_bytes:,} bytes, the maximum is {limits.MAX_MAGNET_SIZE_BYTES:,}"
            )
        if not text.startswith("magnet:?"):
            raise ArchiveError(f"invalid magnet link {text[:60]!r}: expected magnet:?xt=urn:btih:...")
        fields = parse_qsl(text.removeprefix("magnet:?"), keep_blank_values=True)
        topics = [value for key, value in fields if key == "xt"]
        names = [value for key, value in fields if key == "dn"]
        if len(topics) != 1 or len(names) != 1:
            raise ArchiveError(
                f"invalid magnet link: expected one xt and one dn parameter, got {len(topics)} and {len(names)}"
            )
        info_hash = topics[0].removeprefix("urn:btih:").lower()
        if not topics[0].startswith("urn:btih:") or not _INFO_HASH.fullmatch(info_hash):
            raise ArchiveError(f"invalid magnet link: expected urn:btih: and 40 hex digits, got {topics[0][:80]!r}")
        trackers = tuple(check_tracker(value) for key, value in fields if key == "tr")
        if len(trackers) > limits.MAX_TRACKERS:
            raise ArchiveError(
                f"too many trackers in the magnet link: {len(trackers)}, the maximum is {limits.MAX_TRACKERS}"
            )
        return cls(info_hash, check_community(names[0]), trackers)

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        trackers = "".join(f"&tr={quote(url, safe='')}" for url in self.trackers)
        return f"magnet:?xt=urn:btih:{self.info_hash}&dn={self.community}{trackers}"


def check_community(name: str) -> str:
    """Return a community id if it is valid: hex digits in lower case. Raises ArchiveError otherwise."""
    if not _COMMUNITY.fullmatch(name):
        raise ArchiveError(f"invalid community id {name[:140]!r}: expected up to 128 hex digits in lower case")
    return name


def check_tracker(url: str) -> str:
    """Return the URL of a tracker if it is valid. Raises ArchiveError otherwise."""
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in _TRACKER_SCHEMES and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_one = False
    if not is_one or not url.isascii() or not url.isprintable():
        raise ArchiveError(f"invalid tracker {url[:100]!r}: expected udp://, http:// or https://, and a host")
    return url
