"""Survey of the logs under some paths: the format, channel and first day of each, and the skipped files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, timedelta, tzinfo
from itertools import chain
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Final

from cablestore import limits
from cablestore.errors import ArgumentError
from cablestore.irc.dates import Clock, Stamp, real_date
from cablestore.irc.encodings import detected, read_lines
from cablestore.irc.events import LONG_CHARACTERS
from cablestore.irc.lines import LineKind, LogFormat, LogLine, NotALogError, shortened
from cablestore.irc.naming import Conversation, LogEvidence, Names, channel_names, conversation_of, is_private
from cablestore.irc.paths import date_in_path, is_named_by_day, year_in_path
from cablestore.irc.people import folded
from cablestore.irc.recognition import SAMPLE_LINES, recognise, with_marks_of
from cablestore.irc.source import LogStream, files_below, logs_in

BYTE_ORDER_MARK: Final = "\ufeff"
MOST_NOT_UNDERSTOOD: Final = 0.05
"""Share of unparsed lines above which a file is rejected, unless `Options.is_lenient`."""
_TALK_LINES: Final = 100
_LEAST_TALK_CHARACTERS: Final = 8
_HALF_DAY_HOURS: Final = 12
_DAY_HOURS: Final = 24
_NO_NAMES: Final[Names] = MappingProxyType({})
_SIGNS: Final = frozenset({LineKind.JOIN, LineKind.LEAVE, LineKind.TOPIC, LineKind.UNSIGNED_TOPIC, LineKind.MODE})
"""Kinds of lines that private conversations do not contain."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of a channel's log, and the time at which it begins.

    `path` includes the archives that contain the file, and `number` counts the files in `source`. `start_ms` is the
    time of its beginning, in milliseconds since 1970. `zone` applies to times without a zone. `channel` is the channel
    of the store, and `conversation` the conversation of the log. `encoding` applies to lines that are not UTF-8.
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
    encoding: str
    conversation: Conversation
    evidence: LogEvidence


@dataclass(frozen=True, slots=True)
class Options:
    """Options of an import, for all of its logs."""

    channel: str | None = None
    day: date | None = None
    zone: tzinfo = UTC
    encoding: str | None = None
    with_queries: bool = False
    is_lenient: bool = True


@dataclass(slots=True)
class Survey:
    """Logs to import, by channel and then time, and the skipped files."""

    logs: list[LogFile] = field(default_factory=list)
    private: list[PurePath] = field(default_factory=list)
    """Private conversations."""
    not_logs: list[tuple[PurePath, str]] = field(default_factory=list)
    """Files that are not logs, with the reason."""
    separate: dict[str, list[str]] = field(default_factory=dict)
    """Channels of one name on several networks, with the channels of the store that they become."""


def find_logs(
    paths: Iterable[Path], *, channel: str | None = None, day: date | None = None, zone: tzinfo = UTC
) -> list[LogFile]:
    """Return the logs under `paths`, by channel and then time. `survey` has all options, and lists skipped files."""
    return survey(paths, Options(channel=channel, day=day, zone=zone)).logs


def survey(paths: Iterable[Path], options: Options, names: Names = _NO_NAMES) -> Survey:
    """Find the logs under `paths`. `names` are the channels of the store from earlier imports.

    Paths are files, folders, compressed files or archives. The channel of a file is the first of these that exists:

    * the channel of the options * the channel in its lines * the channel that its path marks with `#` * the only
    channel that the lines of the other files name, if the file's format names channels * the name of the file or the
    folder

    The date comes from the lines, else from the path, else from the options. Raises ArgumentError for a path that does
    not exist or is empty, and if no file is a log.
    """
    result = Survey()
    found: dict[tuple[Path, int], tuple[LogFile, bool]] = {}
    for path in paths:
        is_empty = True
        for file in files_below(path):
            for log in _inspected(file, path.absolute(), options, result.not_logs):
                is_empty = False
                if log is not None:
                    found[log.source, log.number] = log, path.is_file() and log.path == path.absolute()
        if is_empty:
            raise ArgumentError(f"{path} is empty. Choose a log with messages")
    public = _public(list(found.values()), options, result)
    named = {log.evidence.channel for log in public if log.evidence.channel and log.format.names_channel}
    common = named.pop() if len(named) == 1 else ""
    logs = [replace(log, channel=options.channel or _own_channel(log, common)) for log in public]
    usable = [log for log in logs if _is_nameable(log, result.not_logs)]
    result.logs = usable if options.channel else _apart(usable, names, result)
    result.logs.sort(key=lambda log: (log.channel, log.start_ms, log.path.name, str(log.path)))
    if not result.logs:
        raise _nothing(result)
    return result


