"""A clock that differs from most users' clocks is reported. One wrong user or a quiet cabal is not reported."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from clock import SetClock
from hypothesis import given
from hypothesis import strategies as st
from people import ANN, BOB, CYD, Person, raws

from cablestore import CableStore, Join, StoreOptions, limits
from cablestore.store.clock_check import ClockDifference

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
TOLERANCE_MS = limits.CLOCK_TOLERANCE_MS
DAN, EVE = Person("dan"), Person("eve")


@pytest.fixture
def clock() -> SetClock:
    return SetClock(NOW_MS)


@pytest.fixture
def store(clock: SetClock) -> Iterator[CableStore]:
    with CableStore.in_memory(identity=ANN.identity, options=StoreOptions(clock=clock)) as store:
        yield store


def ahead_ms(store: CableStore) -> int:
    """Return how far the clock is ahead, 0 if no difference is found."""
    found = store.clock_difference()
    return 0 if found is None else found.ahead_ms


def test_the_default_clock_is_the_system_clock() -> None:
    with CableStore.in_memory(identity=ANN.identity) as store:
        began_ms = time.time_ns() // 10**6
        assert began_ms <= store.post("a", "x").timestamp_ms <= time.time_ns() // 10**6


def test_a_clock_that_is_behind_is_reported(store: CableStore, clock: SetClock) -> None:
    """The latest text of each user counts, and users whose other texts show no difference count once."""
    assert ahead_ms(store) == 0
    store.post("a", "own")
    store.ingest(raws(*(who.text("a", "before", at=NOW_MS - HOUR_MS) for who in (BOB, CYD, DAN))))
    store.ingest(raws(*(BOB.text("a", "x", at=NOW_MS + hours * HOUR_MS) for hours in (1, 2))))
    store.ingest(raws(CYD.text("b", "y", at=NOW_MS + 3 * HOUR_MS)))
    found = store.clock_difference()
    assert found is not None
    assert (found.ahead_ms, found.users) == (-2 * HOUR_MS, 2)
    assert found.warning() == (
        "the clock of this machine may be wrong: it shows 2023-11-14 22:13:20 UTC, which is about 2 hours behind the "
        "messages of 2 other users. Check date, time and time zone"
    )
    clock.now_ms += 3 * HOUR_MS
    assert ahead_ms(store) == 0


@pytest.mark.parametrize(
    ("ahead_ms", "shown"),
    [
        (60_000, "1 minute ahead of"),
        (3_599_999, "60 minutes ahead of"),
        (3_600_000, "1 hour ahead of"),
        (-86_399_999, "24 hours behind"),
        (-86_400_000, "1 day behind"),
        (-2 * 86_400_000, "2 days behind"),
    ],
)
def test_a_difference_is_shown_in_its_largest_unit(ahead_ms: int, shown: str) -> None:
    assert f", which is about {shown} the messages of 2 other users." in ClockDifference(ahead_ms, 2, NOW_MS).warning()


@pytest.mark.parametrize("beyond_ms", [0, 1])
def test_a_difference_within_the_tolerance_is_not_reported(store: CableStore, beyond_ms: int) -> None:
    store.ingest(raws(*(who.text("a", "x", at=NOW_MS + TOLERANCE_MS + beyond_ms) for who in (BOB, CYD))))
    assert ahead_ms(store) == -(TOLERANCE_MS + 1) * beyond_ms


def test_too_few_users_with_wrong_clocks_cause_no_warning(store: CableStore) -> None:
    wrong = (BOB, CYD, DAN, EVE)[: limits.MIN_CLOCK_WITNESSES - 1]
    for who in wrong:
        store.ingest(raws(*(who.text("a", f"{number}", at=NOW_MS + HOUR_MS + number) for number in range(50))))
    store.post("a", "own")
    assert ahead_ms(store) == 0


def test_the_majority_of_active_users_decides(store: CableStore) -> None:
    """Two users have the same wrong clock, the others are right. Users whose texts are old do not count."""
    wrong = [who.text("a", "x", at=NOW_MS + HOUR_MS) for who in (BOB, CYD)]
    store.ingest(raws(*wrong, DAN.text("a", "x", at=NOW_MS - 2 * HOUR_MS)))
    assert ahead_ms(store) == -HOUR_MS
    store.ingest(raws(DAN.text("a", "x", at=NOW_MS - 60_000), EVE.text("a", "x", at=NOW_MS - 30_000)))
    assert ahead_ms(store) == 0


def test_topics_and_names_in_the_future_cause_no_warning(store: CableStore) -> None:
    """Posts that replace a topic dated in the future are dated in the future too."""
    store.ingest(raws(*(who.topic("a", "x", at=NOW_MS + HOUR_MS + at) for at, who in enumerate((BOB, CYD, DAN)))))
    store.ingest(raws(*(who.named("x", at=NOW_MS + HOUR_MS) for who in (BOB, CYD, DAN))))
    assert ahead_ms(store) == 0


def test_a_cabal_without_new_posts_causes_no_warning(store: CableStore, clock: SetClock) -> None:
    store.ingest(raws(*(who.text("a", "x", at=NOW_MS - at) for at, who in enumerate((BOB, CYD, DAN)))))
    clock.now_ms += 30 * 24 * HOUR_MS
    store.post("a", "anybody here?")
    assert ahead_ms(store) == 0


def test_answers_dated_before_their_questions_reveal_a_clock_that_is_ahead(store: CableStore, clock: SetClock) -> None:
    clock.now_ms = NOW_MS + 2 * HOUR_MS
    question = store.post("a", "what time is it?")
    late = [who.text("a", "ten", at=NOW_MS + 30_000, links=(question.hash,)) for who in (BOB, CYD)]
    store.ingest(raws(late[0]))
    assert ahead_ms(store) == 0  # a single user may be wrong
    store.ingest(raws(late[1]))
    assert ahead_ms(store) == 2 * HOUR_MS - 30_000
    right = [who.text("a", "twelve", at=clock.now_ms + 30_000, links=(question.hash,)) for who in (DAN, EVE)]
    store.ingest(raws(*right))
    assert ahead_ms(store) == 0


def test_a_clock_that_was_corrected_is_not_reported(store: CableStore, clock: SetClock) -> None:
    clock.now_ms = NOW_MS + 2 * HOUR_MS
    question = store.post("a", "what time is it?")
    clock.now_ms = NOW_MS
    store.ingest(raws(*(who.text("a", "ten", at=NOW_MS + 30_000, links=(question.hash,)) for who in (BOB, CYD))))
    assert ahead_ms(store) == 0
    clock.now_ms = NOW_MS + 3 * HOUR_MS
    again = store.post("a", "and now?")
    store.ingest(raws(*(who.text("a", "one", at=clock.now_ms + 9, links=(again.hash,)) for who in (BOB, CYD))))
    assert ahead_ms(store) == 0
    clock.now_ms += limits.CLOCK_MEMORY_MS + 1
    assert ahead_ms(store) == 0


def test_a_limited_number_of_texts_is_read(store: CableStore) -> None:
    """MAX_CLOCK_TEXTS_READ: many texts of one user hide those of others. The only effect is a missing warning."""
    store.ingest(raws(*(who.text("a", "x", at=NOW_MS + HOUR_MS) for who in (BOB, CYD))))
    assert ahead_ms(store) < 0
    flood = (DAN.text("a", "x", at=NOW_MS + 2 * HOUR_MS + at) for at in range(limits.MAX_CLOCK_TEXTS_READ))
    store.ingest(raws(*flood), verify=False)
    assert ahead_ms(store) == 0


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-5 * HOUR_MS, TOLERANCE_MS)), max_size=12), st.booleans())
def test_clocks_within_the_tolerance_are_never_reported(said: list[tuple[int, int]], answers: bool) -> None:
    clock = SetClock(NOW_MS)
    with CableStore.in_memory(identity=ANN.identity, options=StoreOptions(clock=clock)) as store:
        heads = (store.post("a", "hello").hash,) if answers else ()
        for who, at_ms in said:
            if not answers or at_ms >= -TOLERANCE_MS:
                post = (ANN, BOB, CYD, DAN, EVE)[who].text("a", f"{at_ms}", at=NOW_MS + at_ms, links=heads)
                store.ingest([post.raw])
        assert ahead_ms(store) == 0


@pytest.mark.parametrize("beyond_ms", [0, 1])
def test_answers_that_are_too_early_by_the_tolerance_are_not_reported(store: CableStore, beyond_ms: int) -> None:
    question = store.post("a", "question")
    at = question.timestamp_ms - TOLERANCE_MS - beyond_ms
    store.ingest(raws(*(who.text("a", "answer", at=at, links=(question.hash,)) for who in (BOB, CYD))))
    assert ahead_ms(store) == (TOLERANCE_MS + 1) * beyond_ms


def test_one_answer_of_each_user_in_the_channel_counts(store: CableStore, clock: SetClock) -> None:
    """Own answers, texts of other channels and other posts do not count as answers."""
    clock.now_ms = NOW_MS + 2 * HOUR_MS
    question = store.post("a", "what time is it?")
    linked: dict[str, Any] = {"at": clock.now_ms - TOLERANCE_MS, "links": (question.hash,)}
    own = store.post("a", "it is late")
    early = [who.text("a", "ten", at=NOW_MS, links=(question.hash,)) for who in (BOB, CYD)]
    store.ingest(raws(*early, DAN.text("a", "twelve", **linked), EVE.text("b", "twelve", **linked)))
    store.ingest(raws(EVE.post(Join("a"), **linked), Person("fay").post(Join("a"), **linked)))
    assert store.clock_difference() == (2 * HOUR_MS, 2, clock.now_ms)
    clock.now_ms = own.timestamp_ms - TOLERANCE_MS
    assert ahead_ms(store) == 2 * HOUR_MS
    clock.now_ms -= 1  # the clock was corrected since
    assert ahead_ms(store) == 0
