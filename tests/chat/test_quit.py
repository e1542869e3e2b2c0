"""The end of a client on a terminal that has its store open itself."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from terminals import CTRL_Q, Screen, Terminal

from cablestore import CableStore

_CONTROL_SEQUENCE = re.compile(rb"\x1b\[[0-9;?<>u]*[a-zA-Z]")


def test_nothing_is_printed_after_the_client_exits(tmp_path: Path) -> None:
    """Destructors that run when the interpreter exits print their errors to the terminal."""
    CableStore.open(tmp_path / "store").close()
    terminal = Terminal([sys.executable, "-m", "cablestore", "chat", "-s", "store"], tmp_path)
    try:
        Screen(terminal).shows("offline")
        assert terminal.end(CTRL_Q) == 0
        left, _, after = terminal.bytes.rpartition(b"\x1b[?1049l")
        assert left
        assert _CONTROL_SEQUENCE.sub(b"", after).strip() == b""
    finally:
        terminal.kill()
