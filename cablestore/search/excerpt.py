"""Excerpt: the part of a text around its first match, with the matches marked."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

EXCERPT_CHARACTERS: Final = 160
_BEFORE: Final = 40
"""Characters before the first match, if the text has as many."""
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Zl", "Zp"})


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Part of a text in one line, safe to print, with the positions of the matches in it.

    Line breaks, control characters and invisible characters become spaces. An ellipsis marks omitted text.
    """

    text: str
    marks: tuple[tuple[int, int], ...]

    def parts(self) -> list[tuple[str, bool]]:
        """Return the text split at `marks`: (part, True if the part is a match), in order, without empty parts."""
        found, at = list[tuple[str, bool]](), 0
        for start, end in self.marks:
            found += [(self.text[at:start], False), (self.text[start:end], True)]
            at = end
        return [(text, is_match) for text, is_match in [*found, (self.text[at:], False)] if text]


def merged(places: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the ranges (begin, end) in `places`, sorted. Overlapping or adjacent ranges become one."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(places):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return tuple(found)


def excerpt_of(text: str, marks: tuple[tuple[int, int], ...]) -> Excerpt:
    """Return the part of a text around its first match. `marks` are (begin, end) of the matches in `text`, in order."""
    first = marks[0][0] if marks else 0
    start = max(0, min(first - _BEFORE, len(text) - EXCERPT_CHARACTERS))
    end = min(len(text), start + EXCERPT_CHARACTERS)
    shown = "".join(" " if unicodedata.category(c) in _INVISIBLE else c for c in text[start:end])
    before, after = "…" * (start > 0), "…" * (end < len(text))
    shift = len(before) - start
    inside = tuple((a + shift, min(b, end) + shift) for a, b in marks if a < end)
    return Excerpt(before + shown + after, inside)
