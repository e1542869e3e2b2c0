"""The rule by which a backup keeps restore points: a function from times to the kept times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cablestore import limits
from cablestore.backup.keep import KeepRule
from cablestore.errors import ArgumentError

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
LATEST_MS = 253_402_300_799_999


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def period(unit: str, time_ms: int) -> object:
    """Return the period of a time by the calendar of the standard library."""
    moment = datetime.fromtimestamp(time_ms // 1000, UTC)
    return {
        "h": moment.replace(minute=0, second=0),
        "d": moment.date(),
        "w": moment.isocalendar()[:2],
        "m": (moment.year, moment.month),
        "y": moment.year,
    }[unit]


def expected(counts: dict[str, int], times: set[int]) -> set[int]:
    """Return the kept times, found by comparing each time with all others."""
    found = set()
    for unit, count in counts.items():
        periods = {time: period(unit, time) for time in times}
        for time in times:
            is_last = not any(other > time and periods[other] == periods[time] for other in times)
            later = {periods[other] for other in times if other > time} - {periods[time]}
            if is_last and len(later) < count:
                found.add(time)
    return found


# Many times are in the same periods, at their borders, or at the limits of a backup's times.
hours = st.integers(0, 24 * 800).map(lambda number: ms(NOW - timedelta(hours=number)))
times_ms = st.one_of(
    hours,
    st.builds(lambda time, near: time - time % 3_600_000 + near, hours, st.sampled_from((-1, 0, 1, 999, 1_000))),
    st.integers(0, LATEST_MS),
)
rules = st.dictionaries(st.sampled_from("hdwmy"), st.integers(1, 9), min_size=1)


def text(counts: dict[str, int]) -> str:
    return "".join(f"{count}{unit}" for unit, count in counts.items())


@given(rules, st.sets(times_ms, max_size=40), times_ms)
def test_the_last_point_of_each_recent_period_is_kept(counts: dict[str, int], times: set[int], now: int) -> None:
    rule = KeepRule.parse(text(counts))
    assert rule.counts == counts
    past = {time for time in times if time <= now}
    assert rule.kept(times, now) == expected(counts, past) | expected(counts, times - past)


@given(rules, st.sets(times_ms, max_size=40), times_ms)
def test_applying_the_rule_again_changes_nothing(counts: dict[str, int], times: set[int], now: int) -> None:
    rule = KeepRule.parse(text(counts))
    kept = rule.kept(times, now)
    assert kept <= times
    assert rule.kept(kept, now) == kept
    assert max(times | {now}) == now or max(times) in kept
    assert not times or max((time for time in times if time <= now), default=min(kept)) in kept


@given(rules, st.sets(times_ms, min_size=1, max_size=40))
def test_the_kept_points_do_not_depend_on_how_often_points_were_removed(
    counts: dict[str, int], times: set[int]
) -> None:
    """No removed point is missing later."""
    rule = KeepRule.parse(text(counts))
    held: frozenset[int] = frozenset()
    for time in sorted(times):
        held = rule.kept({*held, time}, time)
    assert held == rule.kept(times, max(times))


@given(rules, st.sets(times_ms, min_size=1, max_size=20), st.lists(times_ms, min_size=1, max_size=20))
def test_a_wrong_clock_does_not_remove_points_that_a_right_one_keeps(
    counts: dict[str, int], times: set[int], wrong: list[int]
) -> None:
    """A slow clock creates points of the past. They may fill periods, but all later points stay."""
    rule = KeepRule.parse(text(counts))
    now = max(times)
    held = kept = rule.kept(times, now)
    slow = [time for time in wrong if time < min(times)]
    for time in slow:
        held = rule.kept({*held, time}, time)
    assert kept <= held
    fast = [time for time in wrong if time > now]
    for time in fast:
        kept = rule.kept({*kept, time}, now)
    assert rule.kept(times, now) <= kept


def test_a_year_of_daily_backups_keeps_one_point_for_each_period() -> None:
    """Daylight saving and months of different lengths leave one point for each day, week and month."""
    rule = KeepRule.parse("7d4w12m")
    held: frozenset[int] = frozenset()
    for number in range(400, -1, -1):
        time = ms(NOW - timedelta(days=number))
        held = rule.kept({*held, time}, time)
    days = [f"{datetime.fromtimestamp(time // 1000, UTC):%Y-%m-%d}" for time in sorted(held)]
    assert days == [
        "2025-12-31", "2026-01-31", "2026-02-28", "2026-03-31", "2026-04-30", "2026-05-31", "2026-06-30", "2026-07-31",
        "2026-08-31", "2026-09-30", "2026-10-31", "2026-11-08", "2026-11-15", "2026-11-22", "2026-11-23", "2026-11-24",
        "2026-11-25", "2026-11-26", "2026-11-27", "2026-11-28",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("unit", "first", "after"),
    [
        ("h", datetime(2026, 3, 1, 7, tzinfo=UTC), datetime(2026, 3, 1, 8, tzinfo=UTC)),
        ("d", datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC)),
        ("w", datetime(2026, 3, 2, tzinfo=UTC), datetime(2026, 3, 9, tzinfo=UTC)),
        ("m", datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)),
        ("y", datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_period_is_one_of_the_calendar(unit: str, first: datetime, after: datetime) -> None:
    before, start, end = ms(first) - 1, ms(first), ms(after) - 1
    assert KeepRule.parse(f"9{unit}").kept({before, start, end}, end) == {before, end}


def test_the_number_of_periods_is_limited() -> None:
    most = limits.MAX_PERIODS_KEPT
    assert KeepRule.parse(f"{most}d{most}h").counts == {"d": most, "h": most}
    with pytest.raises(ArgumentError, match="invalid rule"):
        KeepRule.parse(f"{most + 1}d")


@pytest.mark.parametrize(
    "wrong", ["", "7", "d", "7d7d", "0d", "-1d", "7D", "7d 4w", "7d,4w", "1.5d", "1001d", "7x", "٣d", "7d4w12m\n", "9" * 5000]
)  # fmt: skip
def test_an_invalid_rule_is_rejected(wrong: str) -> None:
    with pytest.raises(ArgumentError, match=r"invalid rule .* such as 7d4w12m"):
        KeepRule.parse(wrong)
