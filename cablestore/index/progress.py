"""How long work tells how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int], None]
"""Called with the number of posts done since the last call."""


def untold(_: int) -> None:
    """Tell nobody."""
