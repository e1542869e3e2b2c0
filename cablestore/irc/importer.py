"""Import of chat logs into a store: find the logs, their channels and days, and count what is stored of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, timedelta, tzinfo
from itertools import chain, groupby
from pathlib import Path, PurePath
from typing import Final

from cablestore import limits
from cablestore.errors import LogFormatError
from cablestore.irc.dates import Clock, Stamp, real_date
from cablestore.irc.formats import SAMPLE_LINES, LogFormat, recognise
from cablestore.irc.paths import date_in_path, is_named_by_day, marked_channel, plain_channel, year_in_path
from cablestore.irc.posts import LogConverter, NickKeys, Skips
from cablestore.irc.source import LogStream, files_below, logs_in, logs_in_order, read_lines
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.post import Post
from cablestore.store.store import CableStore

_BYTE_ORDER_MARK: Final = "\ufeff"
_SAMPLED_CHARACTERS: Final = 1_000
"""Characters of each line that are used to recognise a format."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of a channel's log, and the day on which it begins.

    `path` includes the archives that hold the file, `number` counts the files in `source`. `start_ms` is the time at
    which it begins, in milliseconds since 1970; times without a zone are in `zone`.
    """

    source: Path
    number: int
    path: PurePath
    format: LogFormat
    channel: str
    day: date
    start_ms: int
    zone: tzinfo
    size_bytes: int


@dataclass(slots=True)
class ImportReport:
    """Counts of what an import read and stored."""

    files: int = 0
    lines: int = 0
    posts: Counter[str] = field(default_factory=Counter)
    """Posts made from lines, by type."""
    verdicts: Counter[str] = field(default_factory=Counter)
    """Verdicts of the store on them."""
    skips: Skips = field(default_factory=Skips)


# --- finding ---------------------------------------------------------------------------------------


def find_logs(
    paths: Iterable[Path], *, channel: str | None = None, day: date | None = None, zone: tzinfo = UTC
) -> list[LogFile]:
    """Return the logs under `paths`, by channel and then time.

    Paths are files, folders, compressed files or archives. The channel of a file is the one that its lines name; else
    the one that its path marks with `#`; else, in formats whose lines name it, the one of all other files if they
    agree; else the name of the file or the folder. `channel` overrides all of these. The date comes from the lines,
    else from the path, else from `day`; times without a zone are in `zone`.

    Raises LogFormatError for a path that does not exist or has no lines, and for a file of an unknown format.
    """
    found: dict[tuple[Path, int], LogFile] = {}
    for path in paths:
        below = [log for file in files_below(path) for log in _inspected(file, day, zone)]
        if not below:
            raise LogFormatError(f"{path} is empty: it has no line of a log")
        found |= {(log.source, log.number): log for log in below}
    named = {log.channel for log in found.values() if log.channel and log.format.names_channel}
    common = named.pop() if len(named) == 1 else ""
    logs = [replace(log, channel=channel or _channel_of(log, common)) for log in found.values()]
    return sorted(logs, key=lambda log: (log.channel, log.start_ms, log.path.name, str(log.path)))


def _channel_of(log: LogFile, common: str) -> str:
    marked = log.channel or marked_channel(log.path)
    found = marked or (common if log.format.names_channel else "") or plain_channel(log.path)
    if not 1 <= len(found) <= limits.MAX_CHANNEL_CODEPOINTS or not found.isprintable():
        raise LogFormatError(
            f"{log.path} does not name its channel, which must have 1 to {limits.MAX_CHANNEL_CODEPOINTS} characters. "
            "Give one with --channel"
        )
    return found


def _inspected(source: Path, day: date | None, zone: tzinfo) -> Iterator[LogFile]:
    for found in logs_in(source):
        log = _inspect(source.absolute(), found, day, zone)
        if log is not None:
            yield log


def _inspect(source: Path, found: LogStream, given: date | None, zone: tzinfo) -> LogFile | None:
    """Recognise a file. Returns None for one without lines. Its channel is "" if its lines name none."""
    lines, seen = _sampled(found), list[str]()
    known = recognise(_noted(lines, seen), str(found.path), is_named_by_day=is_named_by_day(found.path))
    if not seen:
        return None
    day, stamp = _beginning(known, seen, found.path, given)
    clock = Clock()
    start_ms = clock.begin(day, known.face_hours, zone)
    return LogFile(
        source=source,
        number=found.number,
        path=found.path,
        format=known,
        channel=known.channel_of(chain(seen, lines)) or "",
        day=day,
        start_ms=clock.tick(stamp) if stamp else start_ms,
        zone=zone,
        size_bytes=found.size_bytes,
    )


def _noted(lines: Iterator[str], seen: list[str]) -> Iterator[str]:
    for line in lines:
        seen.append(line)
        yield line


def _sampled(found: LogStream) -> Iterator[str]:
    """Yield the beginnings of lines except empty ones. One that no format parses replaces one that is too long."""
    for number, line in enumerate(read_lines(found.stream)):
        text = "(too long)" if line is None else line[:_SAMPLED_CHARACTERS]
        if text.strip():
            yield text.removeprefix(_BYTE_ORDER_MARK) if number == 0 else text


def _beginning(known: LogFormat, lines: list[str], path: PurePath, given: date | None) -> tuple[date, Stamp | None]:
    """Return the day on which a log begins, and its first time if that has a date."""
    times = [line.time for line in map(known.parse, lines[:SAMPLE_LINES]) if line is not None and line.time is not None]
    dated = next((number for number, time in enumerate(times) if time.is_dated()), None)
    if dated is not None:
        return _stated(times[dated], is_first=dated == 0)
    in_path = _date_in_path(path, given)
    first = next((time for time in times if time.month), None)
    if first is not None:
        year = in_path.year if in_path else year_in_path(path) or (given.year if given else 0)
        in_path = real_date(year, first.month, first.day)
    begin = in_path or given
    if begin is None:
        raise LogFormatError(
            f"{path} has no date: neither its lines nor its path have one like 2022-01-31 or 2022/01/31. Give one with "
            "--date"
        )
    return begin, first


def _date_in_path(path: PurePath, given: date | None) -> date | None:
    try:
        return date_in_path(path)
    except LogFormatError:
        if given is None:
            raise
        return None


def _stated(time: Stamp, *, is_first: bool) -> tuple[date, Stamp | None]:
    """Return the day on which a log begins, given the first date in it.

    Lines before a date without a time are from the day before.
    """
    if is_first:
        return time.date(), time
    return time.date() - timedelta(days=0 if time.ms else 1), None


# --- reading ---------------------------------------------------------------------------------------


def posts_of(
    logs: Iterable[LogFile],
    nick_keys: NickKeys,
    dialect: Dialect,
    report: ImportReport,
    progress: Callable[[int], None] = lambda _: None,
) -> Iterator[Post]:
    """Yield the posts of logs, channel by channel. `progress` is called with the bytes read since its last call."""
    for channel, opened in groupby(_opened(list(logs)), key=lambda pair: pair[0].channel):
        converter = LogConverter(channel, nick_keys, dialect, report.skips)
        for log, found in opened:
            converter.begin_file(log.day, log.format.face_hours, log.zone)
            for text in _usable_lines(found, report):
                for post in converter.posts(log.format.parse(text), text):
                    report.posts[post.type_name] += 1
                    yield post
            report.files += 1
            progress(log.size_bytes)


def _usable_lines(found: LogStream, report: ImportReport) -> Iterator[str]:
    """Yield the lines of a file that are neither empty nor too long, and count all lines."""
    for number, line in enumerate(read_lines(found.stream)):
        report.lines += 1
        if line is None:
            report.skips.reasons[f"longer than {limits.MAX_LOG_LINE_SIZE_BYTES:,} bytes"] += 1
        elif not line.strip():
            report.skips.reasons["empty line"] += 1
        else:
            yield line.removeprefix(_BYTE_ORDER_MARK) if number == 0 else line


def _opened(logs: list[LogFile]) -> Iterator[tuple[LogFile, LogStream]]:
    """Yield logs with their streams, in order. Reading of an archive continues where it stopped."""
    numbers: dict[Path, list[int]] = {}
    for log in logs:
        numbers.setdefault(log.source, []).append(log.number)
    readings = {source: logs_in_order(source, of) for source, of in numbers.items()}
    for log in logs:
        yield log, next(readings[log.source])
        if log.number == numbers[log.source][-1]:
            readings.pop(log.source).close()


def import_logs(
    store: CableStore,
    logs: Iterable[LogFile],
    *,
    seed_phrase: str,
    progress: Callable[[int], None] = lambda _: None,
    batch_posts: int = 500,
) -> ImportReport:
    """Store the posts of logs. A second import of the same logs adds nothing.

    Pass all logs of a channel together: each post links to the one before it, so a log that begins later makes another
    history. If interrupted, the import can be run again.
    """
    report = ImportReport()
    raws = (post.raw for post in posts_of(logs, NickKeys(seed_phrase), store.dialect, report, progress))
    for outcomes in store.ingest_batches(raws, batch_posts=batch_posts, verify=False):
        report.verdicts.update(outcome.verdict.value for outcome in outcomes)
    return report
