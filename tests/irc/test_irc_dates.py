"""Times of lines, dates in paths and words, and encodings: their limits, value by value."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections import Counter
from datetime import UTC, date, datetime
from pathlib import Path, PurePath
from zoneinfo import ZoneInfo

import pytest
from irc_logs import laid

from cablestore import limits
from cablestore.errors import ArgumentError
from cablestore.irc.dates import Clock, Stamp, stamp_of, time_of_day
from cablestore.irc.days import stamp_of_words
from cablestore.irc.encodings import detected, encoding_of, read_lines
from cablestore.irc.events import EXAMPLES_KEPT, LONG_CHARACTERS, Skips, unit_of
from cablestore.irc.lines import NotALogError, shortened
from cablestore.irc.naming import Conversation, LogEvidence, channel_names, conversation_of, is_private
from cablestore.irc.paths import date_in_path, marked_part, plain_channel, without_date, year_in_path
from cablestore.irc.survey import find_logs

MINUTE, HOUR = 60_000, 3_600_000
DAY = 24 * HOUR
MONDAY = date(2013, 1, 7)
MONDAY_MS = int(datetime(2013, 1, 7, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0:00", 0),
        ("23:59:60", DAY),
        ("23:59:61", None),
        ("24:00", None),
        ("10:60", None),
        ("10:59:59", 11 * HOUR - 1000),
        ("12:00 AM", 0),
        ("12:30 pm", 12 * HOUR + 30 * MINUTE),
        ("1:05 P.M.", 13 * HOUR + 5 * MINUTE),
        ("11:00 AM", 11 * HOUR),
        ("13:00 PM", None),
        ("0:10 AM", None),
        ("10:00 or so", None),
    ],
)
def test_times_of_day(text: str, ms: int | None) -> None:
    assert time_of_day(text) == ms


@pytest.mark.parametrize(
    ("line", "stamp"),
    [
        ("[09:01] x", Stamp(9 * HOUR + MINUTE, unit_ms=MINUTE)),
        ("[1:05 PM] x", Stamp(13 * HOUR + 5 * MINUTE, unit_ms=MINUTE, is_half=True)),
        ("2013-01-07 09:00:01 x", Stamp(9 * HOUR + 1000, 2013, 1, 7)),
        ("07.01.2013 09:00 x", Stamp(9 * HOUR, 2013, 1, 7, unit_ms=MINUTE)),
        ("Dec 31 09:00:00 x", Stamp(9 * HOUR, 0, 12, 31)),
        ("Feb 29 09:00:00 x", Stamp(9 * HOUR, 0, 2, 29)),
        ("2013-01-07T09:00:00+0530 x", Stamp(9 * HOUR, 2013, 1, 7, 5 * HOUR + 30 * MINUTE)),
        ("2013-01-07T09:00:00-05:30 x", Stamp(9 * HOUR, 2013, 1, 7, -(5 * HOUR + 30 * MINUTE))),
        ("2013-01-07T09:00:00Z x", Stamp(9 * HOUR, 2013, 1, 7, 0)),
        ("2013-02-29 09:00 x", None),
        ("2013-01-07 25:00 x", None),
        ("no time", None),
    ],
)
def test_stamps_of_lines(line: str, stamp: Stamp | None) -> None:
    assert stamp_of(line) == stamp


def test_only_some_times_prove_a_clock_of_24_hours() -> None:
    times = (0, HOUR - 1, HOUR, 13 * HOUR - 1, 13 * HOUR)
    assert [Stamp(ms).proves_24_hours() for ms in times] == [True, True, False, False, True]
    assert Stamp(2 * HOUR, is_half=True).proves_24_hours()


def ticks(*stamps: Stamp | None, face_hours: int = 24, zone: str = "UTC", day: date = MONDAY) -> list[int]:
    """Return the times of stamps, in milliseconds since Monday."""
    clock = Clock()
    clock.begin(day, face_hours, UTC if zone == "UTC" else ZoneInfo(zone))
    return [clock.tick(stamp) - MONDAY_MS for stamp in stamps]


def test_a_clock_advances_and_never_goes_back() -> None:
    assert ticks(Stamp(10 * HOUR), None, Stamp(9 * HOUR), Stamp(11 * HOUR)) == [10 * HOUR] * 3 + [11 * HOUR]
    assert ticks(Stamp(10 * HOUR), Stamp(9 * HOUR - 1)) == [10 * HOUR, DAY + 9 * HOUR - 1]
    assert ticks(Stamp(11 * HOUR), Stamp(HOUR), face_hours=12) == [11 * HOUR, 13 * HOUR]
    assert ticks(Stamp(11 * HOUR), Stamp(HOUR), Stamp(11 * HOUR), Stamp(HOUR), face_hours=12)[-1] == 25 * HOUR


def test_dates_are_trusted_except_for_small_steps_back() -> None:
    def dated(ms: int, day: int = 7, zone_ms: int | None = None) -> Stamp:
        return Stamp(ms, 2013, 1, day, zone_ms)

    assert ticks(dated(HOUR, 5), dated(HOUR)) == [HOUR - 2 * DAY, HOUR]
    assert ticks(dated(3 * HOUR), dated(2 * HOUR), dated(2 * HOUR - 1)) == [3 * HOUR, 3 * HOUR, 2 * HOUR - 1]
    assert ticks(dated(HOUR, zone_ms=HOUR), Stamp(2 * HOUR, zone_ms=-HOUR)) == [0, 3 * HOUR]
    assert ticks(dated(23 * HOUR), Stamp(HOUR), dated(2 * HOUR, 8)) == [23 * HOUR, 25 * HOUR, 26 * HOUR]


def test_a_date_without_a_year_is_the_closest_one() -> None:
    assert ticks(Stamp(0, 0, 12, 31)) == [-7 * DAY]
    assert ticks(Stamp(0, 0, 1, 1), day=date(2012, 12, 31)) == [-6 * DAY]
    assert ticks(Stamp(0, 0, 2, 29)) == [(date(2012, 2, 29) - MONDAY).days * DAY]
    assert ticks(Stamp(HOUR, 0, 2, 29), day=date(2014, 6, 1)) == [(date(2014, 6, 1) - MONDAY).days * DAY + HOUR]


def test_hours_that_exist_twice_or_never() -> None:
    """In Berlin, clocks went back on 27 October 2013 at 3:00, and forward on 31 March at 2:00."""
    back, forward = date(2013, 10, 27), date(2013, 3, 31)
    at_ms = (back - MONDAY).days * DAY
    half = 2 * HOUR + 30 * MINUTE
    assert ticks(Stamp(half), zone="Europe/Berlin", day=back) == [at_ms + 30 * MINUTE]
    times = ticks(Stamp(half), Stamp(2 * HOUR), Stamp(4 * HOUR), zone="Europe/Berlin", day=back)
    assert times == [at_ms + 30 * MINUTE, at_ms + HOUR, at_ms + 3 * HOUR]
    at_ms = (forward - MONDAY).days * DAY
    assert ticks(Stamp(half), zone="Europe/Berlin", day=forward) == [at_ms + 90 * MINUTE]


def test_times_outside_the_calendar_are_limited() -> None:
    assert ticks(Stamp(0), day=date(1960, 1, 1)) == [-MONDAY_MS]
    clock = Clock()
    begin_ms = clock.begin(date.max, 24, ZoneInfo("Asia/Tokyo"))
    assert [clock.tick(Stamp(ms)) - begin_ms for ms in (5 * HOUR, HOUR)] == [5 * HOUR, 5 * HOUR]
    assert begin_ms + 5 * HOUR < limits.MAX_TIMESTAMP_MS


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Mon Jan 07 09:00:01 2013", Stamp(9 * HOUR + 1000, 2013, 1, 7)),
        ("7. Januar 2013", Stamp(0, 2013, 1, 7)),
        ("2013/1/7", Stamp(0, 2013, 1, 7)),
        ("7.1.2013", Stamp(0, 2013, 1, 7)),
        ("2013年1月7日", Stamp(0, 2013, 1, 7)),
        ("Mon Jan 07 25:00 2013", None),
        ("30. Februar 2013", None),
        ("January 2013", None),
        ("January 7", None),
        ("2013 7", None),
        ("7 January 2013".ljust(120), Stamp(0, 2013, 1, 7)),
        ("7 January 2013".ljust(121), None),
    ],
)
def test_dates_in_words(text: str, found: Stamp | None) -> None:
    assert stamp_of_words(text) == found


# --- paths ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "day", "channel"),
    [
        ("garden/2013-01-07.log", MONDAY, "garden"),
        ("2013/01/07/garden.txt", MONDAY, "garden"),
        ("2012-12-31/garden/20130107.log.gz", MONDAY, "garden"),
        ("garden.log.07Jan2013", MONDAY, "garden"),
        ("Garden_20130107.log", MONDAY, "garden"),
        ("20130107-Garden.log", MONDAY, "garden"),
        ("garden/2013/Jan/07.log", None, "garden"),
        ("120130107.log", None, ""),
        ("garden.log", None, "garden"),
    ],
)
def test_dates_and_channels_of_paths(path: str, day: date | None, channel: str) -> None:
    assert date_in_path(PurePath(path)) == day
    assert plain_channel(PurePath(path)) == channel


def test_years_and_marks_in_paths() -> None:
    assert year_in_path(PurePath("logs/2012/2013/Jan/2011")) == 2013
    assert year_in_path(PurePath("logs/1969/garden.log")) is None
    assert marked_part(PurePath("a/net-#Garden_2013-01-07.log/b")) == (1, "net-", "garden")
    assert marked_part(PurePath("a/&local.log")) == (1, "", "&local")
    assert marked_part(PurePath("a/r&d.log")) is None
    assert marked_part(PurePath("#a/#.log")) == (0, "", "a")
    assert without_date("2013-01-07") == ""
    with pytest.raises(NotALogError, match="invalid date in the name of"):
        date_in_path(PurePath("2013-01-07/2013-02-30.log"))


# --- conversations ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("irc.libera.#Garden.weechatlog", Conversation("libera", "garden", True, True)),
        ("irc.libera.Bob.weechatlog", Conversation("libera", "bob", False, True, True)),
        ("irc.libera.&ops.weechatlog", Conversation("libera", "&ops", True, True)),
        ("given/OFTC-#garden.log", Conversation("oftc", "garden", True, True)),
        ("given/znc-#garden.log", Conversation("", "garden", True)),
        ("given/office/#garden/2013-01-07.log", Conversation("office", "garden", True)),
        ("given/Libera.Chat/2013/#garden.log", Conversation("libera", "garden", True, True)),
        ("given/office/users/#garden.log", Conversation("", "garden", True)),
        ("given/#garden.log", Conversation("", "garden", True)),
        ("given/garden.log", Conversation("", "garden", False)),
    ],
)
def test_conversations_of_paths(path: str, expected: Conversation) -> None:
    assert conversation_of(PurePath("/", path), PurePath("/given"), "") == expected


def test_the_channel_of_the_lines_is_the_name() -> None:
    for path in ("given/garden.log", "given/#garden.log", "given/oftc-#garden.log"):
        assert conversation_of(PurePath("/", path), PurePath("/given"), "shed").name == "shed"


def test_a_network_above_the_given_path_must_be_known() -> None:
    assert conversation_of(PurePath("/libera/#a.log"), PurePath("/libera/#a.log"), "").network == "libera"
    assert conversation_of(PurePath("/logs/#a.log"), PurePath("/logs/#a.log"), "").network == ""


def test_private_conversations() -> None:
    one = Conversation("", "bob", False)

    def private(
        *files: LogEvidence, of: Conversation = one, marks: bool = False, is_among_marked: bool = False
    ) -> bool:
        return is_private(of, files, marks=marks, is_among_marked=is_among_marked)

    def speakers(*nicks: str) -> LogEvidence:
        return LogEvidence(speakers=frozenset(nicks))

    assert not private(speakers("ann"))
    assert private(speakers("ann"), is_among_marked=True)
    assert private(speakers("ann", "bob"))
    assert private(speakers("a"), speakers("c"), marks=True)
    assert not private(speakers("a", "c"), speakers("d"), marks=True)
    assert private(LogEvidence(is_query=True, is_channel=True))
    assert not private(LogEvidence(is_channel=True), is_among_marked=True)
    assert not private(LogEvidence(channel="bob"), is_among_marked=True)
    assert not private(LogEvidence(is_query=True), of=Conversation("", "bob", True))
    assert private(LogEvidence(is_channel=True), of=Conversation("x", "bob", False, True, True))


def test_networks_share_a_channel_if_their_logs_share_lines() -> None:
    lines = [("ann", "a long line"), ("bob", "another long line")]

    def names(*logs: tuple[str, bool, str, int], known: dict[tuple[str, str], str] | None = None) -> list[str]:
        given = [
            (Conversation(network, "a", True, certain), form, LogEvidence(talk=frozenset(lines[:count])))
            for network, certain, form, count in logs
        ]
        found = channel_names("a", given, known or {})
        return [found[network] for network, *_ in logs]

    assert names(("one", True, "znc", 1), ("two", True, "irssi", 2)) == ["a@one", "a@two"]
    assert names(("one", True, "znc", 2), ("two", True, "irssi", 2)) == ["a", "a"]
    assert names(("one", True, "znc", 0), ("two", False, "irssi", 0)) == ["a", "a"]
    assert names(("one", True, "znc", 0), ("two", False, "znc", 0)) == ["a@one", "a@two"]
    assert names(("one", True, "znc", 0), ("one.chat", True, "znc", 0)) == ["a", "a"]
    assert names(("", False, "znc", 0), ("two", True, "znc", 0)) == ["a", "a"]
    assert names(("two", True, "znc", 0), known={("one", "a"): "a"}) == ["a@two"]
    assert names(("two", True, "znc", 0), known={("two", "a"): "b", ("two", "x"): "a"}) == ["b"]
    assert names(("", False, "znc", 0), known={("one", "a"): "a"}) == ["a"]


# --- encodings and unparsed lines ---------------------------------------------------------------------


def test_encodings_are_detected_at_their_limits() -> None:
    def strange(number: int) -> bytes:
        return b"x " + "Привет мир как дела друзья сегодня".replace(" ", "").encode("cp1251")[:number] + b"\n"

    assert encoding_of(b"") == encoding_of(b"plain\n") == encoding_of("é\n".encode()) == "utf-8"
    assert encoding_of(strange(23)) == "cp1252"
    assert encoding_of(strange(24)) == "cp1251"
    assert encoding_of("a\n".encode("utf-16")) == "utf-16"
    assert encoding_of(b"\xfe\xff\0a") == "utf-16"
    assert encoding_of("a".encode("utf-32")) == "utf-32"
    assert [encoding_of("ab".encode(name)) for name in ("utf-16-le", "utf-16-be")] == ["utf-16-le", "utf-16-be"]
    assert encoding_of(b"a\0") == encoding_of(b"a\0bc") == "utf-8"
    assert encoding_of(b"caf\xe9") == "cp1252"
    assert encoding_of(b"plain\ncaf\xe9") == "utf-8"  # the last line may be truncated


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32", "utf-16-be"])
def test_files_longer_than_a_read_are_decoded_whole(encoding: str) -> None:
    lines = [f"línea {number}" for number in range(9_000)]
    used: Counter[str] = Counter()
    name, stream = detected(io.BytesIO("\n".join(lines).encode(encoding)))
    found = [line for line in read_lines(stream, name, used) if line is not None]
    assert [found[0].removeprefix("\ufeff"), *found[1:]] == lines
    assert name == encoding
    assert used == ({} if encoding == "utf-8" else {encoding: 1})


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"ab\xc3\xa9\xc3\xa9\xc3", "abéé\ufffd"),
        (b"\xa9\xa9\xa9" + "éé".encode() + b"\xe2\x82\xac\xe2\x82", "\ufffd\ufffd\ufffdéé€\ufffd"),
        (b"\xa9\xc3\xa9", "\ufffdé"),
        (b"\xa9\xa9\xc3\xa9", "©©Ã©"),
        (b"\xa9" * 6 + "é".encode() * 4, "\ufffd" * 6 + "éééé"),
        (b"\xa9" * 7 + "é".encode() * 4, "©" * 7 + "Ã©" * 4),
        (b"\x0304,05red\x03 \x02bold\x02 \x1b[1mx", "red bold x"),
    ],
)
def test_lines_with_invalid_bytes_or_codes(line: bytes, text: str) -> None:
    used: Counter[str] = Counter()
    assert list(read_lines(io.BytesIO(line + b"\nnext\n"), "utf-8", used)) == [text, "next"]
    assert used == ({"cp1252": 1} if "©" in text else {})


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_lines_above_the_limit_are_skipped(end: bytes) -> None:
    most = limits.MAX_LOG_LINE_SIZE_BYTES
    for size, expected in ((most, "a" * most), (most + 1, None), (2 * most + 2, None), (2 * most + 3, None)):
        data = b"a" * size + end
        found = list(read_lines(io.BytesIO(data + (b"next\n" if end else b"")), "utf-8", Counter()))
        assert found == [expected, "next"][: 1 + bool(end)]


def test_unparsed_lines_are_counted_and_shortened() -> None:
    skips = Skips()
    for size in (LONG_CHARACTERS - 1, LONG_CHARACTERS, 1, 2, 3):
        skips.not_understood("x" * size)
    assert skips.reasons == {"not understood": 5}
    assert skips.unknown_lines == 4
    assert skips.examples == ["x" * 100 + "...", "x" * 100 + "...", "x"]
    assert EXAMPLES_KEPT == 3
    assert (shortened("x" * 100), shortened("a\tb")) == ("x" * 100, "a\ufffdb")
    assert [unit_of(ms) for ms in (60_000, 60_499, 60_500, 60_999)] == [1000, 1000, MINUTE, MINUTE]


# --- beginnings of files ------------------------------------------------------------------------------

THREE = "".join(f"[09:00:00] <{nick}> a\n" for nick in ("ann", "bob", "cyd"))


@pytest.mark.parametrize(
    ("path", "text", "day", "begin"),
    [
        ("2012/#garden.log", "Jan 07 09:00:00 <ann>\thi\n", None, "2012-01-07 09:00"),
        ("#garden.log", "Jan 07 09:00:00 <ann>\thi\n", date(2011, 5, 5), "2011-01-07 09:00"),
        ("#garden-2013-02-30.log", "[09:00:00] <ann> hi\n", date(2011, 5, 5), "2011-05-05 00:00"),
        ("#garden.log", "--- Day changed Tue Jan 08 2013\n09:00 < ann> hi\n", None, "2013-01-08 00:00"),
        ("#garden.log", "23:00 < ann> hi\n--- Day changed Tue Jan 08 2013\n09:00 < ann> hi\n", None, "2013-01-07 00:00"),
        ("#garden/2013-01-07.log", "[09:00:00] <ann> hi\n", date(2011, 5, 5), "2013-01-07 00:00"),
        ("c" * 64 + "/2013-01-07.log", THREE, None, "2013-01-07 00:00"),
    ],
)  # fmt: skip
def test_the_beginning_of_a_log(tmp_path: Path, path: str, text: str, day: date | None, begin: str) -> None:
    [log] = find_logs([laid(tmp_path, path, text)], day=day)
    assert f"{datetime.fromtimestamp(log.start_ms / 1000, UTC):%Y-%m-%d %H:%M}" == begin
    assert str(log.day) == begin[:10]


def test_a_name_that_is_too_long_for_a_channel_is_reported(tmp_path: Path) -> None:
    for name in ("c" * 65, "c\x7f"):
        with pytest.raises(ArgumentError, match=r"no channel name of 1 to 64 characters found for .*Use --channel"):
            find_logs([laid(tmp_path, f"{name}/2013-01-07.log", THREE)])


@pytest.mark.parametrize("kind", ["zip in tar", "encrypted"])
def test_archives_that_cannot_be_read_are_named(tmp_path: Path, kind: str) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("#garden/2013-01-07.log", THREE)
    data = bytearray(packed.getvalue())
    path = tmp_path / "logs"
    if kind == "encrypted":
        data[6] |= 1
        data[data.index(b"PK\x01\x02") + 8] |= 1
        path.write_bytes(data)
        reason = 'contains an encrypted entry, "#garden/2013-01-07.log"'
    else:
        info = tarfile.TarInfo("in.zip")
        info.size = len(data)
        with tarfile.open(path, "w") as tar:
            tar.addfile(info, io.BytesIO(data))
        reason = r"in\.zip is a zip archive in another archive"
    with pytest.raises(ArgumentError, match=reason):
        find_logs([path])
