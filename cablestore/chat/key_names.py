"""Names of keys for users, and the keys that can be assigned to an action. Pure.

Keys that type text and keys with a fixed use cannot be assigned. This also applies to a key that many terminals report
as such a key.
"""

from __future__ import annotations

import re
from typing import Final

from cablestore.errors import ArgumentError

_ORDER: Final = ("super", "ctrl", "alt", "shift")
"""Modifiers, in the order of the help."""
_OTHER_NAMES: Final = {
    "control": "ctrl",
    "option": "alt",
    "cmd": "super",
    "pgup": "pageup",
    "pgdn": "pagedown",
    "ins": "insert",
    "del": "delete",
    "esc": "escape",
    "return": "enter",
}
_SHOWN: Final = {"pageup": "Page Up", "pagedown": "Page Down"}
_MOVES: Final = "up|down|left|right|home|end|delete"
_FREE: Final = re.compile(
    r"(alt\+)?(ctrl\+)?(shift\+)?(f[1-9]|f1[0-2]|pageup|pagedown|insert)"
    rf"|(alt\+|ctrl\+|alt\+ctrl\+)(shift\+)?({_MOVES})"
    r"|(ctrl\+|super\+|alt\+|alt\+shift\+)[a-z]"
)
_FIXED: Final = re.compile(
    rf"(shift\+)?({_MOVES}|escape|backspace)|(\w+\+)*(enter|tab)"
    r"|ctrl\+[hijmy]"  # Backspace, Tab, line feed, Enter, confirmation
    r"|alt\+[bf]|alt\+shift\+o"  # words left and right; the beginning of other keys
)
_ADVICE: Final = (
    "Use F1 to F12, Page Up, Page Down, Insert, Ctrl or Alt with a letter, or Ctrl or Alt with an arrow key, Home, End "
    "or Delete"
)


def key_named(text: str) -> str:
    """Return the key with a name, as Textual spells it. Case and the order of modifiers are ignored.

    Raises ArgumentError for a key that cannot be assigned to an action.
    """
    parts = re.sub(r"\s", "", text).lower().split("+")
    *modifiers, base = (_OTHER_NAMES.get(part, part) for part in parts)
    key = "+".join([*sorted(set(modifiers)), base])
    if _FIXED.fullmatch(key):
        raise ArgumentError(f"{text!r} has a fixed use. {_ADVICE}")
    if not _FREE.fullmatch(key):
        is_typed = set(modifiers) <= {"shift"} and (len(base) == 1 or base == "space" or not base)
        why = "can be part of a text" if is_typed else "is not a key that every terminal sends"
        raise ArgumentError(f"{text!r} {why}. {_ADVICE}")
    return key


def shown_key(key: str) -> str:
    """Return the displayed name of a key, such as Ctrl+N."""
    *modifiers, base = key.split("+")
    names = [*sorted(modifiers, key=_ORDER.index), _SHOWN.get(base, base)]
    return "+".join(name[:1].upper() + name[1:] for name in names)
