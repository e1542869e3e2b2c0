"""Programs on pseudo-terminals: what they show, and keys for them."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from waiting import LIMIT_S, wait_until

_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\r")
CTRL_D: Final = "\x04"


class Terminal:
    """A process that has a terminal, and all that it showed so far."""

    def __init__(self, command: Sequence[str | Path], cwd: Path) -> None:
        self._ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40", "PROMPT_TOOLKIT_NO_CPR": "1"}
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
