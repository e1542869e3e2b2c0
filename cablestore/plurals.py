"""Numbers with their nouns, for messages."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with a noun in singular or plural, such as `1 post` or `2,000 posts`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
