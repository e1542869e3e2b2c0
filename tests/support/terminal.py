"""Commands on a real pseudo-terminal, and what its screen shows in the end."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pyte
from waiting import LIMIT_S

_LINES = 400
"""More than any tested command prints, so that nothing scrolls away."""


def on_a_terminal(words: list[str], store: Path, *, columns: int, **more: str) -> bytes:
    """Run a command on a terminal of this width and return what it prints. It must succeed."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, columns, 0, 0))
    command = [sys.executable, "-m", "cablestore", *words]
    kept = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    settings = kept | {"CABLESTORE_STORE": str(store), "TERM": "xterm-256color"} | more
    child = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=settings)
    os.close(theirs)
    found = b""
    with suppress(OSError):  # Linux says so that no process has the terminal open any more
        while part := os.read(ours, 65536):
            found += part
    os.close(ours)
    assert child.wait(LIMIT_S) == 0, found.decode(errors="replace")
    return found


def screen_of(printed: bytes, columns: int) -> list[str]:
    """Return the lines that the screen shows in the end, without blanks at their ends and empty lines below."""
    screen = pyte.Screen(columns, _LINES)
    pyte.ByteStream(screen).feed(printed)
    return "\n".join(line.rstrip() for line in screen.display).rstrip().split("\n")
