"""Import of chat logs into a store. Lines that are already stored are skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path, PurePath
from typing import Final

from cablestore import limits
from cablestore.index.verdict import Verdict
from cablestore.irc.encodings import read_lines
from cablestore.irc.events import EventReader, LogEvent, Skips
from cablestore.irc.lines import LineKind
from cablestore.irc.naming import Names
from cablestore.irc.people import NickKeys, Roster
from cablestore.irc.posts import LogConverter
from cablestore.irc.source import LogStream, logs_in_order
from cablestore.irc.stored import LOGGER_SKEW_MS, TYPES, StoredChannel, StoredPost, deletions, nicks_of_authors
from cablestore.irc.survey import BYTE_ORDER_MARK, LogFile
from cablestore.protocol.body import INFO, TYPE_NAMES
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.post import Post
from cablestore.remote.checkpoint import readable
from cablestore.store.store import CableStore
from cablestore.views import activity

_NAMES: Final = "import-irc"
"""Name of the local values that map each network and channel of logs to a channel of the store."""
_PART_EVENTS: Final = 2_000
"""Number of events that are compared with stored posts at a time."""
_ALWAYS_MS: Final = limits.MAX_TIMESTAMP_MS
_NEVER_MS: Final = -1


@dataclass(slots=True)
class ImportReport:
    """Counts of the lines that an import read and of the posts that it stored."""

    files: int = 0
    lines: int = 0
    posts: Counter[str] = field(default_factory=Counter)
    """Posts of the lines, by type."""
    verdicts: Counter[str] = field(default_factory=Counter)
    """Verdicts on the posts: the store's verdict on new posts, and duplicate or deleted for known posts."""
    skips: Skips = field(default_factory=Skips)
    encodings: Counter[str] = field(default_factory=Counter)
    """Number of lines that are not UTF-8, by encoding. A file in UTF-16 or UTF-32 adds 1."""
    cut_short: list[tuple[PurePath, int, str]] = field(default_factory=list)
    """Files that were read up to a line with an unreadable date, with the number and text of that line."""


def names_in(store: CableStore) -> Names:
    """Return the store's channels that earlier imports assigned to channels of logs."""
    found = ((key.partition("/"), value.decode()) for key, value in store.local.items(_NAMES))
    return {(network, channel): name for (network, _, channel), name in found}


def _keep_names(store: CableStore, logs: Iterable[LogFile]) -> None:
    names = {(log.conversation.network, log.conversation.name): log.channel for log in logs}
    known = names_in(store)
    for (network, channel), name in names.items():
        if network and (network, channel) not in known:
            store.local.put(_NAMES, f"{network}/{channel}", name.encode())


# --- reading ---------------------------------------------------------------------------------------


def posts_of(
    logs: Iterable[LogFile],
    nick_keys: NickKeys,
    dialect: Dialect,
    report: ImportReport,
    progress: Callable[[int], None] = lambda _: None,
) -> Iterator[Post]:
    """Yield the posts that importing the logs into an empty store creates, by channel, if the logs do not overlap.

    `progress` is called with the bytes read since its last call.
    """
    roster, converter = Roster(nick_keys), None
    for number, (log, found) in enumerate(_opened(list(logs)), 1):
        if converter is None or converter.channel != log.channel:
            converter = LogConverter(log.channel, roster, dialect, report.skips)
        converter.begin_file(number, None)
        for event in _events_of(log, found, report):
            yield from _counted(converter.posts(event, None), report)
        progress(log.size_bytes)


def _counted(posts: Iterator[Post], report: ImportReport) -> Iterator[Post]:
    for post in posts:
        report.posts[post.type_name] += 1
        yield post


def _events_of(log: LogFile, found: LogStream, report: ImportReport) -> Iterator[LogEvent]:
    """Yield the events of a file. Stop at a line with an unreadable date, because the times after it are unknown."""
    reader = EventReader(report.skips, log.day, log.format.face_hours, log.zone)
    report.files += 1
    for number, text in _usable_lines(log, found, report):
        line = log.format.parse(text)
        if line is not None and line.kind is LineKind.UNREADABLE_DAY:
            report.cut_short.append((log.path, number, text))
            return
        yield from reader.events(line, text)


