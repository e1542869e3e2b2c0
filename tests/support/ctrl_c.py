"""Ctrl-C for a command at a chosen moment."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from waiting import LIMIT_S

INTERRUPTED: Final = ("interrupted: stored data is kept", 130)
"""The message of an interrupted command, and its status."""


def interrupted(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program that sends itself Ctrl-C, with these arguments."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
