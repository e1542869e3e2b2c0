"""Untrusted text in HTML: as text, with its control, direction and invisible characters as visible symbols."""

from __future__ import annotations

import re
from typing import Final

from markupsafe import Markup, escape

from cablestore.controls import controls_replaced

_INVISIBLE: Final = re.compile("[\u00ad\u061c\u200b\u200e\u200f\u2060-\u2064\ufeff\U000e0000-\U000e007f]")
"""Direction marks and invisible characters. `controls_replaced` keeps them, because words may contain them. Joiners are
not included, because emoji need them."""
_OPEN, _CLOSE = "\x02", "\x03"


def shown(text: str, *, lines: bool = False) -> Markup:
    """Return untrusted text as HTML that cannot affect the text around it. With `lines`, keep line breaks."""

    def symbol(character: str) -> str:
        return character if lines and character == "\n" else f"{_OPEN}U+{ord(character):04X}{_CLOSE}"

    marked = _INVISIBLE.sub(lambda match: symbol(match[0]), controls_replaced(text, symbol))
    safe = str(escape(marked)).replace(_OPEN, '<b class="control">').replace(_CLOSE, "</b>")
    return Markup("<bdi>") + Markup(safe) + Markup("</bdi>")  # noqa: S704 - escaped above


def shown_plain(text: str) -> str:
    """Return untrusted text for an attribute, a title or a picture, with the same symbols in brackets."""

    def symbol(character: str) -> str:
        return f"[U+{ord(character):04X}]"

    return _INVISIBLE.sub(lambda match: symbol(match[0]), controls_replaced(text, symbol))
