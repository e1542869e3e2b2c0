"""Restore points: earlier states of a store in its backup, kept by a rule and restorable after a kill at any step."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from backing_up import opened, require_equal, rows_of
from folders import SUPPORT
from history import AUTHORS
from s3 import S3Server
from test_backup import as_of_0_12, small_pieces
from waiting import LIMIT_S

from cablestore import CableStore, StoreOptions, limits
from cablestore.backup import backup, read_backup, restore, restore_points, verify_backup
from cablestore.documents import with_checksum
from cablestore.errors import ArgumentError, BackupError
from cablestore.files import LocalFolder, folder_of

CHILD = SUPPORT / "backup_child.py"
DAY_MS = 86_400_000
START_MS = 1_700_000_000_000
Run = Callable[..., tuple[int, str, str]]


def at(path: Path, time_ms: int) -> CableStore:
    """Open a store on a day."""
    options = StoreOptions(clock=lambda: time_ms, verify_threads=1)
    return CableStore.open(path, identity=AUTHORS[0], options=options)


def times_in(out: Path) -> list[int]:
    return [point.manifest.made_ms for point in restore_points(out)[0]]


def grow(path: Path, out: Path, times_ms: list[int], keep: str | None = None) -> dict[int, Any]:
    """Write, delete and back up at each time. Return the rows of the store at that time."""
    states = {}
    gone = None
    for time_ms in times_ms:
        with at(path, time_ms) as store:
            posts = [store.post("default", f"{time_ms} {number}") for number in range(8)]
            if gone is not None:
                store.discard([gone])
            gone = posts[3].hash
            store.local.set_draft("default", f"{time_ms}")
            report = backup(store, out, keep=keep)
            states[report.made_ms] = rows_of(store)
    return states


def require_points(out: Path, states: dict[int, Any], times_ms: list[int], scratch: Path) -> None:
    """Check that a backup has exactly these points, without other files, and that each is the state of its time."""
    assert verify_backup(out)[1] == []
    assert times_in(out) == times_ms
    pieces = {piece.file for point in restore_points(out)[0] for piece in point.manifest.pieces}
    assert {file.name for file in out.glob("*.seg")} == pieces
    for time_ms in times_ms:
        target = scratch / f"restored-{random.random()}"
        assert restore(out, target, at_ms=time_ms, identity=AUTHORS[0]).made_ms == time_ms
        assert rows_of(target) == states[time_ms]


def test_the_rule_keeps_points_and_they_are_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch)
    path, out = tmp_path / "store", tmp_path / "backup"
    days = [START_MS + number * DAY_MS for number in range(5)]
    states = grow(path, out, days, "3d")
    require_points(out, states, days[2:], tmp_path)
    restored = restore(out, tmp_path / "between", at_ms=days[3] + DAY_MS // 2, identity=AUTHORS[0])
    assert restored.made_ms == days[3]
    assert restore(out, tmp_path / "newest", identity=AUTHORS[0]).made_ms == days[4]
    with pytest.raises(BackupError, match=r"restore point not found: the earliest in .* is 2023-11-16T"):
        restore(out, tmp_path / "before", at_ms=days[2] - 1, identity=AUTHORS[0])
    assert not (tmp_path / "before").exists()


def test_a_point_that_another_run_removes_meanwhile_is_not_listed(tmp_path: Path) -> None:
    class Raced(LocalFolder):
        def names(self, glob: str = "*") -> list[str]:
            found = super().names(glob)
            (self.folder / found[0]).unlink()
            return found

    grow(tmp_path / "store", tmp_path / "backup", [START_MS, START_MS + DAY_MS], "2d")
    points, problems = restore_points(Raced(tmp_path / "backup"))
    assert [point.manifest.made_ms for point in points] == [START_MS + DAY_MS]
    assert problems == []


def test_later_runs_keep_the_rule_until_it_changes(tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "backup"
    days = [START_MS + number * DAY_MS for number in range(6)]
    states = grow(path, out, days[:3], "2d")
    states |= grow(path, out, days[3:4])
    require_points(out, states, days[2:4], tmp_path)
    states |= grow(path, out, days[4:], "1d")
    require_points(out, states, days[5:], tmp_path)
    with pytest.raises(ArgumentError, match="invalid rule"):
        grow(path, out, days[5:], "often")
    require_points(out, states, days[5:], tmp_path)


def test_without_a_rule_only_the_newest_point_is_kept(tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "backup"
    days = [START_MS, START_MS + DAY_MS]
    states = grow(path, out, days)
    require_points(out, states, days[1:], tmp_path)
    assert sorted(file.name for file in out.iterdir() if file.suffix == ".json") == ["backup.json"]


def test_points_created_at_the_same_time_have_different_times(tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "backup"
    states = grow(path, out, [START_MS, START_MS, START_MS - 50], "5d")  # the clock was adjusted
    assert sorted(states) == [START_MS, START_MS + 1, START_MS + 2]
    require_points(out, states, [START_MS + 2], tmp_path)  # the last of the day


@pytest.mark.parametrize(
    ("now_ms", "made"),
    [
        (2 * DAY_MS - 59_999, 2 * DAY_MS + 1),
        (2 * DAY_MS - 60_000, 2 * DAY_MS - 60_000),
        (DAY_MS, DAY_MS + 2),
        (0, 1),
        (2 * DAY_MS + 1, 2 * DAY_MS + 1),
    ],
)
def test_only_a_small_correction_of_the_clock_dates_a_point_after_the_last(
    tmp_path: Path, now_ms: int, made: int
) -> None:
    """The times of earlier points are taken: a day, and 1 ms later."""
    path, out = tmp_path / "store", tmp_path / "backup"
    with CableStore.open(path, identity=AUTHORS[0]) as store:
        store.post("default", "x")
    for time_ms in (DAY_MS, DAY_MS + 1, 2 * DAY_MS):
        backup(path, out, keep="9h9d", identity=AUTHORS[0], clock=partial(int, time_ms))
        if time_ms == DAY_MS:
            earlier = read_backup(folder_of(out))
    (out / earlier.point_file).write_bytes(earlier.encode())
    assert backup(path, out, identity=AUTHORS[0], clock=partial(int, now_ms)).made_ms == made


def test_a_folder_without_any_point_cannot_be_restored(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for time_ms in (None, START_MS):
        with pytest.raises(BackupError, match="is not a finished backup"):
            restore(tmp_path / "empty", tmp_path / "restored", at_ms=time_ms)


@pytest.mark.parametrize("offset_ms", [-400 * DAY_MS, 400 * DAY_MS], ids=["slow", "fast"])
def test_a_wrong_clock_does_not_replace_later_points(tmp_path: Path, offset_ms: int) -> None:
    path, out = tmp_path / "store", tmp_path / "backup"
    right = [START_MS + number * DAY_MS for number in range(3)]
    wrong = [time_ms + offset_ms for time_ms in right]
    states = grow(path, out, right, "3d")
    states |= grow(path, out, wrong)
    if offset_ms < 0:
        assert set(right) <= set(times_in(out))
    later = [START_MS + number * DAY_MS for number in range(3, 6)]
    states |= grow(path, out, later)
    assert set(later) <= set(times_in(out)), "points of the future do not replace them"
    newest = later[-1]
    assert read_backup(folder_of(out)).made_ms == newest
    require_points(out, states, times_in(out), tmp_path)


def test_a_backup_of_0_12_becomes_a_point(tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "backup"
    grow(path, out, [START_MS])
    as_of_0_12(out)
    with opened(path) as store:
        old = store.dump_digest()
    states = grow(path, out, [START_MS + DAY_MS, START_MS + 2 * DAY_MS], "3d")
    assert times_in(out) == [0, *states]
    assert verify_backup(out)[1] == []
    restore(out, tmp_path / "old", at_ms=START_MS, identity=AUTHORS[0])
    with opened(tmp_path / "old") as restored:
        assert restored.dump_digest() == old
    grow(path, out, [START_MS + 3 * DAY_MS])
    assert len(times_in(out)) == 3


# --- damage -----------------------------------------------------------------------------------------


def test_a_point_without_one_of_its_files_is_reported_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch)
    path, out = tmp_path / "store", tmp_path / "backup"
    days = [START_MS + number * DAY_MS for number in range(4)]
    states = grow(path, out, days[:3], "3d")
    points = restore_points(out)[0]
    others = {piece.file for point in points[1:] for piece in point.manifest.pieces}
    lost = next(piece.file for piece in points[0].manifest.pieces if piece.file not in others)
    (out / lost).unlink()
    with at(path, days[2]) as store:
        assert backup(store, out, keep="9d").damaged_points == 1
    assert [problem.file for problem in verify_backup(out)[1]] == [lost]
    with pytest.raises(BackupError, match=f"{lost} is missing"):
        restore(out, tmp_path / "whole", at_ms=days[0], identity=AUTHORS[0])
    assert not restore(out, tmp_path / "part", at_ms=days[0], identity=AUTHORS[0], salvage=True).is_complete
    restore(out, tmp_path / "next", at_ms=days[1], identity=AUTHORS[0])
    assert rows_of(tmp_path / "next") == states[days[1]]


@pytest.mark.parametrize("damage", ["cut off", "renamed", "of the future", "no checksum"])
def test_nothing_is_removed_while_a_point_is_unreadable(tmp_path: Path, run: Run, damage: str) -> None:
    path, out = tmp_path / "store", tmp_path / "backup"
    days = [START_MS + number * DAY_MS for number in range(4)]
    states = grow(path, out, days[:3], "3d")
    file = out / "point-2023-11-14T221320.000Z.json"
    whole = file.read_bytes()
    if damage == "cut off":
        file.write_bytes(whole[:100])
    elif damage == "renamed":
        file.rename(out / "point-2023-11-13T221320.000Z.json")
    elif damage == "of the future":
        fields = json.loads(whole)
        del fields["blake3"]
        file.write_bytes(with_checksum(fields | {"format": 4}))
    else:
        file.write_bytes(b"{}")
    held = {each.name for each in out.glob("*.seg")}
    with at(path, days[3]) as store:
        store.discard([post.hash for post in store.messages("default").messages][:3])
        report = backup(store, out, keep="1d")
    assert (report.removed_points, report.damaged_points) == (0, 1)
    assert held <= {each.name for each in out.glob("*.seg")}
    status, printed, notes = run("backup", out, "--list")
    assert (status, "point-2023-11-1" in printed, notes) == (1, True, "")
    restore(out, tmp_path / "another", at_ms=days[1], identity=AUTHORS[0])
    assert rows_of(tmp_path / "another") == states[days[1]]
    for each in out.glob("point-2023-11-1[34]*"):
        each.unlink()
    with at(path, days[3]) as store:
        assert backup(store, out).points == 1
    assert verify_backup(out)[1] == []


def test_points_can_be_restored_if_the_newest_is_lost(tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "backup"
    days = [START_MS + number * DAY_MS for number in range(4)]
    states = grow(path, out, days[:3], "3d")
    (out / "backup.json").write_bytes(b"damaged")
    restore(out, tmp_path / "earlier", at_ms=days[2], identity=AUTHORS[0])
    assert rows_of(tmp_path / "earlier") == states[days[1]]
    (out / "backup.json").unlink()
    with at(path, days[3]) as store:
        report = backup(store, out)
        assert (report.points, report.keep) == (3, None)
        assert backup(store, out).points == 4, "the rule was lost with the newest point"
        assert backup(store, out, keep="2d").points == 2


def test_a_forged_point_is_rejected_with_the_key(tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "backup"
    grow(path, out, [START_MS, START_MS + DAY_MS], "2d")
    file = next(out.glob("point-*"))
    fields = json.loads(file.read_bytes())
    del fields["blake3"]
    file.write_bytes(with_checksum(fields | {"sealed": fields["sealed"] + 1}))
    assert [problem.file for problem in verify_backup(out)[1]] == [file.name]
    report = restore(out, tmp_path / "restored", at_ms=START_MS, identity=AUTHORS[0])
    assert (report.is_authentic, [problem.file for problem in report.problems]) == (False, [file.name])


def test_planted_points_do_not_replace_those_of_the_store(tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "backup"
    days = [START_MS + number * DAY_MS for number in range(3)]
    states = grow(path, out, days, "3d")
    for point in restore_points(out)[0]:
        later = replace(point.manifest, made_ms=point.manifest.made_ms + 1_000, signed_by=None, signature=None)
        (out / later.point_file).write_bytes(later.encode())
    states |= grow(path, out, [days[2] + 5_000])
    assert set(days[:2]) <= set(times_in(out))
    for time_ms in days[:2]:
        restore(out, tmp_path / f"{time_ms}", at_ms=time_ms, identity=AUTHORS[0])
        assert rows_of(tmp_path / f"{time_ms}") == states[time_ms]


# --- kills ------------------------------------------------------------------------------------------


def killed(path: Path, out: Path, when: str, number: int, time_ms: int, keep: str) -> bool:
    """Run a backup in a child process that kills itself at a step. Return False if it has no such step."""
    words = ["backup", str(path), str(out), when, str(number), str(time_ms), keep]
    child = subprocess.run([sys.executable, str(CHILD), *words], capture_output=True, check=False, timeout=LIMIT_S)
    assert child.returncode in (0, -signal.SIGKILL), child.stderr.decode()
    return child.returncode != 0


@pytest.mark.thorough
@pytest.mark.parametrize("when", ["before", "after", "removing", "removed"])
def test_a_kill_at_each_step_leaves_every_kept_point(tmp_path: Path, when: str) -> None:
    """Each run adds a point and removes one. It is killed at every file that it names or removes."""
    path, first = tmp_path / "store", tmp_path / "first"
    days = [START_MS + number * DAY_MS for number in range(4)]
    states = grow(path, first, days[:3], "3d")
    with at(path, days[3]) as store:
        store.discard([post.hash for post in store.messages("default", 50).messages if post.text.endswith(" 5")])
        store.local.set_draft("default", "last")
        states[days[3]] = rows_of(store)
    steps = 0
    for number in range(1, 100):
        out = tmp_path / f"{number}"
        shutil.copytree(first, out)
        if not killed(path, out, when, number, days[3], "2d"):
            break
        steps += 1
        found = times_in(out)
        assert found[-1] in (days[2], days[3])
        assert set(days[2:3]) <= set(found), "a point that both the old and the new state keep"
        assert set(days[1:2]) <= set(found) or found[-1] == days[3]
        assert verify_backup(out)[1] == []
        for time_ms in found:
            target = tmp_path / f"{number}-{time_ms}"
            restore(out, target, at_ms=time_ms, identity=AUTHORS[0])
            assert rows_of(target) == states[time_ms]
            shutil.rmtree(target)
        backup(path, out, keep="2d", identity=AUTHORS[0], clock=lambda: days[3] + 1)
        assert times_in(out) == [days[2], days[3] + 1]
        pieces = {piece.file for point in restore_points(out)[0] for piece in point.manifest.pieces}
        assert {file.name for file in out.glob("*.seg")} == pieces
        shutil.rmtree(out)
    assert steps >= 2


# --- the command ------------------------------------------------------------------------------------


def test_the_command_lists_and_restores_points(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch)
    path, out = tmp_path / "store", tmp_path / "backup"
    days = [START_MS, START_MS + DAY_MS + 123]
    grow(path, out, days, "7d4w12m")
    status, printed, notes = run("backup", out, "--list")
    assert (status, notes) == (0, "")
    names = [line.split()[0] for line in printed.splitlines()[1:]]
    assert names == ["2023-11-14T221320.000Z", "2023-11-15T221320.123Z"]
    listed = [json.loads(line) for line in run("backup", out, "--list", "--json")[1].splitlines()]
    assert [(each["time"], each["made_ms"], each["newest"]) for each in listed] == [
        (names[0], days[0], False),
        (names[1], days[1], True),
    ]
    on_disk = sum(file.stat().st_size for file in out.glob("*.seg"))
    assert sum(each["own_size_bytes"] for each in listed) <= on_disk <= sum(each["size_bytes"] for each in listed)
    assert all(each["size_bytes"] >= each["own_size_bytes"] > 0 for each in listed)
    for name, time_ms in zip(names, days, strict=True):
        status, printed, _ = run("restore", out, "-s", tmp_path / name, "--at", name, "--unverified", "--json")
        assert (status, json.loads(printed)["made_ms"]) == (0, time_ms)
        with opened(tmp_path / name) as restored:
            assert restored.local.draft("default") == f"{time_ms}"
    moment = datetime.fromtimestamp(days[1] / 1000 - 1, UTC).isoformat()
    status, printed, _ = run("restore", out, "-s", tmp_path / "at", "--at", moment, "--unverified", "--json")
    assert (status, json.loads(printed)["made_ms"]) == (0, days[0])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ("--keep", "7"),
            "invalid rule '7': expected a number of hours (h), days (d), weeks (w), months (m) or years (y)",
        ),
        (("--keep", "7d", "--list"), "--list writes nothing"),
        (("--keep", "7d", "--check"), "--check writes nothing"),
    ],
)
def test_bad_options_are_rejected_in_one_line(tmp_path: Path, run: Run, words: tuple[str, ...], expected: str) -> None:
    grow(tmp_path / "store", tmp_path / "backup", [START_MS])
    before = sorted(file.name for file in (tmp_path / "backup").iterdir())
    status, printed, errors = run("backup", tmp_path / "backup", "-s", tmp_path / "store", *words)
    assert (status, printed, expected in " ".join(errors.split())) == (2, "", True), errors
    assert sorted(file.name for file in (tmp_path / "backup").iterdir()) == before


@pytest.mark.thorough
def test_points_in_an_object_store_are_listed_and_restored(tmp_path: Path, s3: S3Server, run: Run) -> None:
    path, place = tmp_path / "store", s3.uri("backups/points")
    days = [START_MS + number * DAY_MS for number in range(4)]
    states = {}
    for time_ms in days:
        with at(path, time_ms) as store:
            store.post("default", f"{time_ms}")
            backup(store, place, keep="2d")
            states[time_ms] = rows_of(store)
    assert [point.manifest.made_ms for point in restore_points(place)[0]] == days[2:]
    assert verify_backup(place)[1] == []
    restore(place, tmp_path / "restored", at_ms=days[2], identity=AUTHORS[0])
    assert rows_of(tmp_path / "restored") == states[days[2]]
    assert run("backup", place, "--list")[0] == 0


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_points_equal_the_store_at_their_time_in_any_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Full runs, interrupted runs, other rules and other times of day leave the points of the rule."""
    small_pieces(monkeypatch)
    monkeypatch.setattr(limits, "MAX_BACKUPS_SINCE_FULL", 4)
    rng = random.Random(seed)
    path, out = tmp_path / "store", tmp_path / "backup"
    states: dict[int, Any] = {}
    now_ms = START_MS
    for _ in range(14):
        now_ms += rng.randrange(DAY_MS // 2, 3 * DAY_MS)
        states |= grow(path, out, [now_ms], rng.choice(["5d", "2d2w", "3d2w2m", None]))
        if rng.random() < 0.3:
            with at(path, now_ms + 1) as store:
                report = backup(store, out, full=True)
                states[report.made_ms] = rows_of(store)
    require_points(out, states, times_in(out), tmp_path)
    with at(path, now_ms + 2) as store:
        backup(store, out, keep="1d")
        require_equal(store, out, tmp_path / "last")
