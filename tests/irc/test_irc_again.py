"""Overlapping logs: rotated, found later, or written by two programs. Lines are neither duplicated nor lost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from irc_logs import PHRASE, laid

from cablestore import CableStore, Delete, Identity, encode_post
from cablestore.irc.importer import import_logs, names_in
from cablestore.irc.survey import Options, survey

BEGIN = datetime(2013, 1, 7, 9, tzinfo=UTC)


@dataclass(frozen=True)
class Line:
    at: datetime
    nick: str
    text: str


def conversation(rng: random.Random, number: int, *, texts: int) -> list[Line]:
    """Return lines with few nicks and texts, so that equal lines are near each other."""
    at, found = BEGIN, []
    for _ in range(number):
        at += timedelta(seconds=rng.choice((0, 0, 1, 2, 5, 30, 90)))
        found.append(Line(at, rng.choice(("ann", "bob", "cyd")), f"text {rng.randrange(texts)}"))
    return found


def znc(lines: list[Line]) -> str:
    return "".join(f"[{line.at:%H:%M:%S}] <{line.nick}> {line.text}\n" for line in lines)


def irssi(lines: list[Line]) -> str:
    head = f"--- Log opened {lines[0].at:%a %b %d %H:%M:%S %Y}\n"
    return head + "".join(f"{line.at:%H:%M} < {line.nick}> {line.text}\n" for line in lines)


def import_paths(store: CableStore, *paths: Path) -> Counter[str]:
    found = survey(paths, Options(), names_in(store))
    return import_logs(store, found.logs, seed_phrase=PHRASE).verdicts


def stored(store: CableStore) -> list[Line]:
    page = store.messages("garden", 1000, newest_first=False).messages
    return [Line(datetime.fromtimestamp(m.timestamp_ms // 1000, UTC), m.name, m.text) for m in page]


def part(folder: Path, number: int, text: str) -> Path:
    return laid(folder, f"{number}/#garden/2013-01-07.log", text)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("write", [znc, irssi])
def test_parts_of_a_log_in_any_order_result_in_the_whole_log_once(
    tmp_path: Path, write: Callable[[list[Line]], str], seed: int
) -> None:
    """Parts overlap anywhere, and are imported one by one or together."""
    rng = random.Random(f"parts {seed}")
    whole = conversation(rng, 60, texts=4)
    cuts = [0, *sorted(rng.sample(range(5, 55), 3)), 60]
    parts = [whole[max(0, a - rng.randrange(6)) : b] for a, b in pairwise(cuts)]

    # A part begins with a new second or minute, because equal lines of one second cannot be assigned to parts.
    def unit(line: Line) -> datetime:
        return line.at.replace(second=0 if write is irssi else line.at.second)

    parts = [[line for line in whole if unit(p[0]) <= unit(line) <= unit(p[-1])] for p in parts]
    files = [part(tmp_path, number, write(lines)) for number, lines in enumerate(parts)]
    rng.shuffle(files)
    with CableStore.in_memory() as store:
        for file in files:
            import_paths(store, file)
        expected = Counter((unit(line), line.nick, line.text) for line in whole)
        assert Counter((unit(line), line.nick, line.text) for line in stored(store)) == expected
        assert import_paths(store, *files)["accepted"] == 0
        assert import_paths(store, part(tmp_path, 9, write(whole)))["accepted"] == 0
        assert store.check().is_clean


def test_an_import_interrupted_between_files_has_the_same_result(tmp_path: Path) -> None:
    """The second day does not show that ann and bob are present: only the first day does."""
    talk = "".join(f"[09:0{minute}] <carl> {minute}\n" for minute in range(9))
    joined = "=== ann [n=ann@example] has joined #garden\n=== bob [n=bob@example] has joined #garden\n"
    days = [
        laid(tmp_path, "#garden/2013-01-07.log", talk + joined + talk),
        laid(tmp_path, "#garden/2013-01-08.log", f"{talk}=== ann dances\n=== bob is now known as bobby\n{talk}"),
    ]
    with CableStore.in_memory() as whole, CableStore.in_memory() as resumed:
        import_paths(whole, *days)
        import_paths(resumed, days[0])
        import_paths(resumed, *days)
        assert "/me dances" in [line.text for line in stored(resumed)]
        assert resumed.dump_digest() == whole.dump_digest()


@pytest.mark.parametrize("skew_s", [0, 1, 3, -2])
@pytest.mark.parametrize("seed", range(3))
def test_logs_of_one_channel_by_two_programs_are_merged(tmp_path: Path, seed: int, skew_s: int) -> None:
    """The bouncer's clock differs, the client writes no seconds, and each missed some lines."""
    rng = random.Random(f"two programs {seed} {skew_s}")
    whole = conversation(rng, 60, texts=1000)
    seen_by = [[line for line in whole if rng.random() < 0.9] for _ in range(3)]
    late = [Line(line.at + timedelta(seconds=skew_s), line.nick, line.text) for line in seen_by[1]]
    files = [
        laid(tmp_path, "znc/#garden/2013-01-07.log", znc(seen_by[0])),
        laid(tmp_path, "bouncer/#garden/2013-01-07.log", znc(late)),
        laid(tmp_path, "irssi/#garden.log", irssi(seen_by[2])),
    ]
    rng.shuffle(files)
    texts = Counter(line.text for line in whole if any(line in seen for seen in seen_by))
    with CableStore.in_memory() as store:
        for file in files[:2]:
            import_paths(store, file)
        import_paths(store, *files)
        assert Counter(line.text for line in stored(store)) == texts
        assert import_paths(store, *files)["accepted"] == 0
        assert len(store.heads("garden")) <= 3