def _nothing(result: Survey) -> ArgumentError:
    if result.not_logs:
        return ArgumentError(result.not_logs[0][1])
    return ArgumentError(
        f"no channel logs found: {result.private[0]} is a private conversation. Use --queries to publish it, or "
        "--channel if it is the log of a channel"
    )


# --- channels --------------------------------------------------------------------------------------


def _public(found: list[tuple[LogFile, bool]], options: Options, result: Survey) -> list[LogFile]:
    """Return the logs that may be published, and record private conversations in `result`.

    `found` pairs each log with True if the user named its file.
    """
    groups: dict[tuple[str, str], list[LogFile]] = {}
    for log, _ in found:
        groups.setdefault((log.conversation.network, log.conversation.name), []).append(log)
    has_marked = any(log.conversation.is_marked for log, _ in found)
    public = []
    for log, is_given in found:
        group = groups[log.conversation.network, log.conversation.name]
        if options.with_queries or (is_given and options.channel) or not _is_private(log, group, has_marked=has_marked):
            public.append(log)
        else:
            result.private.append(log.path)
    return public


def _is_private(log: LogFile, group: list[LogFile], *, has_marked: bool) -> bool:
    marks = any(other.format.marks_channels for other in group)
    evidence = (other.evidence for other in group)
    return is_private(log.conversation, evidence, marks=marks, is_among_marked=has_marked)


def _own_channel(log: LogFile, common: str) -> str:
    if log.evidence.channel or log.conversation.is_marked or not log.format.names_channel:
        return log.evidence.channel or log.conversation.name
    return common or log.conversation.name


def _is_nameable(log: LogFile, not_logs: list[tuple[PurePath, str]]) -> bool:
    if 1 <= len(log.channel) <= limits.MAX_CHANNEL_CODEPOINTS and log.channel.isprintable():
        return True
    reason = f"no channel name of 1 to {limits.MAX_CHANNEL_CODEPOINTS} characters found for {log.path}. Use --channel"
    not_logs.append((log.path, reason))
    return False


def _apart(logs: list[LogFile], names: Names, result: Survey) -> list[LogFile]:
    """Return the logs with separate channels for networks that share a channel's name, and for private conversations.

    Record the separated channels in `result`.
    """
    by_channel: dict[str, list[LogFile]] = {}
    for log in logs:
        by_channel.setdefault(log.channel, []).append(log)
    apart = []
    for channel, own in by_channel.items():
        found = channel_names(channel, ((log.conversation, log.format.name, log.evidence) for log in own), names)
        if set(found.values()) != {channel}:
            result.separate[channel] = sorted(set(found.values()))
        is_shared = any(log.conversation.is_marked for log in own)
        for log in own:
            is_query = is_shared and log.conversation.is_unmarked_buffer
            name = found[log.conversation.network]
            apart.append(replace(log, channel=f"{name} (query)" if is_query else name))
    return apart


# --- one file --------------------------------------------------------------------------------------


def _inspected(
    source: Path, root: Path, options: Options, not_logs: list[tuple[PurePath, str]]
) -> Iterator[LogFile | None]:
    """Yield the logs in a file, and None for each part that is added to `not_logs`. Parts without lines are skipped."""
    for found in logs_in(source):
        try:
            log = _inspect(source.absolute(), root, found, options)
        except NotALogError as error:
            not_logs.append((found.path, str(error)))
            yield None
        else:
            if log is not None:
                yield log


