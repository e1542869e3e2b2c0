"""Programs on pseudo-terminals: what they show, and keys for them."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pyte
from waiting import LIMIT_S, wait_until

COLUMNS: Final = 120
LINES: Final = 40
_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\r")
CTRL_D: Final = "\x04"
CTRL_Q: Final = "\x11"


class Terminal:
    """A process that has a terminal, and all that it showed so far."""

    def __init__(self, command: Sequence[str | Path], cwd: Path) -> None:
        self._ours, theirs = pty.openpty()
        environment = {
            **os.environ,
            "TERM": "xterm",
            "COLUMNS": str(COLUMNS),
            "LINES": str(LINES),
            "PROMPT_TOOLKIT_NO_CPR": "1",
        }
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env=environment, start_new_session=True
        )
        os.close(theirs)
        self._bytes = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                found = os.read(self._ours, 65_536)
            except OSError:  # on Linux, when the process and its terminal are gone
                return
            if not found:
                return
            self._bytes += found

    @property
    def bytes(self) -> bytes:
        """All that was written."""
        return self._bytes

    @property
    def text(self) -> str:
        """What was shown, without colours and movements of the cursor."""
        return _CONTROL.sub("", self._bytes.decode(errors="replace"))

    def shows(self, pattern: str) -> re.Match[str]:
        """Wait until it shows this, and return the match."""
        wait_until(lambda: re.search(pattern, self.text), lambda: f"no {pattern!r} in\n{self.text}")
        found = re.search(pattern, self.text)
        assert found is not None
        return found

    def type(self, line: str) -> None:
        os.write(self._ours, line.encode() + b"\r")

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

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
        """End what still runs, after a test that failed."""
        if self.process.returncode is None:
            self.process.kill()
            self.wait()


Start = Callable[..., Terminal]
"""Function that starts a program on a terminal with the arguments that it is given."""


class Screen:
    """What a program that draws a whole screen shows now."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._screen = pyte.Screen(COLUMNS, LINES)
        self._stream = pyte.ByteStream(self._screen)
        self._read = 0

    @property
    def text(self) -> str:
        """The lines on the screen."""
        found = self._terminal.bytes
        last = found.rfind(b"\x1b", self._read)
        end = last if last > len(found) - 32 else len(found)  # a sequence may not be whole yet
        # pyte takes the sequences of kitty's keyboard protocol for text.
        self._stream.feed(re.sub(rb"\x1b\[[<>=][0-9;]*[a-z]", b"", found[self._read : end]))
        self._read = end
        return "\n".join(self._screen.display)

    def shows(self, part: str) -> str:
        """Wait until this is on the screen, and return all of it."""
        return wait_until(lambda: text if part in (text := self.text) else "", lambda: f"no {part!r} in\n{self.text}")
