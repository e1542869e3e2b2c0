"""Import of chat logs: people, times, and absence of duplicates."""

from __future__ import annotations

import tarfile
from datetime import UTC, datetime
from pathlib import Path

import blake3
import pytest

from cablestore import LEGACY, CableStore, Identity, Verdict, limits
from cablestore.cli.demo import sample
from cablestore.errors import ArgumentError
from cablestore.irc.importer import ImportReport, import_logs, posts_of
from cablestore.irc.people import NickKeys
from cablestore.irc.survey import LogFile, find_logs
from cablestore.protocol.body import JOIN, LEAVE, TEXT, TOPIC

PHRASE = "a phrase"
MIDNIGHT_MS = int(datetime(2022, 1, 31, tzinfo=UTC).timestamp() * 1000)


def import_lines(store: CableStore, tmp_path: Path, *lines: str, name: str = "2022-01-31") -> ImportReport:
    folder = tmp_path / "logs" / "garden" / "2022"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join(lines) + "\n")
    return import_logs(store, find_logs([folder]), seed_phrase=PHRASE)


def key(nick: str) -> bytes:
    return Identity.derive(PHRASE, nick).public_key


def texts_of(store: CableStore, channel: str = "garden") -> list[tuple[str, str]]:
    return [(m.name, m.text) for m in store.messages(channel, 1000, newest_first=False).messages]


def test_every_kind_of_line_is_imported_or_counted(store: CableStore, tmp_path: Path) -> None:
    report = import_lines(
        store,
        tmp_path,
        "[00:00] *** ann joined",
        "[00:01] <ann> hello <everyone>",
        "[00:01] * ann waves",
        "[00:02] <bob> hi",
        "[00:03] *** ann changes topic to: flowers | and more",
        "[00:04] *** bob is now known as bobby",
        "[00:05] <bobby> still me",
        "[00:06] *** moss joined",
        "[00:06] *** moss was kicked by ann (weeds))",
        "[00:07] *** ChanServ sets mode: +v ann",
        "[00:08] <ann>",
        "[00:09] no such line",
        "[23:59] *** ann left",
    )
    assert texts_of(store) == [
        ("ann", "hello <everyone>"),
        ("ann", "/me waves"),
        ("bobby", "hi"),
        ("bobby", "still me"),
    ]
    assert {m.author for m in store.messages("garden").messages} == {key("ann"), key("bob")}
    assert store.topic("garden") == "flowers | and more"
    assert {user.public_key for user in store.members("garden")} == {key("bob")}
    assert report.skips.reasons == {"mode change": 1, "empty message": 1, "not understood": 1}
    assert report.lines == 13
    assert report.posts == {"join": 2, "text": 4, "topic": 1, "leave": 2, "info": 4}
    assert report.verdicts == {"accepted": 13}


