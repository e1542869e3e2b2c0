"""What all commands share: options, opening the store, printing tables or JSON, text that is safe on a terminal."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import click
from platformdirs import user_data_path
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

from cablestore.cli.stores import open_to_read
from cablestore.errors import CableStoreError, StorageError
from cablestore.protocol.keys import parse_hex
from cablestore.store.store import CableStore

_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_red", "bright_cyan", "bright_green", "bright_magenta")
_DURATION = re.compile(r"(\d+)\s*([smhdwy])")
_UNITS = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
    "y": timedelta(days=365),
}


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


class PathValue(click.Path):
    """A path that a file system can have. Whether something is there is the command's question.

    That of a store has to be UTF-8: LevelDB takes no other.
    """

    def __init__(self, *, is_store: bool = False) -> None:
        super().__init__(path_type=Path)
        self._is_store = is_store

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        text = os.fsdecode(value)
        shown = safe(text if len(text) <= _SHOWN_PATH else f"{text[:_SHOWN_PATH]}...")
        if not text:
            self.fail("an empty path names nothing: write . for this folder", param, ctx)
        if "\0" in text:
            self.fail(f"{shown} is no path: it has a NUL in it", param, ctx)
        if self._is_store and not text.isascii() and text != text.encode(errors="replace").decode():
            self.fail("the path of a store is text in UTF-8: LevelDB takes no other", param, ctx)
        try:
            Path(text).stat()
        except NotADirectoryError:
            self.fail(f"{shown} cannot be: a part of it is a file, not a folder", param, ctx)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                self.fail(f"{shown} is too long for a path here", param, ctx)
            if error.errno == errno.ELOOP:
                self.fail(f"{shown} cannot be: it is a link to itself", param, ctx)
        return Path(text)


_SHOWN_PATH = 100


class Moment(click.ParamType[int]):
    """A point in time: a date, a date and time, or a duration before now (90d, 12h)."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return milliseconds since 1970."""
        if isinstance(value, int):
            return max(0, value)  # it was converted already
        match = _DURATION.fullmatch(str(value).strip())
        try:
            if match is not None:
                moment = datetime.now(UTC) - int(match[1]) * _UNITS[match[2]]
            else:
                moment = datetime.fromisoformat(str(value)).astimezone()
            return max(0, int(moment.timestamp() * 1000))
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no time: write 2024-01-31, 2024-01-31T12:00, or 90d for 90 days ago", param, ctx)


class Duration(click.ParamType[int]):
    """A length of time: 90s, 12h, 20w."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return milliseconds, at least a thousand."""
        if isinstance(value, int):
            return value  # it was converted already
        match = _DURATION.fullmatch(str(value).strip())
        try:
            found = timedelta() if match is None else int(match[1]) * _UNITS[match[2]]
        except (ValueError, OverflowError):
            found = timedelta()
        if not found:
            self.fail(f"{value!r} is no length of time: write 90s, 30m, 12h, 180d, 20w or 1y", param, ctx)
        return found // timedelta(milliseconds=1)


class PlainText(click.types.StringParamType):
    """Text in UTF-8. Other bytes of a command line are only what a file may be called."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the text."""
        text = super().convert(value, param, ctx)
        if any("\ud800" <= character <= "\udfff" for character in text):
            self.fail(f"{text[:80]!r} is not UTF-8", param, ctx)
        return text


def strict(command: click.Command) -> click.Command:
    """Have a command refuse text that is not UTF-8, and numbers that no machine counts to."""
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        strict(each)
    for param in command.params:
        if param.type is click.STRING:
            param.type = PlainText()
        elif isinstance(param.type, click.IntRange) and param.type.max is None:
            param.type = click.IntRange(param.type.min, sys.maxsize)
    return command


class Key(click.ParamType[bytes]):
    """A public key in 64 hex digits."""

    name = "public key"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        """Return the 32 bytes."""
        del param, ctx
        return value if isinstance(value, bytes) else parse_hex(str(value), "a public key")


def exit_status(error: CableStoreError) -> int:
    """Return the exit status of a command that ends with this error."""
    return 3 if isinstance(error, StorageError) else 2


def default_store() -> Path:
    """Return where the store is unless a command is told otherwise."""
    return user_data_path("cablestore", appauthor=False) / "store"


def common_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --store and --json; the command gets `path` and `out`."""

    @click.option(
        "-s",
        "--store",
        "path",
        type=PathValue(is_store=True),
        envvar="CABLESTORE_STORE",
        default=default_store,
        help="The store's folder [default: $CABLESTORE_STORE, or a folder in your user data].",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print JSON, one value a line.")
    @wraps(function)
    def command(*args: Any, as_json: bool, **kwargs: Any) -> Any:
        return function(*args, out=Output(as_json=as_json), **kwargs)

    return command


def with_store(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the common options and open the store; the command gets `store` and `out`."""

    @common_options
    @wraps(function)
    def command(*args: Any, path: Path, **kwargs: Any) -> Any:
        with open_to_read(path) as store:
            return function(*args, store=store, **kwargs)

    return command


def full_hash(store: CableStore, text: str) -> bytes:
    """Return the hash that a person means: all 64 hex digits, or the first few (at least 4) of one that is here."""
    if len(text) == 64:
        return parse_hex(text, "a hash")
    prefix = text.lower()
    if len(prefix) < 4 or prefix.strip("0123456789abcdef"):
        raise click.UsageError(
            f"{text!r} is no hash: write 64 hex digits, or at least the first 4 of a post that is here"
        )
    found = store.hashes_starting(prefix, 2)
    if len(found) == 1:
        return found[0]
    raise click.UsageError(
        f"no post here has a hash that starts with {prefix}"
        if not found
        else f"several hashes start with {prefix}: write more"
    )
