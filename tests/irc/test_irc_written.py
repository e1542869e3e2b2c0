"""Round trips: logs written in each format from a random conversation are parsed to the same conversation."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path

import pytest
from irc_logs import imported

from cablestore import CableStore
from cablestore.errors import ArgumentError
from cablestore.irc.days import stamp_of_words
from cablestore.irc.survey import find_logs

COLOURS = ("\x02", "\x1d", "\x1f", "\x16", "\x0f", "\x0304", "\x033,12", "\x03", "\x0399,01")


@dataclass(frozen=True)
class Event:
    """Event of a conversation. `kind` is say, act, join, part, quit, nick or topic."""

    at: datetime
    kind: str
    nick: str
    text: str


Write = Callable[[Event, random.Random], str]


def conversation(rng: random.Random) -> list[Event]:
    at, found = datetime(2013, 1, 7, 9, tzinfo=UTC), []
    nicks = ["ann", "bob|away", "c[d]`", "Zoë" if rng.random() < 0.3 else "zoe", "x-1"]
    for number in range(40):
        at += timedelta(minutes=rng.randrange(1, 90))
        kind = rng.choice(("say",) * 6 + ("act", "join", "part", "quit", "topic", "nick"))
        text = rng.choice(
            (
                "hello",
                "<b> **bold** -->",
                "  two blanks before",
                "12:34 <ann> quoted",
                "has joined #garden",
                "日本 ünï",
                "a\tb",
            )
        )
        found.append(Event(at, kind, rng.choice(nicks), f"{text} {number}"))
    return found


def stamp(form: str) -> Callable[[Event], str]:
    return lambda act: act.at.strftime(form)


def client(form: str, **patterns: str) -> Write:
    """Return a writer: a pattern of the time, and one for each kind of action."""

    def write(act: Event, rng: random.Random) -> str:
        mode = rng.choice(("", "", "@", "+", "~", "&", "%"))
        new = f"{act.nick}{rng.randrange(9)}"
        values = {"nick": act.nick, "text": act.text, "mode": mode, "mask": "u@h.example", "new": new}
        return act.at.strftime(form) + patterns[act.kind].format(**values)

    return write


IRSSI = {
    "join": "-!- {nick} [{mask}] has joined #garden",
    "part": "-!- {nick} [{mask}] has left #garden [bye]",
    "quit": "-!- {nick} [{mask}] has quit [bye]",
    "nick": "-!- {nick} is now known as {new}",
    "topic": "-!- {nick} changed the topic of #garden to: {text}",
    "act": " * {nick} {text}",
}
STARS = {
    "join": "*** Joins: {nick} ({mask})",
    "part": "*** Parts: {nick} ({mask}) (bye)",
    "quit": "*** Quits: {nick} ({mask}) (bye)",
    "nick": "*** {nick} is now known as {new}",
    "topic": "*** {nick} changes topic to '{text}'",
    "act": "* {nick} {text}",
    "say": "<{nick}> {text}",
}


def weechat(join: str, part: str, event: str, act: str, form: str = "%Y-%m-%d %H:%M:%S\t") -> Write:
    return client(
        form,
        say="{mode}{nick}\t{text}",
        act=f"{act}\t{{nick}} {{text}}",
        join=f"{join}\t{{nick}} ({{mask}}) has joined #garden",
        part=f"{part}\t{{nick}} ({{mask}}) has left #garden (bye)",
        quit=f"{part}\t{{nick}} ({{mask}}) has quit (bye)",
        nick=f"{event}\t{{nick}} is now known as {{new}}",
        topic=f'{event}\t{{nick}} has changed topic for #garden from "x" to "{{text}}"',
    )


HEXCHAT = client(
    "%b %d %H:%M:%S ",
    say="<{nick}>\t{text}",
    act="*\t{nick} {text}",
    join="*\t{nick} ({mask}) has joined",
    part="*\t{nick} ({mask}) has left (bye)",
    quit="*\t{nick} has quit (bye)",
    nick="*\t{nick} is now known as {new}",
    topic="*\t{nick} has changed the topic to: {text}",
)
MIRC = {
    "say": "<{mode}{nick}> {text}",
    "act": "* {nick} {text}",
    "join": "* {nick} ({mask}) has joined #garden",
    "part": "* {nick} ({mask}) has left #garden (bye)",
    "quit": "* {nick} ({mask}) Quit (bye)",
    "nick": "* {nick} is now known as {new}",
    "topic": "* {nick} changes topic to '{text}'",
}
LOUNGE = client(
    "[%Y-%m-%dT%H:%M:%S.123Z] ",
    say="<{mode}{nick}> {text}",
    act="* {mode}{nick} {text}",
    join="*** {nick} ({mask}) joined",
    part="*** {nick} ({mask}) left (bye)",
    quit="*** {nick} ({mask}) quit (bye)",
    nick="*** {nick} changed nick to {new}",
    topic="*** {nick} changed topic to '{text}'",
)
KONVERSATION = {
    "say": "<{nick}>\t{text}",
    "act": "\t * {nick} {text}",
    "join": "Join\t{nick} ({mask}) has joined this channel.",
    "part": "Part\t{nick} ({mask}) has left this channel (bye).",
    "quit": "Quit\t{nick} ({mask}) has left this server (bye).",
    "nick": "Nick\t{nick} is now known as {new}.",
    "topic": 'Topic\t{nick} sets the channel topic to "{text}".',
}
QUASSEL = {
    "say": "<{mode}{nick}> {text}",
    "act": "-*- {nick} {text}",
    "join": "--> {nick} ({mask}) has joined #garden",
    "part": "<-- {nick} ({mask}) has left #garden (bye)",
    "quit": "<-- {nick} ({mask}) has quit (bye)",
    "nick": "<-> {nick} is now known as {new}",
    "topic": '* {nick} has changed topic for #garden to: "{text}"',
}
DATED = "%Y-%m-%d %H:%M:%S "
WRITERS: dict[str, tuple[Write, str]] = {
    "irssi": (client("%H:%M ", say="<{mode: >1}{nick}> {text}", **IRSSI), "--- Day changed %a %b %d %Y"),
    "irssi, aligned nicks": (client("%H:%M:%S ", say="<{mode}{nick:>12}> {text}", **IRSSI), "--- Day changed %a %b %d %Y"),
    "irssi, no blank": (client("%H:%M:%S", say="<{mode: >1}{nick}> {text}", **{k: " " + v for k, v in IRSSI.items()}), "--- Day changed %a %b %d %Y"),
    "irssi, AM and PM": (client("%I:%M %p ", say="<{mode: >1}{nick}> {text}", **IRSSI), "--- Day changed %a %b %d %Y"),
    "WeeChat": (weechat("-->", "<--", "--", " *"), ""),
    "WeeChat, other marks": (weechat("→", "←", "~~", "✱"), ""),
    "WeeChat, marks of letters": (weechat("JOIN", "GONE", "NET", "*"), ""),
    "WeeChat, 07.01.2013": (weechat("-->", "<--", "--", " *", "%d.%m.%Y %H:%M:%S\t"), ""),
    "ZNC": (client("[%H:%M:%S] ", **STARS), "one file a day"),
    "ZNC, no blank": (client("[%H:%M:%S]", **STARS), "one file a day"),
    "ISO": (client(DATED, **STARS), ""),
    "07.01.2013": (client("[%d.%m.%Y %H:%M:%S] ", **STARS), ""),
    "HexChat": (HEXCHAT, "first"),
    "mIRC": (client("[%H:%M] ", **MIRC), "Session Time: %a %b %d 00:00:00 %Y"),
    "mIRC, AM and PM": (client("[%I:%M:%S %p] ", **MIRC), "Session Time: %a %b %d 00:00:00 %Y"),
    "The Lounge": (LOUNGE, ""),
    "Konversation": (client("[%a %b %d %Y] [%H:%M:%S] ", **KONVERSATION), ""),
    "Konversation, long dates": (client("[%A, %d. %B %Y] [%I:%M:%S %p] ", **KONVERSATION), ""),
    "Quassel": (client("[%H:%M:%S] ", **QUASSEL), "{{Day changed to %A, %B %d, %Y}}".replace("{{", "{").replace("}}", "}")),
}  # fmt: skip


def written(folder: Path, actions: list[Event], name: str, rng: random.Random, *, colours: bool) -> None:
    write, day_line = WRITERS[name]
    contents: dict[str, list[str]] = {}
    day = None
    for act in actions:
        path = f"#garden/{act.at:%Y-%m-%d}.log" if "file a day" in day_line else "irc/#garden.log"
        lines = contents.setdefault(path, [])
        if day is None and day_line == "first":
            lines.append(f"**** BEGIN LOGGING AT {act.at:%a %b %d %H:%M:%S %Y}")
        elif day_line and "%" in day_line and act.at.date() != day:
            lines.append(act.at.strftime(day_line))
        day = act.at.date()
        line = write(act, rng)
        if colours:
            for word in {word for word in act.text.split() if len(word) > 2 and not word[0].isdigit()}:
                line = line.replace(word, f"{rng.choice(COLOURS)}{word}\x0f", 1)
        lines.append(line)
    for path, lines in contents.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("name", WRITERS)
def test_a_written_conversation_is_imported_unchanged(tmp_path: Path, name: str) -> None:
    for seed in range(3):
        rng = random.Random(f"{name} {seed}")
        actions = conversation(rng)
        folder = tmp_path / str(seed)
        written(folder, actions, name, rng, colours=seed > 0)
        with CableStore.in_memory() as store:
            report = imported(store, folder)
            assert report.skips.examples == []
            found = [
                (datetime.fromtimestamp(m.timestamp_ms // 60_000 * 60, UTC), m.text)
                for m in store.messages("garden", 1000, newest_first=False).messages
            ]
            assert found == [
                (act.at.replace(second=0), act.text if act.kind == "say" else f"/me {act.text}")
                for act in actions
                if act.kind in ("say", "act")
            ]
            counts = store.stats().posts
            kinds = [act.kind for act in actions]
            assert counts.get("join", 0) == kinds.count("join")
            assert counts.get("leave", 0) == kinds.count("part") + kinds.count("quit")
            assert counts.get("topic", 0) == kinds.count("topic")


def test_lines_with_impossible_times_are_skipped(store: CableStore, tmp_path: Path) -> None:
    file = tmp_path / "#garden" / "2013-01-07.log"
    file.parent.mkdir()
    bad = ("25:00:00", "12:60:00", "12:00:99", "13:00:00 PM", "0:00:00 AM")
    good = "".join(f"[09:{n:02}:00] <ann> {n}\n" for n in range(60))
    file.write_text(good + "".join(f"[{time}] <ann> bad\n" for time in bad))
    report = imported(store, file)
    assert report.skips.reasons == {"not understood": len(bad)}


def test_an_unreadable_date_line_ends_the_file_and_is_reported(store: CableStore, tmp_path: Path) -> None:
    file = tmp_path / "#garden.log"
    file.write_text(
        "--- Log opened Mon Jan 07 09:00:00 2013\n09:00 < ann> one\n--- Day changed Xyz Qwx 08 2013\n09:00 < ann> two\n"
    )
    report = imported(store, file)
    assert report.cut_short == [(file, 3, "--- Day changed Xyz Qwx 08 2013")]
    assert [m.text for m in store.messages("garden").messages] == ["one"]


@pytest.mark.parametrize(
    ("words", "month"),
    [
        ("Mo Mär 04 2013", 3),
        ("mar. nov. 05 2013", 11),
        ("Po úno 04 2013", 2),
        ("Út čec 02 2013", 7),
        ("ma marras 04 2013", 11),
        ("Пн мар 04 2013", 3),
        ("月  3月 04 2013", 3),
        ("월  3월 04 2013", 3),
        ("Pzt Ağu 05 2013", 8),
        ("śro lip 03 2013", 7),
        ("Δευ \u039c\u03b1\u03c1 04 2013", 3),
        ("ב' מרץ 04 2013", 3),
        ("lundi 4 mars 2013", 3),
        ("Monday, 4 March 2013", 3),
        ("04.03.2013", 3),
        ("2013-03-04", 3),
    ],
)
def test_dates_in_many_languages_are_read(words: str, month: int) -> None:
    found = stamp_of_words(words)
    assert found is not None
    assert found.month == month


def test_dates_of_every_locale_of_the_c_library_are_read() -> None:
    """As `%a %b %d %Y` writes them. A few are read as another day."""
    lines = files("cablestore.irc").joinpath("days.txt").read_text("utf-8").splitlines()
    rng = random.Random("locales")
    right = wrong = tried = 0
    for line in lines:
        days, _, months = (part.split("\t") for part in line.partition("|"))
        day = datetime(2013, 1, 1, tzinfo=UTC) + timedelta(days=rng.randrange(365))
        if len(days) == 7:
            found = stamp_of_words(f"{days[day.isoweekday() % 7]} {months[day.month - 1]} {day:%d} 2013")
            tried += 1
            right += found is not None and found.date() == day.date()
            wrong += found is not None and found.date() != day.date()
    assert right > 0.95 * tried
    assert wrong < 0.03 * tried


def test_too_large_a_share_of_unknown_lines_is_rejected(
    tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    file = tmp_path / "#garden" / "2013-01-07.log"
    file.parent.mkdir()
    good = [f"[09:{n % 60:02}:00] <ann> {n}" for n in range(100)]
    for bad, status in ((4, 0), (12, 2)):
        file.write_text("\n".join(good + [f"??? {n}" for n in range(bad)]) + "\n")
        found, out, err = run("import-irc", file, "-s", tmp_path / f"store-{bad}")
        assert found == status
        assert (out + err).count("??? ") == 3
    assert run("import-irc", file, "--lenient", "-s", tmp_path / "lenient")[0] == 0
    file.write_text("\n".join(good * 3 + [f"??? {n}" for n in range(50)]) + "\n")
    assert run("import-irc", file, "-s", tmp_path / "late")[0] == 1


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1251", "Привет, как дела? Сегодня хорошая погода, пойдём гулять в парк"),
        ("koi8_r", "Привет, как дела? Сегодня хорошая погода, пойдём гулять в парк"),
        ("cp932", "こんにちは、元気ですか"),
        ("gb18030", "你好今天天气很好我们去公园散步吧"),
        ("cp949", "안녕하세요 오늘 날씨가 좋네요"),
        ("utf-16", "Привет ünï"),
        ("utf-16-le", "plain"),
        ("utf-8-sig", "ünï"),
        ("cp1252", "Grüße, naïve Façade"),
    ],
)
def test_encodings_are_detected_or_given_and_reported(
    store: CableStore, tmp_path: Path, encoding: str, text: str
) -> None:
    file = tmp_path / "#garden" / "2013-01-07.log"
    file.parent.mkdir()
    file.write_bytes("".join(f"[09:{n:02}:00] <ann> {text} {n}\n" for n in range(9)).encode(encoding))
    report = imported(store, file)
    assert [m.text for m in store.messages("garden", newest_first=False).messages] == [f"{text} {n}" for n in range(9)]
    assert bool(report.encodings) == (encoding != "utf-8-sig")


@pytest.mark.parametrize("text", ["привет как дела", "こんにちは元気ですか", "на здоровье 👍👍", "naïve façade à côté"])
def test_messages_split_within_a_character_keep_the_other_characters(
    store: CableStore, tmp_path: Path, text: str
) -> None:
    data = text.encode()
    pieces = [piece for cut in range(6, len(data) - 5) for piece in (data[:cut], data[cut:])]
    file = tmp_path / "#garden" / "2013-01-07.log"
    file.parent.mkdir()
    file.write_bytes(b"".join(b"[09:%02d:00] <ann> %b\n" % (number % 60, piece) for number, piece in enumerate(pieces)))
    imported(store, file)
    page = store.messages("garden", 500).messages
    texts = {message.text.strip("\N{REPLACEMENT CHARACTER}").rstrip() for message in page}
    assert texts == {piece.decode(errors="ignore").rstrip() for piece in pieces}


def test_the_chosen_encoding_is_used(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    file = tmp_path / "#garden" / "2013-01-07.log"
    file.parent.mkdir()
    file.write_bytes("[09:00:00] <ann> ŁÓDŹ\n".encode("iso8859-2"))
    status, out, _ = run("import-irc", file, "--encoding", "iso8859-2", "-s", tmp_path / "store")
    assert status == 0
    assert "lines read as iso8859-2" in out
    assert "ŁÓDŹ" in run("log", "garden", "-s", tmp_path / "store")[1]
    assert run("import-irc", file, "--encoding", "no-such", "-s", tmp_path / "store")[0] == 2


def test_the_function_skips_private_conversations(tmp_path: Path) -> None:
    file = tmp_path / "irc.libera.bob.weechatlog"
    file.write_text("2013-01-07 12:00:00\tbob\thello\n")
    with pytest.raises(ArgumentError, match="private conversation"):
        find_logs([file])
