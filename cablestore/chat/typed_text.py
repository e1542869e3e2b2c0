"""Typed or pasted text as it is signed: only line breaks and control characters change. Pure.

Joiners, variation selectors, direction marks and combining marks are part of a text. Only the display cleans them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from cablestore.chat.display_limits import MAX_TYPED

_PASTE_BEGINS: Final = "\x1b[200~"
_PASTE_ENDS: Final = "\x1b[201~"
_LINE_BREAKS: Final = re.compile(r"\r\n?")
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All control characters (category Cc) except tab and line feed."""
_COMMITTED: Final = re.compile(r"\x1b\[(?:0;[\d:]*;([\d:]+)|[\d:]+;[12]?(?::1)?;(\d+:[\d:]+))u")
"""Text of an input method, or of one key with several characters, in kitty's keyboard protocol."""
_OTHER_LAYOUTS: Final = re.compile(r"(?<=\x1b\[)(\d+):[\d:]*(?=[;u])")
"""Report of a key that also contains its codes in other layouts, which the client did not request."""
_MAX_PASTED: Final = 8 * MAX_TYPED
"""Maximum length of a paste in memory: eight times the accepted length, because control characters are removed."""
_MAYBE_BEGINS: Final = re.compile(r"\x1b(?:\[[\d:;]*)?\Z")
"""Incomplete sequence at the end of a read, which may continue in the next read."""


class Paste(NamedTuple):
    """Pasted text as the terminal sent it, or only its beginning if it is too long to be accepted."""

    text: str
    is_complete: bool


def as_typed(text: str) -> str:
    """Return the text to sign for typed or pasted text.

    CR and CRLF become line breaks. Other control characters are removed. Lone surrogates are replaced, because UTF-8
    cannot encode them.
    """
    text = _CONTROLS.sub("", _LINE_BREAKS.sub("\n", text))
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class TerminalInput:
    """Splitter of a terminal's input into pastes and keys.

    A paste never acts as keys, even if it contains escape sequences.
    """

    def __init__(self) -> None:
        self._held = ""
        """End of the input that may be part of a sequence."""
        self._is_pasting = False
        self._is_whole = True

    def feed(self, text: str) -> Iterator[Paste | str]:
        """Yield the complete pastes and keys of the input."""
        text, self._held = self._held + text, ""
        while text:
            if self._is_pasting:
                pasted, end, text = text.partition(_PASTE_ENDS)
                if not end:
                    self._hold(pasted)
                    return
                yield Paste(pasted, self._is_whole)
                self._is_pasting, self._is_whole = False, True
            else:
                keys, begin, text = text.partition(_PASTE_BEGINS)
                self._is_pasting = bool(begin)
                if not begin and (tail := _MAYBE_BEGINS.search(keys)):
                    keys, self._held = keys[: tail.start()], keys[tail.start() :]
                if keys:
                    yield _OTHER_LAYOUTS.sub(r"\1", _COMMITTED.sub(_committed, keys))

    def _hold(self, pasted: str) -> None:
        """Keep the beginning and the end of a paste. The end may be part of the closing sequence."""
        if len(pasted) > _MAX_PASTED:
            self._is_whole = False
            pasted = pasted[: _MAX_PASTED // 2] + pasted[-len(_PASTE_ENDS) :]
        self._held = pasted

    def flush(self) -> Iterator[str]:
        """Yield the held input as a key. Called after a pause. A paste is never split: its parts would act as keys."""
        if self._held and not self._is_pasting:
            keys, self._held = self._held, ""
            yield keys


def _committed(match: re.Match[str]) -> str:
    points = [int(point) for point in (match[1] or match[2]).split(":") if point]
    return as_typed("".join(chr(point) for point in points if point <= 0x10FFFF))
