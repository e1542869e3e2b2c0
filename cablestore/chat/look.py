"""The two looks of the client: quiet colours that keep a contrast of 4.5 to 1 on both of their backgrounds."""

from __future__ import annotations

from typing import Final

from textual.theme import Theme

_DARK_AUTHORS: Final = ("#7fb4e0", "#8fc48a", "#d7a8d8", "#e0b070", "#79c7c0", "#e59a8f")
_LIGHT_AUTHORS: Final = ("#1f5f99", "#2f6b2b", "#83388a", "#85560b", "#0f6a66", "#a03a2c")


def _authors(colours: tuple[str, ...]) -> dict[str, str]:
    return {f"author-{number}": colour for number, colour in enumerate(colours)}


DARK: Final = Theme(
    name="cablestore-dark",
    primary="#7fb4e0",
    secondary="#8a93a6",
    accent="#e5b567",
    warning="#e5b567",
    error="#ec8a80",
    success="#8fc48a",
    foreground="#d8dbe2",
    background="#15171c",
    surface="#1f232b",
    panel="#1b1e25",
    dark=True,
    variables=_authors(_DARK_AUTHORS) | {"text-muted": "#8f98a8", "text-disabled": "#7a8394", "chosen": "#2c3440"},
)
LIGHT: Final = Theme(
    name="cablestore-light",
    primary="#1f5f99",
    secondary="#5f6673",
    accent="#8a5200",
    warning="#8a5200",
    error="#a62b22",
    success="#2f6b2b",
    foreground="#22262e",
    background="#fcfcfa",
    surface="#eceae4",
    panel="#f3f2ee",
    dark=False,
    variables=_authors(_LIGHT_AUTHORS) | {"text-muted": "#5d6470", "text-disabled": "#6a717d", "chosen": "#dde6f0"},
)
