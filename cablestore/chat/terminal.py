"""Terminal of the client: reads input, and reports a closed terminal instead of raising an error."""

from __future__ import annotations

import os
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterable
from contextlib import suppress
from select import select
from typing import Any, Final

from textual import events
from textual._xterm_parser import XTermParser  # the parser of the extended driver
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

from cablestore.chat.held_text import with_sequences
from cablestore.chat.links import with_link_ids
from cablestore.chat.typed_text import Paste, TerminalInput, as_typed
from cablestore.chat.typing_box import TextTooLong

_READ_SIZE_BYTES: Final = 65_536
_PAUSE_S: Final = 0.05
"""Pause after which the client handles an incomplete sequence as a key."""


class TerminalClosed(Message):
    """The terminal is gone: its window was closed, or its connection was lost."""


class Terminal(LinuxDriver):
    """Textual's driver, extended to accept pastes of any bytes and to survive a closed output."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._file: Any = _Output(sys.__stderr__)  # has the methods that the writer thread calls

    def run_input_thread(self) -> None:
        """Read keys and pastes until the client exits or the terminal is gone.

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
        """Write output with one id for each link. Textual assigns an id to each part of a link on each line."""
        super().write(with_link_ids(with_sequences(data), os.environ))

    def _read(self) -> bytes:
        try:
            return os.read(self.fileno, _READ_SIZE_BYTES)
        except OSError:  # on Linux, the terminal is closed
            return b""

    def _report(self, found: Iterable[Paste | str]) -> None:
        for part in found:
            if isinstance(part, Paste):
                self.process_message(events.Paste(as_typed(part.text)) if part.is_complete else TextTooLong())
                continue
            try:
                for event in self._parser.feed(part):
                    self.process_message(event)
            except (ValueError, OverflowError):  # a sequence that terminals should not send
                self._parser = XTermParser()


class _Output:
    """Output file of a terminal. It discards output after the terminal is gone, so that drafts are saved."""

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
        """Connect the file to /dev/null, so that flushing its buffer later does not fail."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._file.fileno())
        os.close(nowhere)
        with suppress(OSError):
            self._file.flush()
