"""Ctrl-C that comes to a command at a chosen instant."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from waiting import LIMIT_S

INTERRUPTED: Final = ("interrupted; what was stored stays stored", 130)
"""What an interrupted command says, and its status."""


def interrupted(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program that presses Ctrl-C itself, with these arguments."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
