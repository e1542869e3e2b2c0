"""Standard streams that keep working if their descriptors are closed, full, or not read."""

from __future__ import annotations

import io
import os
import select
import sys
from typing import IO, Any, Final, TextIO

_STREAMS: Final = {"stdout": 1, "stderr": 2}
"""Output streams and their descriptors."""


class StandardStream(io.FileIO):
    """Standard output or error of this process.

    `error` holds the error of the first failed write. Later output is discarded, so that a command completes its work.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all bytes, and wait if the descriptor is non-blocking. Never raises OSError."""
        rest = memoryview(data).cast("B")
        size_bytes = rest.nbytes
        while rest and self.error is None:
            try:
                written = super().write(rest)
            except OSError as error:
                self.error = error
            else:
                if written is None:
                    select.select([], [self], [])
                else:
                    rest = rest[written:]
        return size_bytes

    def is_read(self) -> bool:
        """Return False after an error, or if the reader of a pipe has closed it."""
        if self.error is None:
            state = select.poll()
            state.register(self, select.POLLOUT)
            return not any(events & (select.POLLERR | select.POLLHUP) for _, events in state.poll(0))
        return False


def open_standard_streams() -> None:
    """Connect closed standard streams to /dev/null, and replace the output streams by StandardStream.

    Call this before opening files: a file with descriptor 1 or 2 would be overwritten by printed output. A closed
    standard input stays None in `sys`, so that a command can report it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # uses the lowest free descriptor: this one
    for name, descriptor in _STREAMS.items():
        replaced: io.TextIOWrapper | None = getattr(sys, name)
        if replaced is not None:
            replaced.flush()
        # StandardStream does not buffer bytes: after a signal, a buffer would write some of its bytes twice.
        text = io.TextIOWrapper(
            StandardStream(descriptor),
            encoding=None if replaced is None else replaced.encoding,
            errors="backslashreplace",  # a character that the terminal cannot show must not stop the command
            line_buffering=replaced is None or replaced.line_buffering,
            write_through=replaced is not None and replaced.write_through,
        )
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)  # Textual writes to it


def is_read(file: IO[str]) -> bool:
    """Return False if `file` is a standard stream without a reader."""
    stream = _standard(file)
    return stream is None or stream.is_read()


def output_error() -> OSError | None:
    """Flush standard output. Return the error of a failed write, or None. A closed pipe is not an error."""
    if sys.stdout is None:
        return None
    sys.stdout.flush()
    stream = _standard(sys.stdout)
    return None if stream is None or isinstance(stream.error, ConnectionError) else stream.error


def _standard(file: TextIO | IO[str]) -> StandardStream | None:
    stream = getattr(file, "buffer", None)
    return stream if isinstance(stream, StandardStream) else None