def test_equal_lines_are_counted(tmp_path: Path) -> None:
    two = part(tmp_path, 1, "[09:00:00] <ann> yes\n" * 2)
    three = part(tmp_path, 2, "[09:00:00] <ann> yes\n" * 3 + "[09:00:01] <ann> yes\n")
    with CableStore.in_memory() as store:
        import_paths(store, two)
        assert import_paths(store, two)["accepted"] == 0
        assert import_paths(store, three)["accepted"] == 2
        assert import_paths(store, three, two)["accepted"] == 0


def test_an_older_log_precedes_stored_posts_and_a_newer_one_links_to_them(tmp_path: Path) -> None:
    first, second, third = (
        laid(tmp_path, f"#garden/2013-0{month}-01.log", f"[09:00:00] <ann> month {month}\n") for month in (1, 2, 3)
    )
    with CableStore.in_memory() as store:
        for file in (second, first, third):
            import_paths(store, file)
        messages = store.messages("garden", newest_first=False).messages
        assert [m.text for m in messages] == ["month 1", "month 2", "month 3"]
        assert set(messages[2].links) == {messages[0].hash, messages[1].hash}
        assert len(store.heads("garden")) == 1


def test_a_nick_keeps_its_key_after_a_change_in_an_earlier_import(tmp_path: Path) -> None:
    """The log with the change of the nick was removed by rotation."""
    first = laid(
        tmp_path, "#garden/2013-01-07.log", "[09:00:00] *** guest is now known as ann\n[09:00:01] <ann> monday\n"
    )
    second = laid(tmp_path, "#garden/2013-01-08.log", "[09:00:00] <ann> tuesday\n")
    with CableStore.in_memory() as store:
        import_paths(store, first)
        import_paths(store, second)
        assert import_paths(store, second)["accepted"] == 0
        assert len({m.author for m in store.messages("garden").messages}) == 1


def test_another_part_does_not_restore_a_deleted_message(tmp_path: Path) -> None:
    lines = [Line(BEGIN + timedelta(minutes=n), "ann", f"text {n}") for n in range(4)]
    with CableStore.in_memory() as store:
        import_paths(store, part(tmp_path, 1, znc(lines[:3])))
        target = store.messages("garden", newest_first=False).messages[1]
        deletion = encode_post(
            Delete((target.hash,)),
            links=(),
            timestamp_ms=target.timestamp_ms + 10**6,
            identity=Identity.derive(PHRASE, "ann"),
            dialect=store.dialect,
        )
        store.ingest([deletion.raw])
        verdicts = import_paths(store, part(tmp_path, 2, znc(lines[1:])))
        assert verdicts["deleted"] == 1
        assert [line.text for line in stored(store)] == ["text 0", "text 2", "text 3"]


NICKS = ("ann", "ann_", "bob", "bob|away", "cyd", "dan")


def any_line(rng: random.Random, present: set[str], mark: str) -> str:
    """Return a line that is possible with these nicks in use, and record its changes."""
    nick = rng.choice(sorted(present))
    free = sorted(set(NICKS) - present)
    kind = rng.choice(("text", "text", "action", "rename", "join", "leave"))
    newcomer = rng.choice(free) if free else nick
    if kind == "text" or (kind in ("rename", "join") and not free) or (kind == "leave" and len(present) == 1):
        return f"<{nick}> text {rng.randrange(5)}"
    if kind == "action":
        return f"{'*' if mark == '***' else ' *'} {nick} waves"
    if kind == "rename":
        present.symmetric_difference_update((nick, newcomer))
        return f"{mark} {nick} is now known as {newcomer}"
    who = newcomer if kind == "join" else nick
    present.symmetric_difference_update((who,))
    address = f"{rng.choice(('~', 'n='))}{who.strip('_')}@host{rng.randrange(3)}"
    if mark == "***":
        return f"*** Joins: {who} ({address})" if kind == "join" else f"*** Parts: {who} ({address}) ()"
    return (
        f"-!- {who} [{address}] has joined #garden" if kind == "join" else f"-!- {who} [{address}] has left #garden []"
    )


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize(("mark", "clock"), [("***", "[%H:%M:%S]"), ("-!-", "%H:%M")], ids=["znc", "irssi"])
def test_importing_any_log_again_adds_no_posts(tmp_path: Path, mark: str, clock: str, seed: int) -> None:
    """People who begin with a change of nick, return, or take the nick of another person."""
    rng = random.Random(f"any log {seed}")
    at, lines, present = BEGIN, [f"{BEGIN:{clock}} <ann> first"], {"ann", *rng.sample(NICKS, 3)}
    for _ in range(80):
        at += timedelta(seconds=rng.choice((0, 0, 1, 20, 300)))
        lines.append(f"{at:{clock}} {any_line(rng, present, mark)}")
    text = "".join(f"{line}\n" for line in lines)
    file = laid(tmp_path, "#garden/2013-01-07.log", text)
    with CableStore.in_memory() as store:
        assert import_paths(store, file)["accepted"] > 50
        assert import_paths(store, file)["accepted"] == 0