def test_posts_have_the_times_and_the_order_of_the_lines(store: CableStore, tmp_path: Path) -> None:
    import_lines(store, tmp_path, *(f"[07:{minute:02}] <ann> {minute} {i}" for minute in (0, 1, 59) for i in range(3)))
    messages = store.messages("garden", newest_first=False).messages
    assert [m.text for m in messages] == [f"{minute} {i}" for minute in (0, 1, 59) for i in range(3)]
    minutes = [(m.timestamp_ms - MIDNIGHT_MS) // 60_000 for m in messages]
    assert minutes == [420] * 3 + [421] * 3 + [479] * 3


def test_a_small_correction_of_the_clock_does_not_start_a_new_day(store: CableStore, tmp_path: Path) -> None:
    import_lines(store, tmp_path, "[10:30] <ann> a", "[10:10] <ann> b", "[10:40] <ann> c")
    messages = store.messages("garden", newest_first=False).messages
    assert [(m.text, (m.timestamp_ms - MIDNIGHT_MS) // 60_000) for m in messages] == [
        ("a", 630),
        ("b", 630),
        ("c", 640),
    ]


def test_a_twelve_hour_clock_is_converted(store: CableStore, tmp_path: Path) -> None:
    file = tmp_path / "2004-11-15_03.raw.txt"
    file.write_text(
        "=== ann [~a@host]  has joined #Garden\n"
        "[11:58] <ann> before noon\n"
        "[12:59] <ann> after noon\n"
        "[01:02] <ann> later\n"
        "=== bob [n=b@host] has joined #garden\n"
        "=== bob dances\n"
        "=== mode/#garden [+o ann]  by ChanServ\n"
        "=== Topic (#garden): set by ann at Mon Dec  4 07:27:08 2006\n"
        "=== ..[topic/#garden:ann] : Garden club\n"
        "=== irc.example.net -> other.example.net\n"
        "[01:03] -spam:#garden- buy now\n"
        "=== ann [~a@host]  has left #garden [\"Bye\"]\n"
    )  # fmt: skip
    report = import_logs(store, find_logs([file]), seed_phrase=PHRASE)
    messages = store.messages("garden", newest_first=False).messages
    day = int(datetime(2004, 11, 15, tzinfo=UTC).timestamp() * 1000)
    assert [((m.timestamp_ms - day) // 60_000, m.text) for m in messages] == [
        (11 * 60 + 58, "before noon"),
        (12 * 60 + 59, "after noon"),
        (13 * 60 + 2, "later"),
        (13 * 60 + 2, "/me dances"),
    ]
    assert store.topic("garden") == "Garden club"
    assert {user.public_key for user in store.members("garden")} == {key("bob")}
    assert report.skips.reasons == {
        "mode change": 1,
        "topic without its author": 1,
        "not understood": 1,
        "notice": 1,
    }


def test_a_person_keeps_the_key_after_a_nick_change(store: CableStore, tmp_path: Path) -> None:
    import_lines(
        store,
        tmp_path,
        "[00:00] *** ann joined",
        "[00:01] *** ann is now known as ann|away",
        "[00:02] *** ann|away is now known as annie",
        "[00:03] <annie> same key",
        "[00:04] *** annie left",
        "[00:05] *** annie joined",
        "[00:06] <annie> same key again",
    )
    assert [m.author for m in store.messages("garden", newest_first=False).messages] == [key("ann")] * 2


def test_sessions_continue_over_midnight(store: CableStore, tmp_path: Path) -> None:
    folder = tmp_path / "logs" / "garden" / "2022"
    folder.mkdir(parents=True)
    (folder / "2022-01-30").write_text(
        "[23:00] *** ann joined\n[23:01] *** ann is now known as anna\n[23:02] <anna> one\n"
    )
    import_lines(store, tmp_path, "[00:00] <anna> two")
    messages = store.messages("garden", newest_first=False).messages
    assert [m.author for m in messages] == [key("ann")] * 2
    assert messages[1].links == (messages[0].hash,)


def test_posts_of_a_channel_form_one_chain(store: CableStore, tmp_path: Path) -> None:
    import_lines(store, tmp_path, *(f"[00:{i:02}] <nick{i % 5}> {i}" for i in range(50)))
    assert len(store.heads("garden")) == 1
    assert not list(store.missing("garden"))


def test_a_second_run_adds_nothing(store: CableStore) -> None:
    first = import_logs(store, find_logs([sample()]), seed_phrase=PHRASE)
    before = store.dump_digest()
    second = import_logs(store, find_logs([sample()]), seed_phrase=PHRASE, batch_posts=7)
    assert second.posts == first.posts
    assert second.verdicts == {Verdict.DUPLICATE.value: first.posts.total()}
    assert store.dump_digest() == before


def test_the_store_depends_only_on_the_log_and_the_phrase(tmp_path: Path) -> None:
    digests = []
    for phrase in ("one", "one", "two"):
        with CableStore.in_memory() as store:
            import_logs(store, find_logs([sample()]), seed_phrase=phrase)
            digests.append(store.dump_digest())
    assert digests[0] == digests[1] != digests[2]


def test_a_second_run_does_not_restore_deleted_posts(store: CableStore, tmp_path: Path) -> None:
    lines = ["[00:00] <ann> regret", "[00:01] <ann> keep"]
    import_lines(store, tmp_path, *lines)
    victim = store.messages("garden", newest_first=False).messages[0]
    from cablestore import Delete, encode_post

    deletion = encode_post(
        Delete((victim.hash,)),
        links=(),
        timestamp_ms=MIDNIGHT_MS + 10**6,
        identity=Identity.derive(PHRASE, "ann"),
        dialect=store.dialect,
    )
    store.ingest([deletion.raw])
    report = import_lines(store, tmp_path, *lines)
    assert report.verdicts["deleted"] == 1
    assert [text for _, text in texts_of(store)] == ["keep"]


def test_long_lines_are_split_at_the_limit_without_loss(store: CableStore, tmp_path: Path) -> None:
    text, nick, topic = "日本" * 2000, "n" * 40, "t" * 600
    report = import_lines(store, tmp_path, f"[00:00] <{nick}> {text}", f"[00:01] *** {nick} changes topic to: {topic}")
    pieces = [text for _, text in texts_of(store)]
    assert "".join(pieces) == text
    assert all(len(piece.encode()) <= limits.MAX_TEXT_SIZE_BYTES for piece in pieces)
    assert store.topic("garden") == "t" * 512
    assert store.user(key(nick)).name == "n" * 32
    assert report.skips.cut == 3


def test_bytes_that_are_not_utf8_are_read_as_cp1252(store: CableStore, tmp_path: Path) -> None:
    file = tmp_path / "garden" / "2022-01-31.log"
    file.parent.mkdir()
    file.write_bytes(b"[00:00] <ann> caf\xe9 \x93quoted\x94\r\n[00:01] <ann> \xe2\x82\xac\n")
    import_logs(store, find_logs([file]), seed_phrase=PHRASE)
    assert [text for _, text in texts_of(store)] == ["café “quoted”", "€"]


def test_archives_and_folders_have_equal_posts_and_a_channel_can_be_chosen(tmp_path: Path) -> None:
    archive = tmp_path / "logs.tar.xz"
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(sample(), arcname="anything")
    with CableStore.in_memory() as a, CableStore.in_memory() as b:
        (tmp_path / "scratch").mkdir()
        import_logs(a, find_logs([archive]), seed_phrase=PHRASE)
        import_logs(b, find_logs([sample()]), seed_phrase=PHRASE)
        assert a.dump_digest() == b.dump_digest()
        assert [channel.name for channel in a.channels()] == ["harbour", "kitchen", "workshop"]
    with CableStore.in_memory() as store:
        logs = find_logs([sample() / "kitchen"], channel="cellar")
        import_logs(store, logs, seed_phrase=PHRASE)
        assert [channel.name for channel in store.channels()] == ["cellar"]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("2022-01-31.log", "Dear diary,\nnothing happened.\n", "is not a chat log of a known format"),
        ("nodate.log", "[00:00] <ann> x\n", "no date found"),
        ("2022-02-31.log", "[00:00] <ann> x\n", "invalid date in the name of"),
    ],
)
def test_files_that_are_not_logs_are_rejected(tmp_path: Path, name: str, text: str, reason: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ArgumentError, match=reason):
        find_logs([tmp_path / name])


def test_a_missing_path_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="not found"):
        find_logs([tmp_path / "none"])


