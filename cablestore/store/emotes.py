"""Emotes: messages that describe an action of their author, like `/me` in IRC.

The text of an emote is `/me`, a space, and the action. The client displays `/me waves` of ann as `* ann waves`. The
importer of chat logs also writes this form. Other programs display the text unchanged.
"""

from __future__ import annotations

from typing import Final

_SIGN: Final = "/me"


def as_emote(done: str) -> str:
    """Return the text of an emote: `/me waves` for `waves`."""
    return f"{_SIGN} {done}"


def emote_of(text: str) -> str | None:
    """Return the action in an emote (`waves` for `/me waves`), None for other texts."""
    sign, _, done = text.partition(" ")
    return done if sign == _SIGN else None


def shown_parts(parts: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Remove `/me ` from the parts of an excerpt that begins with it."""
    left = len(_SIGN) + 1
    if not "".join(part for part, _ in parts).startswith(f"{_SIGN} "):
        return parts
    found = []
    for part, is_match in parts:
        found.append((part[left:], is_match))
        left = max(0, left - len(part))
    return [(part, is_match) for part, is_match in found if part]
