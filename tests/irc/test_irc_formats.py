"""Lines of each client: a sample of all its actions, and the resulting posts."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from irc_logs import PHRASE, SAMPLES, Sample, imported, laid

from cablestore import CableStore, Identity
from cablestore.errors import ArgumentError
from cablestore.irc.formats import FORMATS, UBUNTU_BY_DAY
from cablestore.irc.importer import import_logs
from cablestore.irc.lines import LogFormat
from cablestore.irc.survey import LogFile, find_logs


def key(nick: str) -> bytes:
    return Identity.derive(PHRASE, nick).public_key


def times(store: CableStore, channel: str = "garden") -> list[str]:
    found = store.messages(channel, 1000, newest_first=False).messages
    return [datetime.fromtimestamp(m.timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M") for m in found]


@pytest.mark.parametrize("sample", SAMPLES, ids=[sample.client for sample in SAMPLES])
def test_a_sample_of_each_client_is_imported(store: CableStore, tmp_path: Path, sample: Sample) -> None:
    root = tmp_path / "logs"
    laid(root, sample.path, sample.text)
    report = imported(store, root, channel="garden" if sample.client.startswith("ISO") else None)
    assert report.skips.examples == []
    assert [channel.name for channel in store.channels()] == ["garden"]
    messages = store.messages("garden", newest_first=False).messages
    assert [(m.author, m.text) for m in messages] == [
        (key("bob"), "hello <all>"),
        (key("ann"), "/me waves"),
        (key("bob"), "still me"),
        (key("ann"), "a new day"),
    ]
    assert times(store)[0] == sample.first_time
    assert times(store)[2] == "2013-01-07 09:05"
    assert times(store)[3] in ("2013-01-08 00:01", "2013-01-07 23:59")
    assert store.topic("garden") == "flowers"
    assert {user.public_key for user in store.members("garden")} == {key("ann"), key("bob")}
    assert store.user(key("bob")).name == "bobby"
    assert sum(number for why, number in report.skips.reasons.items() if why != "empty line") == sample.passed_over
    again = imported(store, root, channel="garden")
    assert set(again.verdicts) == {"duplicate"}


@pytest.mark.parametrize("known", FORMATS, ids=[known.name for known in FORMATS])
def test_each_format_has_a_sample(known: LogFormat) -> None:
    words = " ".join(sample.client for sample in SAMPLES)
    names = known.name.replace(" and ", "|").split("|")
    assert known.name in ("raku", "ubuntu") or all(name in words for name in names), (
        "separate tests cover raku and ubuntu"
    )


@pytest.mark.parametrize(
    "path",
    [
        "2013/01/07/#garden.txt",
        "garden/2013/2013-01-07.log",
        "#garden/2013/01-07.log",
        "garden/2013/01/07.log",
        "garden/20130107.log",
        "garden_20130107.log",
        "libera_#garden_20130107.log",
        "garden/2013/07Jan2013",
        "2013-01/07/garden.txt",
        "2013/01/07/garden.txt",
        "#Garden.log.20130107",
    ],
)
def test_the_day_and_the_channel_are_read_from_the_path(store: CableStore, tmp_path: Path, path: str) -> None:
    laid(tmp_path / "irc", path, "[09:01] <ann> hello\n")
    imported(store, tmp_path / "irc")
    assert times(store) == ["2013-01-07 09:01"]


def test_dates_in_lines_take_precedence_over_the_path(store: CableStore, tmp_path: Path) -> None:
    laid(tmp_path, "fetched-2024-05-05/#garden.log", "2013-01-07 09:01:00\tann\thello\n")
    imported(store, tmp_path / "fetched-2024-05-05")
    assert times(store) == ["2013-01-07 09:01"]


def test_options_provide_the_missing_date_channel_and_time_zone(store: CableStore, tmp_path: Path) -> None:
    file = laid(tmp_path, "notes.txt", "[09:01] <ann> hello\n[23:59] <ann> late\n[00:01] <ann> later\n")
    with pytest.raises(ArgumentError, match="--date"):
        find_logs([file])
    imported(store, file, day=date(2013, 1, 7), channel="garden", zone=ZoneInfo("America/New_York"))
    assert times(store)[:2] == ["2013-01-07 14:01", "2013-01-08 04:59"]


def test_dates_continue_over_midnight_and_into_the_next_year(store: CableStore, tmp_path: Path) -> None:
    file = laid(
        tmp_path,
        "#garden.log",
        "**** BEGIN LOGGING AT Mon Dec 31 23:58:00 2012\n"
        "Dec 31 23:59:00 <ann>\tone\n"
        "Jan 01 00:01:00 <ann>\ttwo\n"
        "Feb 28 12:00:00 <ann>\tthree\n",
    )
    imported(store, file)
    assert times(store) == ["2012-12-31 23:59", "2013-01-01 00:01", "2013-02-28 12:00"]


def test_lines_before_the_first_date_line_have_the_day_before(store: CableStore, tmp_path: Path) -> None:
    file = laid(tmp_path, "#garden.log", "23:59 < ann> one\n--- Day changed Tue Jan 08 2013\n00:00 < ann> two\n")
    imported(store, file)
    assert times(store) == ["2013-01-07 23:59", "2013-01-08 00:00"]


def test_repeated_and_skipped_hours_are_converted(store: CableStore, tmp_path: Path) -> None:
    lines = ["01:30 < ann> a", "02:30 < ann> b", "02:59 < ann> c", "02:01 < ann> d", "03:00 < ann> e"]
    autumn = laid(tmp_path, "2013/10/27/#garden.txt", "\n".join(lines) + "\n")
    spring = laid(tmp_path, "2013/03/31/#garden.txt", "01:59 < ann> x\n02:30 < ann> y\n03:31 < ann> z\n")
    imported(store, autumn, spring, zone=ZoneInfo("Europe/Berlin"))
    assert times(store) == [
        *("2013-03-31 00:59", "2013-03-31 01:30", "2013-03-31 01:31"),
        *("2013-10-26 23:30", "2013-10-27 00:30", "2013-10-27 00:59", "2013-10-27 01:01", "2013-10-27 02:00"),
    ]


@pytest.mark.parametrize("path", ["channel/2013-01-07.log", "2013/01/07/channel.txt"])
def test_times_without_a_zone_are_in_the_chosen_zone(store: CableStore, tmp_path: Path, path: str) -> None:
    file = laid(tmp_path, path, "[00:30] <ann> early\n[12:00] <ann> noon\n")
    imported(store, file, zone=ZoneInfo("Asia/Kolkata"))
    assert times(store, "channel") == ["2013-01-06 19:00", "2013-01-07 06:30"]


def test_files_of_a_channel_are_read_in_order_of_time(store: CableStore, tmp_path: Path) -> None:
    for number, day in enumerate((9, 7, 8)):
        laid(tmp_path, f"old/{number}/#garden.log", f"2013-01-{day:02}T09:00:00  <ann> {day}\n")
    imported(store, tmp_path / "old")
    messages = store.messages("garden", newest_first=False).messages
    assert [m.text for m in messages] == ["7", "8", "9"]
    assert [set(m.links) for m in messages[1:]] == [{messages[0].hash}, {messages[1].hash}]


def test_dates_of_single_lines_may_go_back(store: CableStore, tmp_path: Path) -> None:
    """A wrong clock in one line does not affect the dates of later lines."""
    days = ["2013-01-07", "2038-01-19", "2013-01-07"]
    file = laid(tmp_path, "#garden.log", "".join(f"{day} 09:00:00\tann\t{n}\n" for n, day in enumerate(days)))
    [log] = find_logs([file])
    assert log.format.name == "WeeChat"
    report = imported(store, file)
    assert report.verdicts["accepted"] == 3  # a name and two texts; the third is rejected because it is in the future
    assert times(store) == ["2013-01-07 09:00"] * 2


def test_formats_with_equal_first_lines_are_distinguished(tmp_path: Path) -> None:
    talk = "".join(f"[09:{n % 60:02}] <ann> {n}\n" for n in range(300))
    raku = laid(tmp_path, "2013/01/07/#a.txt", talk + "[10:00] *** bob joined\n")
    ubuntu = laid(tmp_path, "2013/01/08/#b.txt", talk + "=== bob [b@host] has joined #b\n")
    irssi = laid(tmp_path, "2013/01/09/#c.txt", talk + "[10:00] -!- bob [b@host] has joined #c\n")
    assert [log.format.name for log in find_logs([raku, ubuntu, irssi])] == ["raku", UBUNTU_BY_DAY.name, "irssi"]


def test_unknown_lines_are_counted_and_shown(store: CableStore, tmp_path: Path) -> None:
    strange = [f"!!! {n} \x1b[2J" + "x" * 200 for n in range(5)]
    file = laid(tmp_path, "2013/01/07/#garden.txt", "\n".join(["09:00 < ann> hello"] * 10 + strange) + "\n")
    report = imported(store, file)
    assert report.skips.reasons == {"not understood": 5}
    assert len(report.skips.examples) == 3
    assert report.skips.examples[0].startswith("!!! 0 ")
    assert all(len(example) < 120 and "\x1b" not in example for example in report.skips.examples)


def test_a_file_that_is_not_a_log_is_reported_without_patterns(tmp_path: Path) -> None:
    file = laid(tmp_path, "2013/01/07/#garden.txt", "Dear diary,\nnothing happened.\n")
    with pytest.raises(ArgumentError) as error:
        find_logs([file])
    assert 'An unparsed line: "Dear diary,"' in str(error.value)
    assert all(known.name in str(error.value) for known in FORMATS)
    assert "?P<" not in str(error.value)
    assert "\\" not in str(error.value)


def test_channels_of_a_folder_tree_are_separate(store: CableStore, tmp_path: Path) -> None:
    for name in ("a", "b", "C"):
        for day in (7, 8):
            laid(tmp_path, f"2013/01/{day:02}/#{name}.txt", f"[09:00] <ann> {name} {day}\n")
    laid(tmp_path, "2013/01/09/#a.txt", "=== bob [b@host] has joined #a\n[09:00] <bob> a 9\n")
    logs: list[LogFile] = find_logs([tmp_path / "2013"])
    import_logs(store, logs, seed_phrase=PHRASE)
    assert [channel.name for channel in store.channels()] == ["a", "b", "c"]
    assert [m.text for m in store.messages("a", newest_first=False).messages] == ["a 7", "a 8", "a 9"]
    assert logs[1].start_ms - logs[0].start_ms == timedelta(days=1) // timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("begin", "part"),
    [
        ("=== ", "[topic/#a:"),
        ("=== a [", "] "),
        ("12:34 -a", "("),
        ("12:34 -!- a [", "] "),
        ("12:34 -!- ", "#a."),
        ('2013-01-07 12:34:56\t--\ta has changed topic for #a from "', '" to "x'),
        ("2013-01-07 12:34:56\t-->\ta ", "has joined #"),
        ("[12:34] *** a ", "<> "),
    ],
)
def test_long_lines_are_parsed_in_linear_time(begin: str, part: str) -> None:
    """A pattern with overlapping parts would take twenty minutes to months for a line of this length."""
    line = begin + part * (1_000_000 // len(part))
    for known in FORMATS:
        known.parse(line)
