"""Lines of each client: a sample of every act that it writes, and what a store has of it afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from cablestore import CableStore, Identity
from cablestore.errors import LogFormatError
from cablestore.irc.formats import FORMATS, UBUNTU_BY_DAY, LogFormat
from cablestore.irc.importer import ImportReport, LogFile, find_logs, import_logs

PHRASE = "a phrase"


@dataclass(frozen=True)
class Sample:
    """A day in a client's words. In each ann joins, tells the topic and acts, bob joins and becomes bobby, cyd and dan leave."""

    client: str
    path: str
    text: str
    first_time: str
    passed_over: int = 0


SAMPLES = [
    Sample(
        "irssi",
        "2013/01/07/#garden.txt",
        """\
--- Log opened Mon Jan 07 09:00:00 2013
09:00 -!- ann [~ann@host] has joined #garden
09:00 -!- Irssi: #garden: Total of 4 nicks [1 ops, 0 halfops, 0 voices, 3 normal]
09:00 -!- Topic for #garden: weeds
09:01 < bob> hello <all>
09:02  * ann waves
09:03 -!- ann changed the topic of #garden to: flowers
09:04 -!- bob is now known as bobby
09:05 <@bobby> still me
09:06 -!- mode/#garden [+o bobby] by ann
09:07 -!- cyd [cyd@host] has joined #garden
09:07 -!- cyd [cyd@host] has left #garden [bye]
09:08 -!- dan [dan@host] has joined #garden
09:08 -!- dan [dan@host] has quit [Ping timeout]
09:09 -!- eve [eve@host] has joined #garden
09:09 -!- eve was kicked from #garden by ann [spam]
09:10 -NickServ(services@host)- you are known
--- Day changed Tue Jan 08 2013
00:01 <+ann> a new day
--- Log closed Tue Jan 08 00:02:00 2013
""",
        "2013-01-07 09:01",
        5,
    ),
    Sample(
        "WeeChat",
        "irc.libera.#garden.weechatlog",
        """\
2013-01-07 09:00:00\t-->\tann (~ann@host) has joined #garden
2013-01-07 09:00:00\t--\tTopic for #garden is "weeds"
2013-01-07 09:00:00\t--\tChannel #garden: 4 nicks (1 op, 0 voices, 3 normals)
2013-01-07 09:01:00\tbob\thello <all>
2013-01-07 09:02:00\t *\tann waves
2013-01-07 09:03:00\t--\tann has changed topic for #garden from "weeds" to "flowers"
2013-01-07 09:04:00\t--\tbob is now known as bobby
2013-01-07 09:05:00\t@bobby\tstill me
2013-01-07 09:06:00\t--\tMode #garden [+o bobby] by ann
2013-01-07 09:07:00\t-->\tcyd [account] (real name) (cyd@host) has joined #garden
2013-01-07 09:07:10\t<--\tcyd (cyd@host) has left #garden (bye)
2013-01-07 09:08:00\t-->\tdan (dan@host) has joined #garden
2013-01-07 09:08:10\t<--\tdan (dan@host) has quit (Ping timeout)
2013-01-07 09:09:00\t-->\teve (eve@host) has joined #garden
2013-01-07 09:09:10\t<--\tann has kicked eve (spam)
2013-01-07 09:10:00\t--\tNotice(NickServ): you are known
2013-01-08 00:01:00\t+ann\ta new day
""",
        "2013-01-07 09:01",
        4,
    ),
    Sample(
        "ZNC",
        "user/libera/#garden/2013-01-07.log",
        """\
[09:00:00] *** Joins: ann (~ann@host)
[09:01:00] <bob> hello <all>
[09:02:00] * ann waves
[09:03:00] *** ann changes topic to 'flowers'
[09:04:00] *** bob is now known as bobby
[09:05:00] <bobby> still me
[09:06:00] *** ann sets mode: +o bobby
[09:07:00] *** Joins: cyd (cyd@host)
[09:07:10] *** Parts: cyd (cyd@host) (bye)
[09:08:00] *** Joins: dan (dan@host)
[09:08:10] *** Quits: dan (dan@host) (Ping timeout)
[09:09:00] *** Joins: eve (eve@host)
[09:09:10] *** eve was kicked by ann (spam)
[09:10:00] -NickServ- you are known
[00:01:00] <ann> a new day
""",
        "2013-01-07 09:01",
        2,
    ),
    Sample(
        "energymech",
        "garden_20130107.log",
        """\
[09:00] *** Joins: ann (~ann@host)
[09:01] <bob> hello <all>
[09:02] * ann waves
[09:03] *** ann changes topic to 'flowers'
[09:04] *** bob is now known as bobby
[09:05] <bobby> still me
[09:06] *** ann sets mode: +o bobby
[09:07] *** Joins: cyd (cyd@host)
[09:07] *** Parts: cyd (cyd@host)
[09:08] *** Joins: dan (dan@host)
[09:08] *** Quits: dan (dan@host) (Ping timeout)
[00:01] <ann> a new day
""",
        "2013-01-07 09:01",
        1,
    ),
    Sample(
        "HexChat",
        "Libera-#garden.log",
        """\
**** BEGIN LOGGING AT Mon Jan  7 09:00:00 2013

Jan 07 09:00:00 *\tNow talking on #garden
Jan 07 09:00:00 *\tTopic for #garden is: weeds
Jan 07 09:00:00 *\tTopic for #garden set by ann!~ann@host (Sun Jan  6 08:00:00 2013)
Jan 07 09:00:00 *\tann (~ann@host) has joined
Jan 07 09:01:00 <bob>\thello <all>
Jan 07 09:02:00 *\tann waves
Jan 07 09:03:00 *\tann has changed the topic to: flowers
Jan 07 09:04:00 *\tbob is now known as bobby
Jan 07 09:05:00 <bobby>\tstill me
Jan 07 09:06:00 *\tann gives channel operator status to bobby
Jan 07 09:07:00 *\tcyd (cyd@host) has joined
Jan 07 09:07:10 *\tcyd (cyd@host) has left (bye)
Jan 07 09:08:00 *\tdan (dan@host) has joined
Jan 07 09:08:10 *\tdan has quit (Ping timeout)
Jan 07 09:09:00 *\teve (eve@host) has joined
Jan 07 09:09:10 *\tann has kicked eve from #garden (spam)
Jan 07 09:10:00 -NickServ-\tyou are known
Jan 08 00:01:00 <ann>\ta new day
**** ENDING LOGGING AT Tue Jan  8 00:02:00 2013
""",
        "2013-01-07 09:01",
        6,
    ),
    Sample(
        "XChat",
        "Libera-#garden.xchat.log",
        """\
**** BEGIN LOGGING AT Mon Jan  7 09:00:00 2013
Jan 07 09:00:00 -->\tYou are now talking on #garden
Jan 07 09:00:00 -->\tann (~ann@host) has joined #garden
Jan 07 09:01:00 <bob>\thello <all>
Jan 07 09:02:00 *\tann waves
Jan 07 09:03:00 ---\tann has changed the topic to: flowers
Jan 07 09:04:00 ---\tbob is now known as bobby
Jan 07 09:05:00 <bobby>\tstill me
Jan 07 09:06:00 ---\tann gives voice to bobby
Jan 07 09:07:00 -->\tcyd (cyd@host) has joined #garden
Jan 07 09:07:10 <--\tcyd (cyd@host) has left #garden (bye)
Jan 07 09:08:00 -->\tdan (dan@host) has joined #garden
Jan 07 09:08:10 <--\tdan has quit (Ping timeout)
Jan 08 00:01:00 <ann>\ta new day
""",
        "2013-01-07 09:01",
        2,
    ),
    Sample(
        "mIRC",
        "#garden.log",
        """\
\ufeffSession Start: Mon Jan 07 09:00:00 2013
Session Ident: #garden
[09:00] * Now talking in #garden
[09:00] * Topic is 'weeds'
[09:00] * Set by ann on Sun Jan 06 08:00:00
[09:00] * ann (~ann@host) has joined #garden
[09:01] <bob> hello <all>
[09:02] * ann waves
[09:03] * ann changes topic to 'flowers'
[09:04] * bob is now known as bobby
[09:05] <@bobby> still me
[09:06] * ann sets mode: +o bobby
[09:07] * cyd (cyd@host) has joined #garden
[09:07] * cyd (cyd@host) has left #garden (bye)
[09:08] * dan (dan@host) has joined #garden
[09:08] * dan (dan@host) Quit (Ping timeout)
[09:09] * eve (eve@host) has joined #garden
[09:09] * eve was kicked by ann (spam)
Session Time: Tue Jan 08 00:00:00 2013
[00:01] <ann> a new day
Session Close: Tue Jan 08 00:02:00 2013
""",
        "2013-01-07 09:01",
        6,
    ),
    Sample(
        "Supybot",
        "logs/#garden/#garden.2013-01-07.log",
        """\
2013-01-07T09:00:00  *** ann <~ann@host> has joined #garden
2013-01-07T09:01:00  <bob> hello <all>
2013-01-07T09:02:00  * ann waves
2013-01-07T09:03:00  *** ann changes topic to "flowers"
2013-01-07T09:04:00  *** bob is now known as bobby
2013-01-07T09:05:00  <bobby> still me
2013-01-07T09:06:00  *** ann sets mode: +o bobby
2013-01-07T09:07:00  *** cyd <cyd@host> has joined #garden
2013-01-07T09:07:10  *** cyd <cyd@host> has left #garden
2013-01-07T09:08:00  *** dan <dan@host> has joined #garden
2013-01-07T09:08:10  *** dan <dan@host> has quit IRC
2013-01-08T00:01:00  <ann> a new day
""",
        "2013-01-07 09:01",
        1,
    ),
    Sample(
        "eggdrop",
        "garden.log.07Jan2013",
        """\
[00:00] --- Mon Jan  7 2013
[09:00] ann (~ann@host) joined #garden.
[09:01] <bob> hello <all>
[09:02] Action: ann waves
[09:03] Topic changed on #garden by ann!~ann@host: flowers
[09:04] Nick change: bob -> bobby
[09:05] <bobby> still me
[09:06] #garden: mode change '+o bobby' by ann!~ann@host
[09:07] cyd (cyd@host) joined #garden.
[09:07] cyd (cyd@host) left #garden.
[09:08] dan (dan@host) joined #garden.
[09:08] dan (dan@host) left irc: Ping timeout
[09:09] eve (eve@host) joined #garden.
[09:09] eve kicked from #garden by ann: spam
[00:00] --- Tue Jan  8 2013
[00:01] <ann> a new day
""",
        "2013-01-07 09:01",
        1,
    ),
    Sample(
        "ubuntu by day",
        "2013/01/07/#garden.txt",
        """\
=== ann [~ann@host] has joined #garden
[09:01] <bob> hello <all>
[09:02]  * ann waves
=== ann changed the topic of #garden to: flowers
=== bob is now known as bobby
[09:05] <bobby> still me
=== mode/#garden [+o bobby]  by ann
=== cyd [cyd@host] has joined #garden
=== cyd [cyd@host] has left #garden []
=== dan [dan@host] has joined #garden
=== dan [dan@host] has quit [Ping timeout]
[23:59] <ann> a new day
""",
        "2013-01-07 09:01",
        1,
    ),
    Sample(
        "ISO 8601 with a zone",
        "garden/2013/log.txt",
        """\
2013-01-07T10:00:00+0100 *** Joins: ann (~ann@host)
2013-01-07T10:01:00+0100 <bob> hello <all>
2013-01-07T09:02:00Z * ann waves
2013-01-07T04:03:00-05:00 *** ann changes topic to 'flowers'
2013-01-07T10:04:00+01:00 *** bob is now known as bobby
2013-01-07T10:05:00+01:00 <bobby> still me
2013-01-08T01:01:00+01:00 <ann> a new day
""",
        "2013-01-07 09:01",
        0,
    ),
]


