"""Programs on pseudo-terminals: their output, and keys for them."""

from __future__ import annotations

import base64
import builtins
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pyte
from waiting import LIMIT_S, wait_until

COLUMNS: Final = 120
LINES: Final = 40
_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\r")
_BETWEEN_WORDS: Final = re.compile(r"[\s│▕▏]")
_LONG: Final = 400
"""Lines of a screen that is long enough for the output of all tested commands."""
_ASKS_FOR_FRAMES: Final = b"\x1b[?2026$p"
_GIVES_FRAMES: Final = b"\x1b[?2026;2$y"
_FRAME_BEGINS: Final = b"\x1b[?2026h"
_FRAME_ENDS: Final = b"\x1b[?2026l"
"""Synchronized output: a program queries the terminal for it, and marks the beginning and the end of each frame."""
CTRL_D: Final = "\x04"
CTRL_Q: Final = "\x11"
CTRL_Y: Final = "\x19"


class Terminal:
    """A process with a terminal, and all its output so far. With `piped`, its input is this string."""

    def __init__(
        self,
        command: Sequence[str | Path],
        cwd: Path | None = None,
        size: tuple[int, int] = (COLUMNS, LINES),
        piped: str | None = None,
        **more: str,
    ) -> None:
        """Start the process. `size` is that of the screen, `more` is added to the environment."""
        self.size: Final = size
        self._ours, theirs = pty.openpty()
        self._modes: Final = termios.tcgetattr(theirs)
        self._hung_up, self._hang_up = os.pipe()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        kept = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
        self.process = subprocess.Popen(
            command,
            stdin=theirs if piped is None else subprocess.PIPE,
            stdout=theirs,
            stderr=theirs,
            cwd=cwd,
            env=kept | {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"} | more,
            start_new_session=True,
        )
        os.close(theirs)
        if self.process.stdin is not None and piped is not None:
            self.process.stdin.write(piped.encode())
            self.process.stdin.close()
        self._bytes = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while self._hung_up not in select.select([self._ours, self._hung_up], [], [])[0]:
            try:
                found = os.read(self._ours, 65_536)
            except OSError:  # on Linux, after the process and its terminal ended
                return
            if not found:
                return
            self._bytes += found
            if _ASKS_FOR_FRAMES in self._bytes[1 - len(found) - len(_ASKS_FOR_FRAMES) :]:
                os.write(self._ours, _GIVES_FRAMES)

    @property
    def bytes(self) -> bytes:
        """All bytes of the output."""
        return self._bytes

    @property
    def text(self) -> str:
        """The output without colours and movements of the cursor."""
        return _CONTROL.sub("", self._bytes.decode(errors="replace"))

    def shows(self, pattern: str) -> re.Match[str]:
        """Wait until the output has this pattern, and return the match."""
        wait_until(lambda: re.search(pattern, self.text), lambda: f"no {pattern!r} in\n{self.text}")
        found = re.search(pattern, self.text)
        assert found is not None
        return found

    @property
    def is_restored(self) -> bool:
        """True if the terminal is restored: no mouse reports, no alternate screen, a cursor, and its modes."""
        asked = dict(re.findall(rb"\x1b\[\?(\d+)([hl])", self._bytes))
        off = {asked.get(mode, b"l") for mode in (b"1000", b"1003", b"1006", b"1049", b"1004", b"2004")}
        return off == {b"l"} and asked.get(b"25") == b"h" and termios.tcgetattr(self._ours) == self._modes

    @property
    def clipboard(self) -> str:
        """The text that the program copied to the clipboard last."""
        found = re.findall(rb"\x1b\]52;c;([^\x07\x1b]*)\x07", self._bytes)
        return base64.b64decode(found[-1]).decode() if found else ""

    def close_window(self) -> int:
        """Close the terminal while the program runs, and return the program's exit status."""
        os.write(self._hang_up, b".")
        self._reader.join(LIMIT_S)
        os.close(self._ours)
        return self.process.wait(LIMIT_S)

    def type(self, line: str) -> None:
        os.write(self._ours, line.encode() + b"\r")

    def press(self, keys: str) -> None:
        self.write(keys.encode())

    def write(self, keys: builtins.bytes) -> None:
        """Send bytes to the program."""
        left = memoryview(keys)
        while left:
            left = left[os.write(self._ours, left) :]

    def drag(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Move the mouse with its button pressed from one cell to another: column and line, from 0."""
        for code, (column, line), sign in ((0, start, "M"), (32, end, "M"), (0, end, "m")):
            self.press(f"\x1b[<{code};{column + 1};{line + 1}{sign}")

    def end(self, key: str = CTRL_D) -> int:
        """Press a key that ends it, and return its exit status."""
        os.write(self._ours, key.encode())
        return self.wait()

    def wait(self) -> int:
        status = self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        os.close(self._ours)
        return status

    def kill(self) -> None:
        """End all running programs after a failed test."""
        if self.process.returncode is None:
            self.process.kill()
            self.wait()


Start = Callable[..., Terminal]
"""Function that starts a program on a terminal with its arguments."""


class Screen:
    """The current screen of a full-screen program."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._screen = pyte.Screen(*terminal.size)
        self._stream = pyte.ByteStream(self._screen)
        self._read = 0
        self._text = "\n".join(self._screen.display)

    @property
    def text(self) -> str:
        """The lines on the screen."""
        found = self._terminal.bytes
        begins, ends = (found.rfind(mark, self._read) for mark in (_FRAME_BEGINS, _FRAME_ENDS))
        last = found.rfind(b"\x1b", self._read)
        # A frame or a sequence may be incomplete.
        end = begins if begins > ends else last if last > len(found) - 32 else len(found)
        if end > self._read:  # pyte takes milliseconds for the lines, and most waits read them without new output
            # pyte takes the sequences of kitty's keyboard protocol for text.
            self._stream.feed(re.sub(rb"\x1b\[[<>=][0-9;]*[a-z]", b"", found[self._read : end]))
            self._text = "\n".join(self._screen.display)
        self._read = end
        return self._text

    @property
    def drawn(self) -> pyte.Screen:
        """The characters on the screen with their colours, when the text was last read."""
        return self._screen

    def shows(self, part: str) -> None:
        """Wait until this is on the screen."""
        wait_until(lambda: part in self.text, lambda: f"no {part!r} in\n{self.text}")

    def place_of(self, part: str) -> tuple[int, int]:
        """Wait until this is on the screen, and return the column and the line of its beginning."""
        self.shows(part)
        line = next(at for at, text in enumerate(self._screen.display) if part in text)
        return self._screen.display[line].index(part), line

    def finds(self, pattern: str) -> str:
        """Wait until this is on the screen, where blanks, frames and line ends may break it, and return it."""
        found = wait_until(
            lambda: re.search(pattern, _BETWEEN_WORDS.sub("", self.text)), lambda: f"no {pattern!r} in\n{self.text}"
        )
        assert found is not None
        return found[0]


def on_a_terminal(words: list[str], store: Path, *, columns: int, **more: str) -> bytes:
    """Run a command on a terminal of this width and return its output. It must succeed."""
    command = [sys.executable, "-m", "cablestore", *words]
    terminal = Terminal(command, None, (columns, _LONG), CABLESTORE_STORE=str(store), **more)
    assert terminal.wait() == 0, terminal.text
    return terminal.bytes


def screen_of(printed: bytes, columns: int) -> list[str]:
    """Return the lines of the final screen, without trailing blanks and empty lines."""
    screen = pyte.Screen(columns, _LONG)
    pyte.ByteStream(screen).feed(printed)
    return "\n".join(line.rstrip() for line in screen.display).rstrip().split("\n")
