"""Commands in this process: their output, and the exit status that a shell would see."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

import pytest

from cablestore.cli import main


class Result(NamedTuple):
    """Outcome of a command."""

    exit_code: int
    stdout: str
    stderr: str


def run_here(arguments: Sequence[object], given: str = "") -> Result:
    """Run `cablestore ARGUMENTS` in this process. `given` is its standard input.

    click's own runner keeps both outputs apart only from click 8.2 on.
    """
    out, errors, stdin = (io.TextIOWrapper(io.BytesIO(data), "utf-8") for data in (b"", b"", given.encode()))
    before, sys.stdin = sys.stdin, stdin
    try:
        with redirect_stdout(out), redirect_stderr(errors), pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
    finally:
        sys.stdin = before
    return Result(int(str(exit_.value.code or 0)), _text(out), _text(errors))


def _text(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()
