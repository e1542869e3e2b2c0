"""Output of commands: lines, tables and progress bars, or JSON; escaping of untrusted text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from cablestore.controls import controls_replaced
from cablestore.streams import is_read

_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_red", "bright_cyan", "bright_green", "bright_magenta")


_WIDTH_OF_FILES = 160
"""Columns for output to a file or another program."""


class Output:
    """Printer of text, of one JSON value per line, or of nothing."""

    def __init__(self, *, as_json: bool, quiet: bool = False) -> None:
        """Print to standard output, and notes to standard error. With `quiet`, print nothing."""
        self.as_json = as_json
        self._is_quiet = quiet
        self.console = Console(highlight=False, soft_wrap=True, quiet=quiet)
        self.notes = Console(stderr=True, highlight=False, quiet=quiet)
        if not self.console.is_terminal:
            self.console.width = _WIDTH_OF_FILES
        self.notes.soft_wrap = not self.notes.is_terminal

    def say(self, text: str | Text, /, **fields: Any) -> None:
        """Print `text` as a line. With --json, print `fields` instead, if any."""
        if self.as_json:
            if fields:
                self._print_json(fields)
        else:
            self.console.print(text if isinstance(text, Text) else Text(text))

    def _print_json(self, fields: dict[str, Any]) -> None:
        file = self.console.file
        file.write(json.dumps(fields, ensure_ascii=False) + "\n")
        file.flush()

    def has_reader(self) -> bool:
        """Return False if the reader of the output has closed it. A long listing can then stop."""
        return is_read(self.console.file)

    def note(self, text: str) -> None:
        """Print a note on standard error, except with --json."""
        if not self.as_json:
            self.notes.print(Text(text, style="dim"))

    def table(self, columns: Iterable[str], rows: Iterable[dict[str, Any]]) -> None:
        """Print rows as a table with these columns, numbers aligned right, or as JSON with all fields."""
        if self.as_json:
            for row in rows:
                self._print_json(row)
        else:
            self.console.print(self.drawn(columns, rows))

    @property
    def draws(self) -> bool:
        """True if a table can replace an earlier table: on a terminal, without --json."""
        return self.console.is_terminal and not self.as_json

    @staticmethod
    def drawn(columns: Iterable[str], rows: Iterable[dict[str, Any]]) -> Table:
        """Return a table with these columns, numbers aligned right."""
        found = list(rows)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in columns:
            is_number = all(row[name] is None or isinstance(row[name], int | float) for row in found)
            table.add_column(name.replace("_", " "), justify="right" if is_number else "left", overflow="fold")
        for row in found:
            table.add_row(*(_cell(row[name]) for name in columns))
        return table

    def when(self, timestamp_ms: int, form: str = "%Y-%m-%d %H:%M") -> str:
        """Return a time as text in the machine's time zone, by default to the minute."""
        moment = local_time(timestamp_ms)
        return f"{timestamp_ms} ms" if moment is None else moment.strftime(form)

    @contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Callable[[int], None]]:
        """Show a progress bar on standard error during the body. Yield the function that advances it."""
        with self._bars(TimeRemainingColumn()) as bars:
            task = bars.add_task(what, total=total)
            yield lambda step: bars.advance(task, step)

    @contextmanager
    def stages(self) -> Iterator[Callable[[str, int, int], None]]:
        """Show a progress bar per stage. Yield a function with the parameters stage, done and total."""
        tasks: dict[str, TaskID] = {}
        with self._bars() as bars:

            def show(stage: str, done: int, total: int) -> None:
                if stage not in tasks:
                    tasks[stage] = bars.add_task(stage, total=total)
                bars.update(tasks[stage], completed=done, total=total)

            yield show

    @contextmanager
    def _bars(self, *more: ProgressColumn) -> Iterator[Progress]:
        bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            *more,
            console=self.notes,
            disable=self.as_json or self._is_quiet or not self.notes.is_terminal,
            transient=True,
        )
        if bars.disable:  # rich 13 would print an empty line at the end
            yield bars
            return
        with bars:
            yield bars


def _cell(value: Any) -> Text:
    if value is None:
        return Text("-")
    return Text(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else safe(str(value)))


def safe(text: str) -> str:
    """Return untrusted text in a form that is safe to print.

    Characters that move the cursor, end a line or change its direction are replaced by their numbers. Other
    invisible characters are kept, because words of many languages contain them.
    """
    return controls_replaced(text, lambda character: f"\\u{{{ord(character):x}}}")


def colour_of(public_key: bytes) -> str:
    """Return the colour of a user. It depends only on the public key."""
    return _COLOURS[public_key[0] % len(_COLOURS)]


def local_time(timestamp_ms: int) -> datetime | None:
    """Return a time in the machine's time zone, or None if it is past the year 9999."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).astimezone()
    except (ValueError, OverflowError, OSError):
        return None


def size(size_bytes: float) -> str:
    """Return a readable size, such as 1.2 MB."""
    if size_bytes < 1000:
        return f"{size_bytes:.0f} B"
    scaled = size_bytes / 1000
    for unit in ("kB", "MB"):
        if scaled < 1000:
            return f"{scaled:.1f} {unit}"
        scaled /= 1000
    return f"{scaled:.1f} GB"


NO_PROBLEMS: Final = "no problems found"


def no_problems(*, signatures: bool) -> str:
    """Return the verdict of a successful check. If `signatures` is False, it says that signatures were not verified."""
    return NO_PROBLEMS if signatures else f"{NO_PROBLEMS}; signatures not verified (use --signatures)"
