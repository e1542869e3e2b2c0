"""Links to web pages in messages: their positions in a text, and the sequences that make them clickable. Pure.

Only addresses with `http` and `https` become links. A click on `magnet:` starts a download, and `mailto:` and others
start programs with the author's content. Programs for `cable:` do not exist, and such links contain keys.

The target of a link is its visible text. An address is not a link if it can hide its target, or is too long: with a
user before the host, a non-ASCII host, invisible or replaced characters, or more than MAX_LINK_SIZE_BYTES.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from string import ascii_letters, digits
from typing import Final, NamedTuple
from urllib.parse import quote

from cablestore.chat.notifications import KNOWN_TERMINALS, is_in_emacs

MAX_LINK_SIZE_BYTES: Final = 2_083
"""Maximum length of a link. Terminals with VTE and browsers ignore longer links."""
_BEGINS: Final = re.compile(r"(?<![^\W_])https?://", re.IGNORECASE)
_HOST: Final = re.compile(
    r"https?://(?:[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?(?=[/?#]|\Z)",
    re.IGNORECASE | re.ASCII,
)
_OF_A_LINK: Final = frozenset(ascii_letters + digits + "-._~:/?#[]@!$&'()*+,;=%")
_OPENERS: Final = {")": "(", "]": "["}
_OF_THE_SENTENCE: Final = ".,;:!?'*(["
"""Characters at the end of a link that belong to the sentence around it."""
_LOOK_ALIKES: Final = frozenset("\N{REPLACEMENT CHARACTER}\u2024\u2044\u2215\u29f8\uff0e\uff0f")
"""Replacement character, and characters that look like a slash or a full stop."""
_HIDES: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs"})
_SEQUENCE: Final = re.compile(r"\x1b\]8;[^;\x1b]*;([^\x1b]*)\x1b\\")
"""Beginning or end of a link on a terminal (OSC 8). The end has no target."""


class Link(NamedTuple):
    """Link in a text: its first character, the character after its end, and its target in ASCII."""

    start: int
    stop: int
    target: str


def links_in(text: str) -> list[Link]:
    """Return the links in clean text."""
    found: list[Link] = []
    end = 0
    while match := _BEGINS.search(text, end):
        start = match.start()
        end, hides = _scanned(text, start)
        shown = text[start:end].rstrip(_OF_THE_SENTENCE)
        target = "".join(each if each.isascii() else quote(each) for each in shown)
        if not hides and _HOST.match(shown) and len(target) <= MAX_LINK_SIZE_BYTES:
            found.append(Link(start, start + len(shown), target))
    return found


def _scanned(text: str, start: int) -> tuple[int, bool]:
    """Return the end of a link that begins at `start`, and True if the link may hide its target."""
    depth = dict.fromkeys(_OPENERS.values(), 0)
    for at in range(start, len(text)):
        character = text[at]
        kind = unicodedata.category(character)
        if character in _LOOK_ALIKES or kind in _HIDES:
            return at + 1, True
        opener = _OPENERS.get(character, "")
        is_of_the_link = character in _OF_A_LINK if character.isascii() else kind[0] in "LMN"
        if not is_of_the_link or (opener and not depth[opener]):
            return at, False
        if opener:
            depth[opener] -= 1
        elif character in depth:
            depth[character] += 1
    return len(text), False


def links_of_lines(text: str, lines: Sequence[str]) -> list[tuple[Link, ...]]:
    """Return the parts of links in each line of a wrapped text, with their positions in the line."""
    links, found, place = links_in(text), [], 0
    for line in lines:
        start = max(text.find(line, place), place)
        place = start + len(line)
        parts = ((max(each.start, start), min(each.stop, place), each.target) for each in links)
        found.append(tuple(Link(first - start, stop - start, to) for first, stop, to in parts if first < stop))
    return found


def with_link_ids(output: str, environ: Mapping[str, str]) -> str:
    """Assign one id to all parts of a link in the output, so that the terminal shows one link over several lines.

    Remove the links if the terminal may print their sequences.
    """
    if "\x1b]8;" not in output:
        return output
    knows = not is_in_emacs(environ) and environ.get("TERM", "").startswith((*KNOWN_TERMINALS, "tmux"))
    if not (knows or "TMUX" in environ):
        return _SEQUENCE.sub("", output)
    return _SEQUENCE.sub(_with_id, output)


def _with_id(match: re.Match[str]) -> str:
    target = match[1]
    if not target:
        return match[0]
    return f"\x1b]8;id={blake2b(target.encode(), digest_size=6).hexdigest()};{target}\x1b\\"
