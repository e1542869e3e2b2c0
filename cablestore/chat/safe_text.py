"""Text of other users in terminal cells: without control characters, and wrapped to a width.

Terminals disagree on the width of some grapheme clusters, such as emoji families and Hindi vowel signs. A cluster
therefore has two widths: it is laid out in `cell_len` cells, and no terminal draws it in more than `most_cells`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import wcwidth
from rich.cells import cell_len

from cablestore.controls import controls_replaced

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_LINE_BREAK: Final = re.compile("\r\n|[\r\x85\u2028\u2029]")
_ASCII_WORD: Final = re.compile(" *[^ ]+ *| +")
_TAB_WIDTH: Final = 4
_MAX_CLUSTER: Final = 64
"""Maximum number of characters in one cluster. The longest flag has 14 characters, a Tibetan stack fewer than 10."""


def clean(text: str, *, lines: bool = False) -> str:
    """Return text without characters that move the cursor, change the direction of lines, or control the terminal.

    With `lines`, keep line breaks, and replace tabs by spaces.
    """
    if text.isascii() and text.isprintable():
        return text
    if not lines:
        return controls_replaced(text, lambda _: _REPLACEMENT)
    text = _LINE_BREAK.sub("\n", text).replace("\t", " " * _TAB_WIDTH)
    return controls_replaced(text, lambda character: "\n" if character == "\n" else _REPLACEMENT)


def clusters(text: str) -> list[str]:
    """Return the grapheme clusters (user-perceived characters) of a text. Split clusters longer than _MAX_CLUSTER."""
    found: list[str] = []
    for cluster in wcwidth.iter_graphemes(text):
        if len(cluster) <= _MAX_CLUSTER:
            found.append(cluster)
        else:
            found += (cluster[at : at + _MAX_CLUSTER] for at in range(0, len(cluster), _MAX_CLUSTER))
    return found


@lru_cache(8192)
def _cluster_most(cluster: str) -> int:
    """Return the maximum width of a cluster in cells, also in a terminal that draws its characters separately."""
    apart = sum(max(wcwidth.wcwidth(character), 0) for character in cluster)
    return max(cell_len(cluster), wcwidth.width(cluster), apart)


def most_cells(text: str) -> int:
    """Return the maximum width of clean text in cells, on any terminal."""
    return len(text) if text.isascii() else sum(map(_cluster_most, clusters(text)))


def fit(text: str, width: int) -> str:
    """Return one line of clean text truncated to a width in cells, with an ellipsis if it is shortened."""
    if most_cells(text) <= width:
        return text
    return _chopped(text, width - 1)[0] + "…" if width > 1 else "…"[:width]


def wrap(text: str, width: int) -> list[str]:
    """Return clean text as lines of at most `width` cells, broken between words where possible."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        if len(paragraph) <= width and paragraph.isascii():
            lines.append(paragraph)
        else:
            lines += _wrapped(paragraph, max(width, 2))
    return lines


def _wrapped(paragraph: str, width: int) -> list[str]:
    lines: list[str] = []
    line, used = "", 0
    for word in _words(paragraph):
        if used + most_cells(word.rstrip(" ")) <= width:
            line, used = line + word, used + most_cells(word)
            continue
        if line:
            lines.append(line.rstrip(" "))
        pieces = _chopped(word, width) if most_cells(word.rstrip(" ")) > width else [word]
        lines += pieces[:-1]
        line = pieces[-1]
        used = most_cells(line)
    return [*lines, line.rstrip(" ")]


def _words(paragraph: str) -> Iterator[str]:
    """Yield words with their trailing spaces. Lines may break before and after a character of East Asian width."""
    if paragraph.isascii():
        yield from _ASCII_WORD.findall(paragraph)
        return
    word, was_wide = "", False
    for cluster in clusters(paragraph):
        if cluster != " ":
            is_wide = unicodedata.east_asian_width(cluster[0]) in {"W", "F"}
            if word.strip(" ") and (word.endswith(" ") or is_wide or was_wide):
                yield word
                word = ""
            was_wide = is_wide
        word += cluster
    yield word


def _chopped(word: str, width: int) -> list[str]:
    """Return clean text in pieces of at most `width` cells, cut between clusters."""
    if word.isascii():
        return [word[at : at + width] for at in range(0, len(word), width)] or [""]
    pieces, used = [""], 0
    for cluster in clusters(word):
        most = _cluster_most(cluster)
        if used + most > width and pieces[-1]:
            pieces.append("")
            used = 0
        pieces[-1] += cluster
        used += most
    return pieces
