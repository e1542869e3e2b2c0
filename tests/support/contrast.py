"""Colours on the screen of a terminal, from the bytes that a program wrote, with a palette."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

import pyte

Rgb = tuple[int, int, int]
_NAMES: Final = ("black", "red", "green", "brown", "blue", "magenta", "cyan", "white")
PALETTES: Final[dict[str, Sequence[int]]] = {
    "VGA": (
        *(0x000000, 0xAA0000, 0x00AA00, 0xAA5500, 0x0000AA, 0xAA00AA, 0x00AAAA, 0xAAAAAA),
        *(0x555555, 0xFF5555, 0x55FF55, 0xFFFF55, 0x5555FF, 0xFF55FF, 0x55FFFF, 0xFFFFFF),
    ),
    "xterm": (
        *(0x000000, 0xCD0000, 0x00CD00, 0xCDCD00, 0x0000EE, 0xCD00CD, 0x00CDCD, 0xE5E5E5),
        *(0x7F7F7F, 0xFF0000, 0x00FF00, 0xFFFF00, 0x5C5CFF, 0xFF00FF, 0x00FFFF, 0xFFFFFF),
    ),
}
"""The 16 colours of the Linux console, and of xterm."""


class Cell(NamedTuple):
    """A character on the screen, with its colours."""

    character: str
    front: Rgb
    back: Rgb

    @property
    def contrast(self) -> float:
        """The contrast of both colours, from 1 to 21 (WCAG 2.2)."""
        return contrast(self.front, self.back)


def cells_of(screen: pyte.Screen, palette: str) -> list[list[Cell]]:
    """Return the lines of a screen."""
    return [[_cell(screen.buffer[y][x], palette) for x in range(screen.columns)] for y in range(screen.lines)]


def _cell(drawn: pyte.screens.Char, palette: str) -> Cell:
    front, back = _rgb(drawn.fg, palette, is_back=False), _rgb(drawn.bg, palette, is_back=True)
    return Cell(drawn.data, back, front) if drawn.reverse else Cell(drawn.data, front, back)


@cache
def _rgb(colour: str, palette: str, *, is_back: bool) -> Rgb:
    if colour == "default":  # light on dark
        colour = "black" if is_back else "white"
    if (name := colour.removeprefix("bright").replace("bfight", "")) in _NAMES:  # pyte misspells bright magenta
        number = PALETTES[palette][_NAMES.index(name) + 8 * (name != colour)]
    else:
        number = int(colour, 16)
    return number >> 16, number >> 8 & 0xFF, number & 0xFF


@cache
def contrast(one: Rgb, other: Rgb) -> float:
    """Return the contrast of two colours."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: Rgb) -> float:
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (value / 255 for value in colour)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
