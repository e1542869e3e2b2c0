"""Importing chat logs into a store: finding the files, reading them as a stream, and counting what became of them."""

from __future__ import annotations

import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time
from itertools import groupby
from pathlib import Path
from typing import Final

from cablestore.dialect import Dialect
from cablestore.errors import LogFormatError
from cablestore.irc import LogFormat, recognise
from cablestore.irc_posts import Cast, Conversation, Skips
from cablestore.post import Post
from cablestore.store import CableStore
from cablestore.verdict import Verdict

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_YEAR = re.compile(r"\d{4}")
_SAMPLE_LINES: Final = 200
"""Lines from which a file's format is recognised."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of a channel's log, and the UTC midnight at which its times begin."""

    path: Path
    format: LogFormat
    channel: str
    midnight_ms: int


@dataclass(slots=True)
class ImportReport:
    """What an import read and what became of it."""

    files: int = 0
    lines: int = 0
    posts: Counter[str] = field(default_factory=Counter)
    """Posts made from lines, by type."""
    verdicts: Counter[str] = field(default_factory=Counter)
    """What the store said to them."""
    skips: Skips = field(default_factory=Skips)


def find_logs(paths: Iterable[Path], scratch: Path, channel: str | None = None) -> list[LogFile]:
    """Return the log files under `paths`, by channel and then time.

    Paths are files, folders, or tar archives, which are unpacked into `scratch`. The channel is what the lines of a file
    name; else, in formats whose lines do, what those of all other files name if they agree; else the folder's name, or
    the one above where the folder is a year. `channel` overrides it all.

    Raises LogFormatError for a path that does not exist and for a file that no format reads.
    """
    found = [log for log in (_inspect(path) for path in _files(paths, scratch)) if log is not None]
    named = {log.channel for log in found if log.channel}
    common = named.pop() if len(named) == 1 else ""
    logs = [replace(log, channel=channel or log.channel or _unnamed_channel(log, common)) for log in found]
    return sorted(logs, key=lambda log: (log.channel, log.midnight_ms, log.path.name))


def _unnamed_channel(log: LogFile, common: str) -> str:
    if log.format.channel is not None and common:
        return common
    folder = log.path.absolute().parent
    return (folder.parent if _YEAR.fullmatch(folder.name) else folder).name.lower().lstrip("#")


def _files(paths: Iterable[Path], scratch: Path) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from (file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
        elif not path.is_file():
            raise LogFormatError(f"there is no file or folder {path}")
        elif tarfile.is_tarfile(path):
            folder = scratch / path.name
            with tarfile.open(path) as archive:
                archive.extractall(folder, filter="data")
            yield from (file for file in folder.rglob("*") if file.is_file())
        else:
            yield path


def _inspect(path: Path) -> LogFile | None:
    """Recognise a file; None for one without lines. Its channel is "" where its lines name none."""
    lines = [line for _, line in zip(range(_SAMPLE_LINES), read_lines(path), strict=False)]
    if not lines:
        return None
    found = recognise(lines, str(path))
    match = _DATE.search(path.name)
    if match is None:
        raise LogFormatError(f"the name of {path} has no date like 2022-01-31, and the lines of a log have none either")
    try:
        midnight = datetime.combine(date.fromisoformat(match[0]), time(), UTC)
    except ValueError:
        raise LogFormatError(f"the name of {path} has no real date: {match[0]}") from None
    return LogFile(path, found, found.channel_of(read_lines(path)) or "", int(midnight.timestamp() * 1000))


def read_lines(path: Path) -> Iterator[str]:
    """Yield a file's lines as UTF-8, or where one is not, as cp1252. Memory does not grow with the file."""
    with path.open("rb") as file:
        for line in file:
            data = line.rstrip(b"\r\n")
            try:
                yield data.decode()
            except UnicodeDecodeError:
                yield data.decode("cp1252", errors="replace")


def posts_of(
    logs: Iterable[LogFile], seed_phrase: str, dialect: Dialect, report: ImportReport, progress: Callable[[int], None]
) -> Iterator[Post]:
    """Yield the posts that logs come to, channel by channel. `progress` gets the bytes read since its last call."""
    cast = Cast(seed_phrase)
    for channel, files in groupby(logs, key=lambda log: log.channel):
        conversation = Conversation(channel, cast, dialect, report.skips)
        for log in files:
            conversation.begin_file(log.midnight_ms)
            for line in read_lines(log.path):
                report.lines += 1
                for post in conversation.posts(log.format.parse(line)):
                    report.posts[post.type_name] += 1
                    yield post
            report.files += 1
            progress(log.path.stat().st_size)


def import_logs(
    store: CableStore,
    logs: Iterable[LogFile],
    *,
    seed_phrase: str,
    progress: Callable[[int], None] = lambda _: None,
    batch_posts: int = 500,
) -> ImportReport:
    """Store what logs come to; a second import of the same logs adds nothing.

    Give all the logs of a channel at once: each post links to the one before it, so a log that begins later is another
    history. Interrupted, it can be run again.
    """
    report = ImportReport()
    raws = (post.raw for post in posts_of(logs, seed_phrase, store.dialect, report, progress))
    for outcomes in store.ingest_batches(raws, batch_posts=batch_posts, verify=False):
        report.verdicts.update(outcome.verdict.value for outcome in outcomes)
    return report


def stored(report: ImportReport) -> int:
    """Return how many posts an import added."""
    return report.verdicts[Verdict.ACCEPTED.value]