def test_an_empty_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "2022-01-31.log").touch()
    with pytest.raises(ArgumentError, match="is empty"):
        find_logs([tmp_path])


# --- real logs -------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("step", "least_lines"), [(4, 15_000), pytest.param(1, 104_861, marks=pytest.mark.soak)], ids=["a quarter", "whole"]
)
def test_a_year_of_real_logs_is_imported(data: Path, tmp_path: Path, step: int, least_lines: int) -> None:
    """The Ubuntu excerpts: 100,000 lines, joins and parts, twelve-hour clocks."""
    archive = data / "irc" / "ubuntu-excerpts.tar.xz"
    if not archive.exists():
        pytest.skip("no ubuntu-excerpts.tar.xz")
    with CableStore.open(tmp_path / "store") as store:
        logs = find_logs([archive])[::step]
        assert {log.channel for log in logs} == {"ubuntu"}
        report = import_logs(store, logs, seed_phrase=PHRASE)
        assert least_lines <= report.lines <= 104_861
        assert report.skips.reasons["not understood"] < 300
        assert store.stats().posts[TYPE_OF[TEXT]] > 0.7 * report.lines
        assert {"text", "info", TYPE_OF[JOIN], TYPE_OF[LEAVE]} <= set(store.stats().posts)
        assert len(store.heads("ubuntu")) == 1
        assert store.check().is_clean
        before = store.dump_digest()
        store.rebuild()
        assert store.dump_digest() == before
        again = import_logs(store, logs, seed_phrase=PHRASE)
        assert again.verdicts["accepted"] == 0


