"""The two looks of the client: quiet colours that keep a contrast of 4.5 to 1 on both of their backgrounds."""

from __future__ import annotations

from typing import Any, Final

from textual.theme import Theme

_COLOURS: Final = {
    "primary": ("#7fb4e0", "#1f5f99"),
    "secondary": ("#8a93a6", "#5f6673"),
    "accent": ("#e5b567", "#8a5200"),
    "warning": ("#e5b567", "#8a5200"),
    "error": ("#ec8a80", "#a62b22"),
    "success": ("#8fc48a", "#2f6b2b"),
    "foreground": ("#d8dbe2", "#22262e"),
    "background": ("#15171c", "#fcfcfa"),
    "surface": ("#1f232b", "#eceae4"),
    "panel": ("#1b1e25", "#f3f2ee"),
}
"""Colours of the dark and of the light look, by Textual's names."""
_OWN_COLOURS: Final = {
    "author-0": ("#7fb4e0", "#1f5f99"),
    "author-1": ("#8fc48a", "#2f6b2b"),
    "author-2": ("#d7a8d8", "#83388a"),
    "author-3": ("#e0b070", "#85560b"),
    "author-4": ("#79c7c0", "#0f6a66"),
    "author-5": ("#e59a8f", "#a03a2c"),
    "text-muted": ("#8f98a8", "#5d6470"),
    "text-disabled": ("#7a8394", "#6a717d"),
    "chosen": ("#2c3440", "#dde6f0"),
}
"""The same for names that the client's style sheet adds."""


def _look(name: str, number: int, *, is_dark: bool) -> Theme:
    colours: dict[str, Any] = {role: each[number] for role, each in _COLOURS.items()}
    own_colours = {role: each[number] for role, each in _OWN_COLOURS.items()}
    return Theme(name=name, dark=is_dark, variables=own_colours, **colours)


DARK: Final = _look("cablestore-dark", 0, is_dark=True)
LIGHT: Final = _look("cablestore-light", 1, is_dark=False)
