"""Detection of names that readers confuse: equal names, and look-alikes such as mixed Cyrillic and Latin. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from confusable_homoglyphs.confusables import confusables_data

_KEY_TAIL: Final = re.compile(r"[^a-z0-9]+[0-9a-f]{4,64}$")
"""Key digits at the end of a name, which are ignored. A user could choose the name `ann 3f2a9c1b` to imitate the user
ann whose key begins with these digits."""
_INVISIBLE: Final = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\ufe00-\ufe0f\U000e0100-\U000e01ef]")
"""Invisible characters outside the category of format characters."""
_SHAPES: Final = (("i", "l"), ("\u0131", "l"), ("vv", "w"))
"""Look-alikes that Unicode's data distinguishes. The data maps the Cyrillic palochka to i, but fonts draw it as l."""


def same_named(names: Mapping[bytes, str]) -> frozenset[bytes]:
    """Return the public keys of the users whose name equals or resembles another user's name."""
    looks = {key: look_of(name) for key, name in names.items()}
    counts = Counter(looks.values())
    return frozenset(key for key, look in looks.items() if counts[look] > 1)


@lru_cache(maxsize=20_000)
def look_of(name: str) -> str:
    """Return a string that is equal for all names that look alike (Unicode TR39, 4), ignoring case."""
    folded = unicodedata.normalize("NFKC", name).casefold().strip()
    if not folded.isascii():
        visible = _INVISIBLE.sub("", unicodedata.normalize("NFD", folded))
        folded = "".join(each for each in visible if unicodedata.category(each) != "Cf").strip()
    look = "".join(map(_prototype, _KEY_TAIL.sub("", folded) or folded))
    look = unicodedata.normalize("NFD", look).casefold()
    for shape, other in _SHAPES:
        look = look.replace(shape, other)
    return " ".join(look.split())


@lru_cache(maxsize=20_000)
def _prototype(character: str) -> str:
    """Return the representative of all strings that look like a character.

    In the data, each look-alike maps to the representative, and the representative maps to all of them.
    """
    alike: tuple[str, ...] = (character, *(each["c"] for each in confusables_data.get(character, ())))
    return max(alike, key=lambda each: (len(confusables_data.get(each, ())), each))
