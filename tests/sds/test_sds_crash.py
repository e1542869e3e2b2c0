"""A member that is killed at any time resumes exactly: log, buffers and outbox change in one write."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from folders import SUPPORT
from sds_network import Killed, Mortal
from sds_people import CHANNEL, SMALL, START_MS, Member, content, delivered, opened
from waiting import wait_until

from cablestore.errors import SdsError, StorageError, StoreLockedError
from cablestore.index.memory import MemoryDB
from cablestore.sds import acknowledgements
from cablestore.sds.bloom import ForeignFilter, positions
from cablestore.sds.delivery import ReceiveResult
from cablestore.sds.dialects import SPEC
from cablestore.sds.effects import Deliver, Send
from cablestore.sds.log import CausalLog

CHILD = SUPPORT / "sds_child.py"


def rows_in(database: MemoryDB) -> dict[bytes, bytes]:
    with database.snapshot() as state:
        return dict(state.scan(b"", b"\xff"))


@pytest.mark.parametrize("instant", ["before", "after"])
def test_an_event_is_written_completely_or_not_at_all(instant: str) -> None:
    database = MemoryDB()
    ann = Member("ann", log=CausalLog.in_memory(database))
    ann.receives(content("c", "b", at=2), content("b", "a", at=1))
    ann.effects()
    before = rows_in(database)
    mortal = Mortal(database)
    dying = Member("ann", log=CausalLog.in_memory(mortal))
    mortal.dies_before_write, mortal.dies_after_write = instant == "before", instant == "after"
    with pytest.raises(Killed):
        dying.receives(content("a"))
    again = ann.reopened()
    if instant == "before":
        assert rows_in(database) == before
        assert not again.effects()
        assert again.receives(content("a")) == [ReceiveResult.DELIVERED]
    assert delivered(again.effects()) == ["a", "b", "c"]
    assert again.receives(content("a")) == [ReceiveResult.DUPLICATE]


def test_the_outbox_continues_after_the_last_confirmed_effect() -> None:
    ann = Member("ann")
    for i in range(5):
        ann.channel.send(str(i).encode(), START_MS)
    effects = ann.channel.outbox()
    assert [sequence for sequence, _ in effects] == [1, 2, 3, 4, 5]
    ann.channel.confirm(3)
    again = ann.reopened()
    left = again.channel.outbox()
    assert [sequence for sequence, _ in left] == [4, 5]
    assert [opened(effect.data).content for _, effect in left if isinstance(effect, Send)] == [b"3", b"4"]
    assert again.channel.outbox(after=4) == left[1:]
    again.channel.confirm(5)
    assert not ann.reopened().channel.outbox()
    again.channel.send(b"next", START_MS)
    assert [sequence for sequence, _ in again.channel.outbox()] == [6]  # numbers are never reused
    again.channel.confirm(6)
    with again.log.rows() as rows:
        assert not [key for key, _ in rows if b"!outbox!" in key]  # confirmed effects take no space


def test_all_state_survives_restarts_after_each_event() -> None:
    """Clock, log, filter, buffers, requests and timers: restarts after each event do not change the result."""
    stable, restarted = Member("ann"), Member("ann")
    for step in range(60):
        data = [content(f"m{step}", *([f"m{step - 2}"] if step % 3 == 0 else []), at=step)] if step % 5 else []
        for member in (stable, restarted):
            member.now_ms = START_MS + 10_000 * step
            member.receives(*data)
            if step % 7 == 0:
                member.channel.send(b"own", member.now_ms)
        effects = [member.tick(chance=0.5) for member in (stable, restarted)]
        assert effects[0] == effects[1]
        restarted = restarted.reopened()
    assert stable.channel.counters() == restarted.channel.counters()


def test_a_batch_is_written_completely_or_not_at_all() -> None:
    database = MemoryDB()
    log = CausalLog.in_memory(database)
    channel = log.channel(CHANNEL, "ann", SMALL)
    channel.send(b"0", START_MS)
    before = rows_in(database)
    thrown_away: list[str] = []

    def broken() -> None:
        with log.batch():
            thrown_away.append(channel.send(b"1", START_MS).message_id)
            log.channel("another", "ann", SMALL).send(b"1", START_MS)
            raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        broken()
    assert rows_in(database) == before
    with log.batch():
        channel.send(b"2", START_MS)
        with pytest.raises(SdsError, match="batch"):  # effects are not visible before they are written
            channel.outbox()
        with pytest.raises(SdsError, match="empty content"):
            channel.send(b"", START_MS)
        channel.send(b"3", START_MS)
    assert [message.content for message in channel.log()] == [b"0", b"2", b"3"]
    data = [effect.data for _, effect in channel.outbox() if isinstance(effect, Send)]
    foreign = ForeignFilter.read(opened(data[-1]).bloom_filter, SMALL.filter, SPEC)
    assert foreign is not None
    assert not foreign.contains(positions(thrown_away[0], foreign, SPEC))


def test_a_failed_event_aborts_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    log = CausalLog.in_memory()
    channel = log.channel(CHANNEL, "ann", SMALL)

    def failing(*_: object) -> None:
        raise StorageError("the disk refused")

    def half() -> None:
        with log.batch():
            channel.send(b"1", START_MS)
            monkeypatch.setattr(acknowledgements, "sent", failing)
            with pytest.raises(StorageError, match="refused"):
                channel.send(b"2", START_MS)

    with pytest.raises(StorageError, match="an operation of this batch failed"):
        half()
    monkeypatch.undo()
    assert not list(channel.log())
    channel.send(b"3", START_MS)
    assert [message.content for message in channel.log()] == [b"3"]


def test_a_log_cannot_be_opened_twice(tmp_path: Path) -> None:
    with CausalLog.open(tmp_path) as log:
        log.channel(CHANNEL, "ann").send(b"x", START_MS)
        with pytest.raises(StoreLockedError):
            CausalLog.open(tmp_path)
    with CausalLog.open(tmp_path) as log:
        assert log.channel_ids() == [CHANNEL]
        assert len(log.channel(CHANNEL, "ann").outbox()) == 1
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError):
        CausalLog.open(tmp_path / "file")


def run_and_kill(folder: Path, seed: int) -> list[list[str]]:
    """Run a child, kill it at a random time, and return its output."""
    with (folder / "said").open("w+") as said:
        child = subprocess.Popen(
            [sys.executable, str(CHILD), str(folder), str(seed)], stdout=said, stderr=subprocess.PIPE
        )
        rng = random.Random(seed)
        until = rng.randrange(60, 200)  # lines; then at any time during the next ones
        wait_until(lambda: Path(said.name).read_text().count("\n") >= until or child.poll() is not None)
        time.sleep(rng.uniform(0, 0.05))
        child.send_signal(signal.SIGKILL)
        _, errors = child.communicate()
        assert child.returncode == -signal.SIGKILL, errors.decode()
        return [line.split() for line in Path(said.name).read_text().split("\n")[:-1]]


@pytest.mark.parametrize("kills", [6, pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_a_kill_at_a_random_time_loses_and_repeats_nothing(tmp_path: Path, kills: int) -> None:
    """Numbers of effects have no gaps and keep their effects. Nothing is delivered twice; no written data is lost."""
    handled: dict[int, list[str]] = {}
    written: list[str] = []
    for seed in range(kills):
        for word, *rest in run_and_kill(tmp_path, seed):
            if word == "wrote":
                written += rest
            elif word == "effect":
                sequence, what = int(rest[0]), rest[1:]
                assert sequence in handled or sequence == len(handled) + 1
                assert handled.setdefault(sequence, what) == what
    assert len(handled) > 10 * kills
    delivered_ids = [what[1] for what in handled.values() if what[0] == "Deliver"]
    assert delivered_ids == [f"m{number}" for number in range(len(delivered_ids))]
    with CausalLog.open(tmp_path) as log:
        channel = log.channel(CHANNEL, "ann", SMALL)
        ids = [message.message_id for message in channel.log()]
        assert {*written, *delivered_ids} <= {*ids}
        sent = [what[1] for what in handled.values() if what[0] == "Sendnew"]
        left: list[tuple[int, object]] = []
        while part := channel.outbox(after=left[-1][0] if left else 0):
            left += part
        sent += [e.message_id for _, e in left if isinstance(e, Send) and e.reason.value == "new"]
        assert set(written) <= set(sent)
        later = [
            e.message.message_id
            for _, e in left
            if isinstance(e, Deliver) and e.message.message_id not in delivered_ids
        ]
        assert len(later) == len(set(later))
        places = [(message.lamport_ms or 0, message.message_id) for message in channel.log()]
        assert places == sorted(places)


def test_a_failed_write_leaves_the_log_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    database = MemoryDB()
    ann = Member("ann", log=CausalLog.in_memory(database))
    real = database.write

    def refuse(rows: Mapping[bytes, bytes | None], *, sync: bool) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(database, "write", refuse)
    with pytest.raises(StorageError):
        ann.channel.send(b"x", START_MS)
    monkeypatch.setattr(database, "write", real)
    assert not ann.effects()
    assert not ann.ids()
    assert opened(ann.says("y")).causal_history == ()