MADE = {
    "sample": "a3e58f579cd1ebc5d52b9a3e3b0782415be44455dce39531964eabc60379aaf8",
    "a quarter of ubuntu": "369ec10691a3cc935ff48531dedce38da648dda96d06e28ea46ca7cd8eddaf7d",
    "ubuntu": "fc34138456a241f4cabf7fcf1fdd2b11cccb687683d0dbd7a5725d4344b4fd07",
    "three channels of raku": "f89ea835dc6aa30c7eeb26ba4f84ba4f99d64afa64359431f8b530a4b8637098",
    "raku": "103b8fa95a4fb249e293c1f6a6bdba263e739e83f2ae801aff4c9efd47461350",
}
"""BLAKE3 of the hashes of all posts of these logs, in order, by version 0.13.2. Later versions return the same."""


def digest_of(logs: list[LogFile]) -> str:
    made = blake3.blake3()
    for post in posts_of(logs, NickKeys(PHRASE), LEGACY, ImportReport()):
        made.update(post.hash)
    return made.hexdigest()


def unpacked(data: Path, name: str, folder: Path, channels: tuple[str, ...]) -> list[LogFile]:
    if not (data / "irc" / name).exists():
        pytest.skip(f"no {name}")
    with tarfile.open(data / "irc" / name) as tar:
        tar.extractall(folder, [m for m in tar if m.isfile() and m.name.split("/")[-3] in channels], filter="data")
    return find_logs([folder])


def test_the_posts_of_the_sample_are_unchanged() -> None:
    assert digest_of(find_logs([sample()])) == MADE["sample"]


@pytest.mark.thorough
def test_the_posts_of_real_logs_are_unchanged(data: Path, tmp_path: Path) -> None:
    assert digest_of(find_logs([data / "irc" / "ubuntu-excerpts.tar.xz"])[::4]) == MADE["a quarter of ubuntu"]
    few = unpacked(data, "raku.tar.xz", tmp_path, ("cro", "red", "perl6-toolchain"))
    assert digest_of(few) == MADE["three channels of raku"]


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "archive"), [("ubuntu", "ubuntu-excerpts.tar.xz"), ("raku", "raku.tar.xz")])
def test_the_posts_of_all_real_logs_are_unchanged(data: Path, name: str, archive: str) -> None:
    if not (data / "irc" / archive).exists():
        pytest.skip(f"no {archive}")
    assert digest_of(find_logs([data / "irc" / archive])) == MADE[name]


TYPE_OF = {TEXT: "text", JOIN: "join", LEAVE: "leave", TOPIC: "topic"}


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_all_raku_logs_are_imported(data: Path, tmp_path: Path) -> None:
    """800,000 lines in 24 channels, complete."""
    with CableStore.open(tmp_path / "store") as store:
        report = import_logs(store, find_logs([data / "irc" / "raku.tar.xz"]), seed_phrase=PHRASE)
        assert report.lines == 807_862
        assert report.skips.reasons["not understood"] < 20
        assert store.check(signatures=True).is_clean
        before = store.dump_digest()
        store.rebuild()
        assert store.dump_digest() == before
