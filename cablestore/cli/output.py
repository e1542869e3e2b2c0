"""What all commands share: options, opening the store, printing tables or JSON, text that is safe on a terminal."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from cablestore.errors import CableStoreError, StorageError

_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_red", "bright_cyan", "bright_green", "bright_magenta")


_WIDTH_OF_FILES = 160
"""Columns for output that goes to a file or another program."""


class Output:
    """Prints for a person, or one JSON value a line, or nothing."""

    def __init__(self, *, as_json: bool, quiet: bool = False, console: Console | None = None) -> None:
        """Print to standard output and standard error, or what is no note to `console`."""
        self.as_json = as_json
        self.console = console or Console(highlight=False, soft_wrap=True, quiet=quiet)
        self.notes = Console(stderr=True, highlight=False, quiet=quiet)
        if console is None and not self.console.is_terminal:
            self.console.width = _WIDTH_OF_FILES

    def say(self, text: str | Text, /, **fields: Any) -> None:
        """Print a line, or `fields` as JSON if there are any."""
        if self.as_json:
            if fields:
                self._print_json(fields)
        else:
            self.console.print(text if isinstance(text, Text) else Text(text))

    def _print_json(self, fields: dict[str, Any]) -> None:
        file = self.console.file
        file.write(json.dumps(fields, ensure_ascii=False) + "\n")
        file.flush()

    def is_wanted(self) -> bool:
        """Tell whether somebody is there to read: always, in a process of one's own."""
        return True

    def note(self, text: str) -> None:
        """Tell a person something beside the output."""
        if not self.as_json:
            self.notes.print(Text(text, style="dim"))

    def table(self, columns: Iterable[str], rows: Iterable[dict[str, Any]]) -> None:
        """Print rows as a table with these columns, or as JSON with all of their fields; numbers stand to the right."""
        if self.as_json:
            for row in rows:
                self._print_json(row)
            return
        found = list(rows)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in columns:
            is_number = all(row[name] is None or isinstance(row[name], int | float) for row in found)
            table.add_column(name.replace("_", " "), justify="right" if is_number else "left", overflow="fold")
        for row in found:
            table.add_row(*(_cell(row[name]) for name in columns))
        self.console.print(table)

    @contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Callable[[int], None]]:
        """Show a progress bar on standard error while a long work runs; yields the function that moves it."""
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.notes,
            disable=self.as_json or not self.notes.is_terminal,
            transient=True,
        )
        with bar:
            task: TaskID = bar.add_task(what, total=total)
            yield lambda step: bar.advance(task, step)


def _cell(value: Any) -> Text:
    if value is None:
        return Text("-")
    return Text(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else safe(str(value)))


def safe(text: str) -> str:
    """Return text from outside so that it can be shown: what no terminal writes, moves its cursor or turns its direction, by number."""
    return "".join(
        f"\\u{{{ord(c):x}}}" if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and c != "\u200d" else c
        for c in text
    )


def colour_of(public_key: bytes) -> str:
    """Return the colour in which a user is shown, always the same."""
    return _COLOURS[public_key[0] % len(_COLOURS)]


def when(timestamp_ms: int) -> str:
    """Return a time in the local zone, for a person."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"


def size(size_bytes: float) -> str:
    """Return a size for a person: 1.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000 or unit == "GB":
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    raise AssertionError


def exit_status(error: CableStoreError) -> int:
    """Return the exit status of a command that ends with this error."""
    return 3 if isinstance(error, StorageError) else 2
