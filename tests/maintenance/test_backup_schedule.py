"""Regular backups of a store that a process serves."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peering import until
from serving import HERE, Served, fetch
from waiting import LIMIT_S, wait_until

from cablestore import CableStore, limits
from cablestore.backup import backup, read_backup, verify_backup
from cablestore.files import folder_of
from cablestore.index.last_backup import LastBackup, last_backup
from cablestore.maintenance import BackupPlan, BackupState, Maintenance, MaintenancePlan, wait_ms
from cablestore.store.options import system_clock_ms

HOUR_MS = 3_600_000
times = st.integers(0, 2**45)


@given(st.none() | times, times, st.integers(1_000, 2**40))
def test_a_task_is_due_once_after_its_interval(last_ms: int | None, now_ms: int, every_ms: int) -> None:
    pause_ms = wait_ms(last_ms, now_ms, every_ms)
    assert 0 <= pause_ms <= every_ms
    if last_ms is None or last_ms > now_ms:
        assert pause_ms == 0, "the first one, or the clock was set back"
    else:
        assert (pause_ms == 0) == (now_ms - last_ms >= every_ms)
        assert wait_ms(last_ms, now_ms + pause_ms, every_ms) == 0
    assert wait_ms(now_ms, now_ms, every_ms) == every_ms, "one run replaces any number of missed runs"


class Clock:
    """The clock of the system, which a test moves forward or back."""

    def __init__(self) -> None:
        self.offset_ms = 0

    def __call__(self) -> int:
        return system_clock_ms() + self.offset_ms


@asynccontextmanager
async def maintained(store: CableStore, plan: BackupPlan | None, clock: Clock) -> AsyncIterator[Maintenance]:
    async with Maintenance(store, MaintenancePlan(plan), clock=clock) as running:
        yield running


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def made_ms(out: Path) -> int:
    return read_backup(folder_of(out)).made_ms


def test_a_backup_is_created_when_it_is_due(tmp_path: Path) -> None:
    path, out, clock = tmp_path / "store", tmp_path / "backup", Clock()
    plan = BackupPlan(str(out), HOUR_MS, "5h")

    async def work() -> None:
        with CableStore.open(path) as store:
            store.post("default", "x")
            async with maintained(store, plan, clock) as running:
                await until(lambda: running.backup_state.last_ms)
                first = running.backup_state.last_ms
                assert first == made_ms(out)
                assert running.backup_state == BackupState(str(out), first)
            async with maintained(store, plan, clock) as running:  # after a restart
                await until(lambda: running.backup_state.last_ms)
                assert running.backup_state.last_ms == first
            clock.offset_ms = 10 * HOUR_MS  # ten backups were missed
            async with maintained(store, plan, clock) as running:
                await until(lambda: running.backup_state.last_ms not in (None, first))
            clock.offset_ms = -HOUR_MS  # set back
            second = made_ms(out)
            async with maintained(store, plan, clock) as running:
                await until(lambda: made_ms(out) != second)

    run(work())
    assert verify_backup(out)[1] == []
    assert list(path.glob("checkpoint-*")) == []


def test_a_backup_by_another_command_delays_the_next_one(tmp_path: Path) -> None:
    out, clock = tmp_path / "backup", Clock()

    async def work() -> None:
        with CableStore.open(tmp_path / "store") as store:
            store.post("default", "x")
            backup(store, out)
            known = made_ms(out)
            async with maintained(store, BackupPlan(str(out), HOUR_MS), clock) as running:
                await until(lambda: running.backup_state.last_ms)
                assert running.backup_state.last_ms == known == made_ms(out)

    run(work())


def test_failures_are_logged_once_per_kind_until_a_backup_succeeds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out, clock = tmp_path / "backup", Clock()
    out.write_bytes(b"a file")
    caplog.set_level(logging.INFO, "cablestore.node")

    def logged(event: str) -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.message == event]

    async def work() -> None:
        with CableStore.open(tmp_path / "store") as store:
            store.post("default", "x")
            async with maintained(store, BackupPlan(str(out), 1_000), clock) as running:
                await until(lambda: running.backup_state.failures >= 2)
                assert "is a file" in running.backup_state.failure
                assert running.backup_state.last_ms is None
                assert len(logged("cannot back up")) == 1
                out.unlink()
                out.mkdir()
                (out / "another file").touch()
                failures = running.backup_state.failures
                await until(lambda: "is not a backup: it contains another file" in running.backup_state.failure)
                assert running.backup_state.failures > failures
                assert len(logged("cannot back up")) == 2
                (out / "another file").unlink()
                await until(lambda: running.backup_state.last_ms)
                assert running.backup_state.failure == ""
                assert len(logged("backups succeed again")) == 1

    run(work())


def test_a_failed_backup_is_repeated_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAINTENANCE_CHECK_MS", 50)  # the clock is moved
    out, clock = tmp_path / "backup", Clock()
    out.write_bytes(b"a file")

    async def work() -> None:
        with CableStore.open(tmp_path / "store") as store:
            store.post("default", "x")
            async with maintained(store, BackupPlan(str(out)), clock) as running:
                await until(lambda: running.backup_state.failures)
                out.unlink()
                assert running.backup_state.failures == 1
                clock.offset_ms += limits.BACKUP_RETRY_MS
                await until(lambda: running.backup_state.last_ms)
                assert running.backup_state.failure == ""

    run(work())


def test_an_attempt_waits_for_its_time_however_often_the_clock_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backup of another store is damaged, so each attempt fails before it starts a process."""
    monkeypatch.setattr(limits, "MAINTENANCE_CHECK_MS", 1)
    reads, now_ms = [0], [HOUR_MS]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "backup.json").write_bytes(b"damaged")

    def clock() -> int:
        reads[0] += 1
        return now_ms[0]

    async def work() -> None:
        with CableStore.open(tmp_path / "store") as store:
            plan = MaintenancePlan(BackupPlan(str(tmp_path / "one"), 2 * limits.BACKUP_RETRY_MS))
            async with Maintenance(store, plan, clock=clock) as running:

                async def require_failures(expected: int) -> None:
                    await until(lambda: running.backup_state.failures >= expected)
                    before = reads[0]
                    await until(lambda: reads[0] > before + 5)
                    assert running.backup_state.failures == expected

                await require_failures(1)
                now_ms[0] += limits.BACKUP_RETRY_MS - 1
                await require_failures(1)
                now_ms[0] += 1
                await require_failures(2)
                assert not running.backup_state.is_running
                assert "backup.json is damaged" in running.backup_state.failure
                running.change(plan)
                await require_failures(2)
                running.change(MaintenancePlan(BackupPlan(str(tmp_path / "two"), 10)))
                assert running.backup_state == BackupState(str(tmp_path / "two"), failures=2)
                await require_failures(3)
                now_ms[0] += 10
                await require_failures(4)
                running.change(MaintenancePlan())
                assert running.backup_state == BackupState(failures=4)

    run(work())


