"""A page and the changes after its cursor yield the current state, even with concurrent writes."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from people import ANN
from screens import Screen, follow
from turns import Turn, ann_hides_messages, ann_moderates, ann_writes, others_write, some_is_lost

from cablestore import CableStore, limits
from cablestore.errors import ArgumentError

TURNS = 20
SCREENS = 12


@pytest.mark.parametrize(
    ("moderate", "read_at_once"), [(ann_hides_messages, 7), (ann_moderates, limits.MAX_EVENTS_READ)]
)
def test_a_page_with_the_changes_after_it_equals_the_present_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moderate: Turn, read_at_once: int
) -> None:
    monkeypatch.setattr(limits, "MAX_EVENTS_READ", read_at_once)
    with CableStore.open(tmp_path / "store", identity=ANN.identity) as store:
        store.post("default", "first")

        def write(turn: Turn) -> None:
            chance = random.Random(turn.__name__)
            for _ in range(TURNS):
                with suppress(ArgumentError):  # the local user dropped the channel, or the target was removed
                    turn(store, chance)

        screens: list[Screen] = []
        with ThreadPoolExecutor() as pool:
            running = [pool.submit(write, turn) for turn in (ann_writes, others_write, some_is_lost, moderate)]
            while not all(each.done() for each in running):
                if len(screens) < SCREENS:
                    with store.snapshot() as state:
                        screens.append(Screen.of(state))
                for screen in screens[::3]:  # the others read all changes at the end
                    follow(screen, store)
            for each in running:
                each.result()
        store.moderation.sweep()
        with store.snapshot() as state:
            now = Screen.of(state)
        for screen in screens:
            follow(screen, store)
            assert screen.shown() == now.shown()
            assert screen.cursor == now.cursor
        assert sum(screen.reported for screen in screens) > TURNS
        assert store.check().problems == []


@pytest.mark.thorough
@pytest.mark.parametrize("moderate", [ann_hides_messages, ann_moderates])
def test_each_change_of_the_screen_is_reported(store: CableStore, moderate: Turn) -> None:
    chance = random.Random(moderate.__name__)
    store.import_identity(ANN.identity)
    with store.snapshot() as state:
        screen = Screen.of(state)
    for _ in range(8 * TURNS):
        with suppress(ArgumentError):
            chance.choice((ann_writes, others_write, some_is_lost, moderate))(store, chance)
        follow(screen, store)
        with store.snapshot() as state:
            assert screen.shown() == Screen.of(state).shown()
