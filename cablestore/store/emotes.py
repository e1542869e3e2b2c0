"""Emotes: messages that say what their author does, as `/me` makes them in IRC.

An emote is a post/text whose text is `/me`, a space, and what the author does: `/me waves` of ann reads `* ann waves`.
The client and the importer of chat logs write it so. Other programs show the text as it is.
"""

from __future__ import annotations

from typing import Final

_SIGN: Final = "/me"


def as_emote(done: str) -> str:
    """Return the text of a message that says what its author does."""
    return f"{_SIGN} {done}"


def emote_of(text: str) -> str | None:
    """Return what the author of a message does, None if its text is not an emote."""
    sign, _, done = text.partition(" ")
    return done if sign == _SIGN else None


def shown_parts(parts: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Return the parts of an excerpt of an emote without the sign, if the excerpt has the beginning of the text."""
    left = len(_SIGN) + 1
    if not "".join(part for part, _ in parts).startswith(f"{_SIGN} "):
        return parts
    found = []
    for part, is_match in parts:
        found.append((part[left:], is_match))
        left = max(0, left - len(part))
    return [(part, is_match) for part, is_match in found if part]
