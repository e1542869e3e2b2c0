"""Notifications of terminals as escape sequences: OSC 777 with a title, or OSC 9. Pure.

Text of other users cannot end the sequence, begin a parameter, or format the notification.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cablestore.chat.safe_text import fit
from cablestore.controls import controls_replaced

_ST: Final = "\x1b\\"
"""End of a sequence. The alternative, BEL, would ring if the terminal does not know the sequence."""
KNOWN_TERMINALS: Final = (
    "alacritty",
    "contour",
    "foot",
    "ghostty",
    "gnome",
    "iterm",
    "kitty",
    "konsole",
    "mintty",
    "rxvt",
    "vte",
    "wezterm",
    "xterm",
)
"""Prefixes of `TERM` of terminals that ignore unknown sequences. Other terminals may print them."""
_IN_BETWEEN: Final = frozenset({"TMUX", "STY"})
"""Environment variables of programs between the client and the terminal that do not forward notification sequences."""
_MAX_TITLE_CELLS: Final = 60
_MAX_BODY_CELLS: Final = 160
_MAX_CHARACTERS: Final = 300
"""Maximum length of a text, because some characters have no width. All terminals accept a sequence below 2 KiB."""
_SAFE: Final = str.maketrans({";": ",", "<": "{", ">": "}"})
"""`;` separates the parameters, and desktops read `<` as markup."""


def notification(title: str, body: str, environ: Mapping[str, str]) -> str:
    """Return the sequence for a notification on the terminal of an environment, or "" if the terminal may print it."""
    if not _ignores_unknown(environ):
        return ""
    title, body = _inert(title, _MAX_TITLE_CELLS), _inert(body, _MAX_BODY_CELLS)
    if "iTerm2" in (environ.get("LC_TERMINAL"), environ.get("TERM_PROGRAM", "").replace(".app", "2")):
        return f"\x1b]9;cablestore: {title}: {body}{_ST}"  # ConEmu would run a digit at the beginning as a command
    return f"\x1b]777;notify;{title};{body}{_ST}"


def _ignores_unknown(environ: Mapping[str, str]) -> bool:
    is_direct = not (_IN_BETWEEN & environ.keys() or is_in_emacs(environ))
    is_able = environ.get("TERM_PROGRAM") != "Apple_Terminal"
    return is_direct and is_able and environ.get("TERM", "").startswith(KNOWN_TERMINALS)


def is_in_emacs(environ: Mapping[str, str]) -> bool:
    """Return True for a terminal in Emacs. Emacs may print unknown sequences."""
    return "INSIDE_EMACS" in environ


def _inert(text: str, cells: int) -> str:
    """Return text in one line without control characters, direction overrides, separators and markup."""
    line = controls_replaced(" ".join(text[:_MAX_CHARACTERS].split()), lambda _: " ")
    return fit(line.translate(_SAFE).strip(), cells)