def test_a_changed_plan_is_applied_immediately(tmp_path: Path) -> None:
    one, two, clock = tmp_path / "one", tmp_path / "two", Clock()

    async def work() -> None:
        with CableStore.open(tmp_path / "store") as store:
            store.post("default", "x")
            async with maintained(store, None, clock) as running:
                assert running.backup_state == BackupState()
                for out in (one, two):
                    running.change(MaintenancePlan(BackupPlan(str(out))))
                    assert running.backup_state.to == str(out)
                    await until(lambda: running.backup_state.last_ms)
                    assert running.backup_state.last_ms == made_ms(out)

    run(work())


def test_closing_stops_a_running_backup(tmp_path: Path) -> None:
    out, clock = tmp_path / "backup", Clock()

    async def work() -> None:
        with CableStore.open(tmp_path / "store") as store:
            store.post("default", "x")
            for is_early in (True, False):
                async with maintained(store, BackupPlan(str(out)), clock) as running:
                    if is_early:  # the checkpoint is being written
                        while not running.backup_state.is_running:  # noqa: ASYNC110 - `until` checks too late
                            await asyncio.sleep(0)
                    else:
                        await until(lambda: running.backup_state.is_running)
                assert not running.backup_state.is_running
                assert list((tmp_path / "store").glob("checkpoint-*")) == []
            async with maintained(store, BackupPlan(str(out)), clock) as running:
                await until(lambda: running.backup_state.last_ms)

    run(work())
    assert verify_backup(out)[1] == []
    assert list((tmp_path / "store").glob("checkpoint-*")) == []


@pytest.mark.thorough
def test_serve_creates_backups_and_reports_their_age(tmp_path: Path, serving: Callable[..., Served]) -> None:
    path, out = tmp_path / "store", tmp_path / "backup"
    file = tmp_path / "serve.toml"
    text = f'[serve]\ncreate = true\nlisten = ["{HERE}"]\nmetrics = "{HERE}"\n'
    file.write_text(text)
    served = serving(path, "--config", file)
    assert served.address
    assert "\ncablestore_backup" not in fetch(f"http://{served.hear('metrics')}/metrics")[1]
    file.write_text(f'{text}backup-to = "{out}"\nbackup-keep = "7d4w12m"\n')
    served.process.send_signal(signal.SIGHUP)
    wait_until(lambda: served.logged("backed up"))
    assert served.logged("settings reloaded")[0]["changed"] == ["backup-keep", "backup-to"]
    assert 0 < served.metric("cablestore_backup_age_seconds") < LIMIT_S
    assert last_backup(path) == LastBackup(at_ms=made_ms(out), folder=str(out))
    assert served.metric("cablestore_backup_failures_total") == 0
    assert served.stop() == 0
    assert verify_backup(out)[1] == []
    assert read_backup(folder_of(out)).keep == "7d4w12m"
    served = serving(path, "--config", file)
    assert served.address
    assert served.metric("cablestore_backup_age_seconds") > 0
    assert served.logged("backed up") == []
    assert served.stop() == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--backup-keep", "7d"], "--backup-keep needs --backup-to"),
        (["--backup-every", "6h"], "--backup-every needs --backup-to"),
        (["--backup-keep", "weekly", "--backup-to", "x"], "invalid rule 'weekly'"),
        (["--backup-every", "0d", "--backup-to", "x"], "invalid duration '0d'"),
        (["--backup-to", "s3://user:password@b/c"], "s3"),
        (["--keep", "soon"], "invalid duration 'soon'"),
        (["--keep-channel", "news"], "expected a channel and an age, such as news=1y"),
        (["--keep-channel", "=1y"], "invalid channel name"),
        (["--keep-channel", "news=often"], "invalid duration 'often'"),
    ],
)
def test_bad_settings_are_rejected_in_one_line_before_the_store_is_opened(
    tmp_path: Path, run: Callable[..., tuple[int, str, str]], words: list[str], expected: str
) -> None:
    status, printed, errors = run("serve", "-s", tmp_path / "store", "--create", "--listen", HERE, *words)
    assert (status, printed, expected in " ".join(errors.split())) == (2, "", True), errors
    assert not (tmp_path / "store").exists()
