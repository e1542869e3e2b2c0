"""The terminal that shows the client: its input is read here, and its end is reported instead of an error."""

from __future__ import annotations

import os
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterable
from contextlib import suppress
from select import select
from typing import Any, Final

from textual import events
from textual._xterm_parser import XTermParser  # the parser of the driver that is extended here
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

from cablestore.chat.held_text import with_sequences
from cablestore.chat.links import with_link_ids
from cablestore.chat.typed_text import Paste, TerminalInput, as_typed
from cablestore.chat.typing_box import TextTooLong

_READ_SIZE_BYTES: Final = 65_536
_PAUSE_S: Final = 0.05
"""A sequence that does not continue for this long was a key."""


class TerminalClosed(Message):
    """The terminal is gone: its window was closed, or its connection broke."""


class Terminal(LinuxDriver):
    """Textual's driver, with an input that any bytes can be pasted into, and an output that may be gone."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._file: Any = _Output(sys.__stderr__)  # it has what the writer thread calls

    def run_input_thread(self) -> None:
        """Read keys and pastes until the client ends or the terminal is gone.

        Invalid UTF-8 becomes replacement characters.
        """
        decode = getincrementaldecoder("utf-8")("replace").decode
        keys, self._parser = TerminalInput(), XTermParser()
        while not self.exit_event.is_set():
            if select([self.fileno], [], [], _PAUSE_S)[0]:
                found = self._read()
                if not found:
                    self.process_message(TerminalClosed())
                    return
                self._report(keys.feed(decode(found)))
            else:
                self._report(keys.flush())
            for event in self._parser.tick():
                self.process_message(event)

    def write(self, data: str) -> None:
        """Write output. Textual gives each part of a link an id of its own, even on each line."""
        super().write(with_link_ids(with_sequences(data), os.environ))

    def _read(self) -> bytes:
        try:
            return os.read(self.fileno, _READ_SIZE_BYTES)
        except OSError:  # on Linux, the end of a terminal
            return b""

    def _report(self, found: Iterable[Paste | str]) -> None:
        for part in found:
            if isinstance(part, Paste):
                self.process_message(events.Paste(as_typed(part.text)) if part.is_whole else TextTooLong())
                continue
            try:
                for event in self._parser.feed(part):
                    self.process_message(event)
            except (ValueError, OverflowError):  # a sequence that no terminal should send
                self._parser = XTermParser()


class _Output:
    """Output file of a terminal. After the terminal is gone, writes go nowhere: the client still has drafts to save."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.fileno = file.fileno

    def write(self, text: str) -> None:
        try:
            self._file.write(text)
        except OSError:
            self._discard()

    def flush(self) -> None:
        try:
            self._file.flush()
        except OSError:
            self._discard()

    def _discard(self) -> None:
        """Connect the file to /dev/null, so that what it has buffered fails nowhere later."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._file.fileno())
        os.close(nowhere)
        with suppress(OSError):
            self._file.flush()