def _usable_lines(log: LogFile, found: LogStream, report: ImportReport) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that are neither empty nor too long, with their numbers, and count all lines."""
    for number, line in enumerate(read_lines(found.stream, log.encoding, report.encodings), 1):
        report.lines += 1
        if line is None:
            report.skips.reasons[f"longer than {limits.MAX_LOG_LINE_SIZE_BYTES:,} bytes"] += 1
        elif not line.strip():
            report.skips.reasons["empty line"] += 1
        else:
            yield number, line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line


def _opened(logs: list[LogFile]) -> Iterator[tuple[LogFile, LogStream]]:
    """Yield each log with its stream, in order. Reading of a source continues where it stopped."""
    numbers: dict[Path, list[int]] = {}
    for log in logs:
        numbers.setdefault(log.source, []).append(log.number)
    readings = {source: logs_in_order(source, of) for source, of in numbers.items()}
    for log in logs:
        yield log, next(readings[log.source])
        if log.number == numbers[log.source][-1]:
            readings.pop(log.source).close()


# --- storing ---------------------------------------------------------------------------------------


class _Writer:
    """Writer of new posts in batches."""

    def __init__(self, store: CableStore, report: ImportReport, batch_posts: int) -> None:
        self._store, self._report, self._batch_posts = store, report, batch_posts
        self._waiting: list[bytes] = []

    def add(self, post: Post) -> None:
        self._report.posts[post.type_name] += 1
        self._waiting.append(post.raw)
        if len(self._waiting) >= self._batch_posts:
            self.flush()

    def count_known(self, event: LogEvent, stored: StoredPost | None) -> None:
        if stored is not None:
            self._count(TYPE_NAMES[TYPES[event.kind]], Verdict.DUPLICATE if stored.digest else Verdict.DELETED)

    def count_known_names(self, number: int) -> None:
        self._count(TYPE_NAMES[INFO], Verdict.DUPLICATE, number)

    def _count(self, type_name: str, verdict: Verdict, number: int = 1) -> None:
        if number:
            self._report.posts[type_name] += number
            self._report.verdicts[verdict.value] += number

    def flush(self) -> None:
        """Store the queued posts."""
        if self._waiting:
            outcomes = self._store.ingest(self._waiting, batch_posts=self._batch_posts, verify=False)
            self._report.verdicts.update(outcome.verdict.value for outcome in outcomes)
            self._waiting = []


def import_logs(
    store: CableStore,
    logs: Iterable[LogFile],
    *,
    seed_phrase: str,
    progress: Callable[[int], None] = lambda _: None,
    batch_posts: int = limits.IMPORT_BATCH_POSTS,
) -> ImportReport:
    """Store the lines of logs. Skip lines that are already stored from any log with the same seed phrase.

    To resume after an interruption, call this again.
    """
    report, found = ImportReport(), list(logs)
    _keep_names(store, found)
    with readable(store) as reader:
        roster = Roster(NickKeys(seed_phrase), nicks_of_authors(reader))
        deleted = deletions(reader)
        used = {name for name, counts in activity.channels(reader) if any(counts)}
    writer = _Writer(store, report, batch_posts)
    for channel, own in groupby(enumerate(_opened(found), 1), key=lambda item: item[1][0].channel):
        converter = LogConverter(channel, roster, store.dialect, report.skips)
        until_ms = _ALWAYS_MS if store.dialect.channel_id(channel) in used else _NEVER_MS
        read_ms = _NEVER_MS
        for number, (log, stream) in own:
            events = _events_of(log, stream, report)
            if log.start_ms - LOGGER_SKEW_MS > until_ms:
                converter.begin_file(number, None)
                latest_ms = _add_all(writer, converter, events)
            else:
                writer.flush()
                with readable(store) as reader:
                    known = StoredChannel(reader, channel, roster, deleted)
                    converter.begin_file(
                        number, known.tips(log.start_ms), is_later=log.start_ms - LOGGER_SKEW_MS > read_ms
                    )
                    latest_ms = _add_new(writer, converter, known, events)
            until_ms, read_ms = max(until_ms, latest_ms), max(read_ms, latest_ms)
            progress(log.size_bytes)
        writer.count_known_names(converter.known_names)
    writer.flush()
    return report


def _add_all(writer: _Writer, converter: LogConverter, events: Iterable[LogEvent]) -> int:
    """Store all events of a file that begins after the stored posts. Return the time of its latest event."""
    latest_ms = _NEVER_MS
    for event in events:
        latest_ms = max(latest_ms, event.at_ms)
        for post in converter.posts(event, None):
            writer.add(post)
    return latest_ms


def _add_new(writer: _Writer, converter: LogConverter, known: StoredChannel, events: Iterator[LogEvent]) -> int:
    """Store the events of a file that are not stored yet. Return the time of its latest event."""
    latest_ms = _NEVER_MS
    while part := list(islice(events, _PART_EVENTS)):
        latest_ms = max(latest_ms, *(event.at_ms for event in part))
        for event, stored in zip(part, known.match(part), strict=True):
            writer.count_known(event, stored)
            for post in converter.posts(event, stored):
                writer.add(post)
    return latest_ms