def _inspect(source: Path, root: Path, found: LogStream, options: Options) -> LogFile | None:
    """Recognize a file. Return None for a file without lines."""
    encoding, stream = detected(found.stream)
    encoding = options.encoding or encoding
    lines, seen = _sampled(replace(found, stream=stream), encoding), list[str]()
    noted = _noted(lines, seen)
    known = recognise(noted, str(found.path), is_named_by_day=is_named_by_day(found.path))
    if not seen:
        return None
    known = with_marks_of(known, chain(seen, noted))
    sample = [known.parse(line) for line in seen[:SAMPLE_LINES]]
    if not options.is_lenient:
        _require_understood(found.path, seen, sample)
    channel, known = _named_and_timed(known, chain(seen, lines))
    day, stamp = _beginning(sample, found.path, options.day)
    clock = Clock()
    start_ms = clock.begin(day, known.face_hours, options.zone)
    return LogFile(
        source=source,
        number=found.number,
        path=found.path,
        format=known,
        channel="",
        day=day,
        start_ms=clock.tick(stamp) if stamp else start_ms,
        zone=options.zone,
        size_bytes=found.size_bytes,
        encoding=encoding,
        conversation=conversation_of(found.path, root, channel),
        evidence=_evidence_of(sample, channel),
    )


def _require_understood(path: PurePath, seen: list[str], sample: list[LogLine | None]) -> None:
    strange = [text for text, line in zip(seen, sample, strict=False) if line is None and len(text) < LONG_CHARACTERS]
    if len(strange) > MOST_NOT_UNDERSTOOD * len(sample):
        examples = ", ".join(f'"{shortened(text)}"' for text in strange[:3])
        raise NotALogError(
            f"{path} contains lines that cannot be parsed: {len(strange)} of its first {len(sample)}, such as "
            f"{examples}. Use --lenient to import the other lines"
        )


def _named_and_timed(known: LogFormat, lines: Iterable[str]) -> tuple[str, LogFormat]:
    """Return the first channel in lines, or "", and the format, with a 24-hour clock if a time proves it."""
    channel, is_proved = "", known.face_hours != _HALF_DAY_HOURS
    for text in lines:
        if is_proved and (channel or not known.names_channel):
            break
        line = known.parse(text)
        if line is not None:
            channel = channel or (line.channel if known.names_channel else "")
            is_proved = is_proved or (line.time is not None and line.time.proves_24_hours())
    is_24_hours = is_proved and known.face_hours == _HALF_DAY_HOURS
    return channel, replace(known, face_hours=_DAY_HOURS) if is_24_hours else known


def _evidence_of(sample: list[LogLine | None], channel: str) -> LogEvidence:
    lines = [line for line in sample if line is not None]
    talk = [line for line in lines if line.kind in (LineKind.SAY, LineKind.ACTION)]
    return LogEvidence(
        channel=channel,
        is_channel=any(line.kind in _SIGNS for line in lines),
        is_query=any(line.kind is LineKind.QUERY for line in lines),
        speakers=frozenset(folded(line.nick) for line in talk),
        talk=frozenset(
            (folded(line.nick), line.text) for line in talk[:_TALK_LINES] if len(line.text) >= _LEAST_TALK_CHARACTERS
        ),
    )


def _noted(lines: Iterator[str], seen: list[str]) -> Iterator[str]:
    for line in lines:
        seen.append(line)
        yield line


def _sampled(found: LogStream, encoding: str) -> Iterator[str]:
    """Yield the beginnings of non-empty lines. A placeholder that no format parses replaces a line that is too long."""
    for number, line in enumerate(read_lines(found.stream, encoding, Counter())):
        text = "?" * LONG_CHARACTERS if line is None else line[:LONG_CHARACTERS]
        if text.strip():
            yield text.removeprefix(BYTE_ORDER_MARK) if number == 0 else text


def _beginning(sample: list[LogLine | None], path: PurePath, given: date | None) -> tuple[date, Stamp | None]:
    """Return the day on which a log begins, and the stamp that determines its first time, or None.

    `given` is the day of the options, which applies if neither lines nor `path` contain a date.
    """
    times = [line.time for line in sample if line is not None and line.time is not None]
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
        raise NotALogError(
            f"no date found for {path}: neither its lines nor its path contain a date such as 2022-01-31. Use --date"
        )
    return begin, first


def _date_in_path(path: PurePath, given: date | None) -> date | None:
    try:
        return date_in_path(path)
    except NotALogError:
        if given is None:
            raise
        return None


def _stated(time: Stamp, *, is_first: bool) -> tuple[date, Stamp | None]:
    """Return the day on which a log begins, given its first dated stamp. If `is_first`, also return this stamp.

    A date without a time marks the change of the day, so the lines before it are from the previous day.
    """
    if is_first:
        return time.date(), time
    return time.date() - timedelta(days=0 if time.ms else 1), None