def key(nick: str) -> bytes:
    return Identity.derive(PHRASE, nick).public_key


def laid(folder: Path, path: str, text: str) -> Path:
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def imported(store: CableStore, *paths: Path, **said: object) -> ImportReport:
    return import_logs(store, find_logs(paths, **said), seed_phrase=PHRASE)  # type: ignore[arg-type] # of the test's choice


def times(store: CableStore, channel: str = "garden") -> list[str]:
    found = store.messages(channel, 1000, newest_first=False).messages
    return [datetime.fromtimestamp(m.timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M") for m in found]


@pytest.mark.parametrize("sample", SAMPLES, ids=[sample.client for sample in SAMPLES])
def test_a_sample_of_each_client(store: CableStore, tmp_path: Path, sample: Sample) -> None:
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
    assert store.topic_of("garden") == "flowers"
    assert {user.public_key for user in store.members("garden")} == {key("ann"), key("bob")}
    assert store.user(key("bob")).name == "bobby"
    assert sum(number for why, number in report.skips.reasons.items() if why != "empty line") == sample.passed_over
    again = imported(store, root, channel="garden")
    assert set(again.verdicts) == {"duplicate"}


@pytest.mark.parametrize("known", FORMATS, ids=[known.name for known in FORMATS])
def test_each_format_has_a_sample_here(known: LogFormat) -> None:
    words = " ".join(sample.client for sample in SAMPLES)
    names = known.name.replace(" and ", "|").split("|")
    assert known.name in ("raku", "ubuntu") or all(name in words for name in names), "the two have tests of their own"


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
def test_the_day_and_the_channel_are_in_the_path(store: CableStore, tmp_path: Path, path: str) -> None:
    laid(tmp_path / "irc", path, "[09:01] <ann> hello\n")
    imported(store, tmp_path / "irc")
    assert times(store) == ["2013-01-07 09:01"]


def test_what_lines_say_of_the_day_goes_before_the_path(store: CableStore, tmp_path: Path) -> None:
    laid(tmp_path, "fetched-2024-05-05/#garden.log", "2013-01-07 09:01:00\tann\thello\n")
    imported(store, tmp_path / "fetched-2024-05-05")
    assert times(store) == ["2013-01-07 09:01"]


def test_what_a_log_does_not_say_is_given(store: CableStore, tmp_path: Path) -> None:
    file = laid(tmp_path, "notes.txt", "[09:01] <ann> hello\n[23:59] <ann> late\n[00:01] <ann> later\n")
    with pytest.raises(LogFormatError, match="--date"):
        find_logs([file])
    imported(store, file, day=date(2013, 1, 7), channel="garden", zone=ZoneInfo("America/New_York"))
    assert times(store)[:2] == ["2013-01-07 14:01", "2013-01-08 04:59"]


def test_a_date_is_carried_over_midnight_and_into_the_next_year(store: CableStore, tmp_path: Path) -> None:
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


def test_lines_before_the_first_change_of_the_day_are_of_the_day_before(store: CableStore, tmp_path: Path) -> None:
    file = laid(tmp_path, "#garden.log", "23:59 < ann> one\n--- Day changed Tue Jan 08 2013\n00:00 < ann> two\n")
    imported(store, file)
    assert times(store) == ["2013-01-07 23:59", "2013-01-08 00:00"]


def test_an_hour_that_comes_twice_and_one_that_never_was(store: CableStore, tmp_path: Path) -> None:
    lines = ["01:30 < ann> a", "02:30 < ann> b", "02:59 < ann> c", "02:01 < ann> d", "03:00 < ann> e"]
    autumn = laid(tmp_path, "2013/10/27/#garden.txt", "\n".join(lines) + "\n")
    spring = laid(tmp_path, "2013/03/31/#garden.txt", "01:59 < ann> x\n02:30 < ann> y\n03:31 < ann> z\n")
    imported(store, autumn, spring, zone=ZoneInfo("Europe/Berlin"))
    assert times(store) == [
        *("2013-03-31 00:59", "2013-03-31 01:30", "2013-03-31 01:31"),
        *("2013-10-26 23:30", "2013-10-27 00:30", "2013-10-27 00:59", "2013-10-27 01:01", "2013-10-27 02:00"),
    ]


@pytest.mark.parametrize("path", ["channel/2013-01-07.log", "2013/01/07/channel.txt"])
def test_times_without_a_zone_are_in_the_one_that_is_given(store: CableStore, tmp_path: Path, path: str) -> None:
    file = laid(tmp_path, path, "[00:30] <ann> early\n[12:00] <ann> noon\n")
    imported(store, file, zone=ZoneInfo("Asia/Kolkata"))
    assert times(store, "channel") == ["2013-01-06 19:00", "2013-01-07 06:30"]


def test_files_of_a_channel_are_read_by_time_whatever_their_names(store: CableStore, tmp_path: Path) -> None:
    for number, day in enumerate((9, 7, 8)):
        laid(tmp_path, f"old/{number}/#garden.log", f"2013-01-{day:02}T09:00:00  <ann> {day}\n")
    imported(store, tmp_path / "old")
    messages = store.messages("garden", newest_first=False).messages
    assert [m.text for m in messages] == ["7", "8", "9"]
    assert [set(m.links) for m in messages[1:]] == [{messages[0].hash}, {messages[1].hash}]


def test_a_log_dated_line_by_line_may_go_back(store: CableStore, tmp_path: Path) -> None:
    """A clock that was wrong for one line does not date all that follow."""
    days = ["2013-01-07", "2038-01-19", "2013-01-07"]
    file = laid(tmp_path, "#garden.log", "".join(f"{day} 09:00:00\tann\t{n}\n" for n, day in enumerate(days)))
    [log] = find_logs([file])
    assert log.format.name == "WeeChat"
    report = imported(store, file)
    assert report.verdicts["accepted"] == 3  # a name and two texts; the third is refused as one of the future
    assert times(store) == ["2013-01-07 09:00"] * 2


def test_formats_that_the_first_lines_do_not_tell_apart(tmp_path: Path) -> None:
    talk = "".join(f"[09:{n % 60:02}] <ann> {n}\n" for n in range(300))
    raku = laid(tmp_path, "2013/01/07/#a.txt", talk + "[10:00] *** bob joined\n")
    ubuntu = laid(tmp_path, "2013/01/08/#b.txt", talk + "=== bob [b@host] has joined #b\n")
    irssi = laid(tmp_path, "2013/01/09/#c.txt", talk + "[10:00] -!- bob [b@host] has joined #c\n")
    assert [log.format.name for log in find_logs([raku, ubuntu, irssi])] == ["raku", UBUNTU_BY_DAY.name, "irssi"]


def test_what_is_not_understood_is_counted_and_shown(store: CableStore, tmp_path: Path) -> None:
    strange = [f"!!! {n} \x1b[2J" + "x" * 200 for n in range(5)]
    file = laid(tmp_path, "2013/01/07/#garden.txt", "\n".join(["09:00 < ann> hello"] * 10 + strange) + "\n")
    report = imported(store, file)
    assert report.skips.reasons == {"not understood": 5}
    assert len(report.skips.examples) == 3
    assert report.skips.examples[0].startswith("!!! 0 ")
    assert all(len(example) < 120 and "\x1b" not in example for example in report.skips.examples)


def test_a_file_that_is_no_log_is_told_so_in_words(tmp_path: Path) -> None:
    file = laid(tmp_path, "2013/01/07/#garden.txt", "Dear diary,\nnothing happened.\n")
    with pytest.raises(LogFormatError) as error:
        find_logs([file])
    assert 'but not for example "Dear diary,"' in str(error.value)
    assert all(known.name in str(error.value) for known in FORMATS)
    assert "?P<" not in str(error.value)
    assert "\\" not in str(error.value)


def test_channels_of_a_tree_stay_apart(store: CableStore, tmp_path: Path) -> None:
    for name in ("a", "b", "C"):
        for day in (7, 8):
            laid(tmp_path, f"2013/01/{day:02}/#{name}.txt", f"[09:00] <ann> {name} {day}\n")
    laid(tmp_path, "2013/01/09/#a.txt", "=== bob [b@host] has joined #a\n[09:00] <bob> a 9\n")
    logs: list[LogFile] = find_logs([tmp_path / "2013"])
    import_logs(store, logs, seed_phrase=PHRASE)
    assert [channel.name for channel in store.channels()] == ["a", "b", "c"]
    assert [m.text for m in store.messages("a", newest_first=False).messages] == ["a 7", "a 8", "a 9"]
    assert logs[1].start_ms - logs[0].start_ms == timedelta(days=1) // timedelta(milliseconds=1)
