"""The two themes of the client, in variants for the number of colours of the terminal.

Each text has a contrast of at least 4.5 to 1 on all its backgrounds, as the terminal draws both. A terminal with 256 or
16 colours approximates other colours, so each variant has separate colours. Of the 16 colours, only those are used that
keep this contrast on the Linux console and on xterm.
"""

from __future__ import annotations

from typing import Any, Final

from textual.theme import Theme

from cablestore.chat.settings import ThemeName

_COLUMNS: Final = ("dark truecolor", "light truecolor", "dark 256", "light 256", "dark standard", "light standard")
_COLOURS: Final = {
    "primary": ("#7fb4e0", "#1f5f99", "#87afd7", "#005f87", "#55ffff", "#0000aa"),
    "secondary": ("#8a93a6", "#5f6673", "#b2b2b2", "#585858", "#aaaaaa", "#0000aa"),
    "accent": ("#e5b567", "#8a5200", "#d7af5f", "#5f5f00", "#ffff55", "#aa0000"),
    "warning": ("#e5b567", "#8a5200", "#d7af5f", "#5f5f00", "#ffff55", "#aa0000"),
    "error": ("#ec8a80", "#a62b22", "#ff8787", "#af0000", "#ff5555", "#aa0000"),
    "success": ("#8fc48a", "#2f6b2b", "#87d787", "#005f00", "#55ff55", "#0000aa"),
    "foreground": ("#d8dbe2", "#22262e", "#e0e0e0", "#000000", "#ffffff", "#000000"),
    "background": ("#15171c", "#fcfcfa", "#121212", "#ffffff", "#000000", "#ffffff"),
    "surface": ("#1f232b", "#eceae4", "#262626", "#eaeaea", "#0000aa", "#aaaaaa"),
    "panel": ("#1b1e25", "#f3f2ee", "#1c1c1c", "#f3f3f3", "#000000", "#ffffff"),
}
"""Colours by Textual's names, in the order of `_COLUMNS`."""
_OWN_COLOURS: Final = {
    "author-0": ("#7fb4e0", "#1f5f99", "#87afd7", "#005f87", "#55ffff", "#0000aa"),
    "author-1": ("#8fc48a", "#2f6b2b", "#87d787", "#005f00", "#55ff55", "#aa0000"),
    "author-2": ("#d7a8d8", "#83388a", "#d7afd7", "#870087", "#ffff55", "#000000"),
    "author-3": ("#e0b070", "#85560b", "#d7af5f", "#5f5f00", "#00aaaa", "#0000aa"),
    "author-4": ("#79c7c0", "#0f6a66", "#87d7d7", "#005f5f", "#aaaaaa", "#aa0000"),
    "author-5": ("#e59a8f", "#a03a2c", "#ffaf87", "#af0000", "#ffffff", "#000000"),
    "text-muted": ("#9aa3b3", "#5a616d", "#b2b2b2", "#585858", "#aaaaaa", "#0000aa"),
    "text-disabled": ("#868fa0", "#666d79", "#9e9e9e", "#666666", "#aaaaaa", "#0000aa"),
    "chosen": ("#2c3440", "#dde6f0", "#3a3a3a", "#d7d7ff", "#0000aa", "#55ffff"),
}
"""Colours of the names that the client's style sheet adds."""
_DERIVED: Final = {
    "block-cursor-background": "chosen",
    "block-cursor-blurred-background": "chosen",
    "block-cursor-foreground": "foreground",
    "block-cursor-blurred-foreground": "foreground",
    "input-selection-background": "primary",
    "input-selection-foreground": "background",
    "screen-selection-background": "primary",
    "screen-selection-foreground": "background",
    "scrollbar": "secondary",
    "scrollbar-hover": "secondary",
    "scrollbar-background": "panel",
}
"""Names whose colours Textual would otherwise blend from others. With few colours, the result may be invisible."""


def theme(name: ThemeName, colours_of_terminal: str | None) -> Theme:
    """Return a theme for a terminal, given the colours that Rich detected: 16 million, 256 or 16."""
    column = _COLUMNS.index(f"{name} {colours_of_terminal or 'truecolor'}")
    colours: dict[str, Any] = {role: each[column] for role, each in _COLOURS.items()}
    own_colours = {role: each[column] for role, each in _OWN_COLOURS.items()}
    derived = {role: (colours | own_colours)[source] for role, source in _DERIVED.items()}
    return Theme(name=f"cablestore-{name}", dark=name == "dark", variables=own_colours | derived, **colours)
