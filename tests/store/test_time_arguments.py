"""Times in the API: milliseconds since 1970 or aware datetimes, in a half-open window."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from people import ANN, START_MS, raws

from cablestore import CableStore, connect, offer
from cablestore.aio import AsyncCableStore
from cablestore.arguments import checked_time
from cablestore.errors import ArgumentError
from cablestore.export import Filters

TIMES_MS = [START_MS + 1000 * number for number in range(6)]
POSTS = raws(*(ANN.text("garden", f"word {number}", at=at) for number, at in enumerate(TIMES_MS)))
BERLIN = ZoneInfo("Europe/Berlin")


def aware(time_ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(time_ms // 1000, BERLIN) + dt.timedelta(milliseconds=time_ms % 1000)


READS: dict[str, Callable[[CableStore, int | dt.datetime, int | dt.datetime], object]] = {
    "messages": lambda s, after, before: s.messages("garden", after_ms=after, before_ms=before).messages,
    "causal_messages": lambda s, after, before: s.causal_messages("garden", after, before),
    "search": lambda s, after, before: s.search("word", after_ms=after, before_ms=before).hits,
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_datetimes_and_milliseconds_mean_the_same_here_and_in_another_process(
    read: Callable[..., list[object]], tmp_path: Path
) -> None:
    with CableStore.open(tmp_path / "store", identity=ANN.identity) as store, offer(store):
        store.ingest(POSTS)
        with connect(tmp_path / "store") as remote:
            for first, last in ((0, 6), (1, 4), (3, 3)):
                window = TIMES_MS[first], START_MS + 1000 * last
                expected = read(store, *window)
                assert len(expected) == last - first  # the start belongs to the window, the end does not
                assert read(store, *map(aware, window)) == expected
                assert read(remote, *map(aware, window)) == expected


def test_datetimes_choose_what_is_pruned_and_exported(tmp_path: Path) -> None:
    with CableStore.in_memory(identity=ANN.identity) as store:
        store.ingest(POSTS)
        filters = Filters(after_ms=aware(TIMES_MS[2]), before_ms=aware(TIMES_MS[4]))
        assert filters == Filters(after_ms=TIMES_MS[2], before_ms=TIMES_MS[4])
        assert store.export(tmp_path / "out", filters=filters).posts["text"] == 2
        assert store.prune(before_ms=aware(TIMES_MS[5])) == 5


@given(
    st.datetimes(timezones=st.timezones(), min_value=dt.datetime(1971, 1, 1), max_value=dt.datetime(2200, 1, 1))  # noqa: DTZ001 - the strategy adds time zones
)
def test_a_datetime_is_rounded_down_to_its_millisecond(time: dt.datetime) -> None:
    found_ms = checked_time("after_ms", time)
    exact_us = (time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    assert found_ms * 1000 <= exact_us < (found_ms + 1) * 1000


@pytest.mark.parametrize("wrong", [dt.datetime(2024, 1, 2), dt.date(2024, 1, 2), 1.5, "2024-01-02", True])  # noqa: DTZ001 - wrong on purpose
def test_other_values_are_rejected_here_and_in_another_process(wrong: object, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with CableStore.open(path, identity=ANN.identity) as store, offer(store), connect(path) as remote:
        for each in (store, remote):
            with pytest.raises(ArgumentError, match=r"after_ms: expected milliseconds since 1970 or a datetime"):
                each.messages("garden", after_ms=wrong)  # type: ignore[arg-type] # wrong on purpose


def test_awaited_reads_accept_datetimes() -> None:
    async def run() -> list[str]:
        async with AsyncCableStore.in_memory(identity=ANN.identity) as store:
            await store.ingest(POSTS)
            page = await store.messages("garden", after_ms=aware(TIMES_MS[5]))
            return [message.text for message in page.messages]

    assert asyncio.run(run()) == ["word 5"]
