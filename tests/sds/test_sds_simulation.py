"""Fifty members over a network with losses, reordering, two partitions and crashes: all logs end equal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sds_attackers import ATTACKS, Flood, FloodedSimulation
from sds_network import QUICK, Conditions, Simulation
from stores import scratch_folder

from cablestore.index.database import Database
from cablestore.index.leveldb import LevelDB
from cablestore.sds.settings import Settings

FIFTY = Conditions(participants=50, messages=60, loss=0.3, partitions=((10, 25), (35, 50)), kills=50)


@pytest.mark.thorough
def test_fifty_members_end_with_equal_logs() -> None:
    result = Simulation(replace(FIFTY, messages=40), seed=1).run()
    counts = result.counts
    assert counts["kills"] > 30
    assert counts["send repair"] > 0
    assert counts["waiting"] > 100
    assert result.sent == 40


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("tens", range(100))
def test_fifty_members_end_with_equal_logs_for_a_thousand_seeds(tens: int) -> None:
    for seed in range(10 * tens, 10 * tens + 10):
        Simulation(FIFTY, seed).run()


@pytest.mark.parametrize("seed", range(3))
def test_members_with_a_store_for_retrievals_end_with_equal_logs(seed: int) -> None:
    conditions = Conditions(participants=8, loss=0.5, partitions=((5, 40),), kills=8, store=True)
    with_store = Simulation(conditions, seed).run()
    assert with_store.counts["retrieved"] > 0


@pytest.mark.parametrize("attack", ATTACKS)
def test_members_beside_attackers_end_with_equal_logs(attack: str) -> None:
    """A flood prevents neither deliveries nor repairs: all honest logs become equal in the usual time."""
    conditions = Conditions(participants=4, messages=12, seconds=20, loss=0.4, most_seconds=200)
    flood = Flood(attackers=3, attacks=(attack,), every_ms=2_000, named=24)
    assert FloodedSimulation(conditions, 1, flood).run().sent == 12


def test_members_on_leveldb_end_with_equal_logs() -> None:
    with scratch_folder() as folder:
        opened: list[LevelDB] = []

        def database() -> Database:
            opened.append(LevelDB(Path(folder) / str(len(opened)), create=True))
            return opened[-1]

        try:
            Simulation(Conditions(participants=4, messages=25, kills=6), 3, database).run()
        finally:
            for each in opened:
                each.close()


@pytest.mark.thorough
def test_members_with_default_settings_end_with_equal_logs() -> None:
    """Repairs after half a minute to two minutes, resends after half a minute: slower, with the same result."""
    settings = replace(Settings(), filter=QUICK.filter)
    Simulation(Conditions(participants=6, settings=settings, partitions=((10, 50),), kills=6), 5).run()


CONDITIONS = st.builds(
    Conditions,
    participants=st.integers(2, 5),
    messages=st.integers(1, 25),
    seconds=st.sampled_from([1, 20]),
    loss=st.floats(0, 0.7),
    doubled=st.floats(0, 1),
    delay_ms=st.sampled_from([(0, 0), (1, 50), (0, 10_000)]),
    partitions=st.sampled_from([(), ((0, 15),), ((3, 8), (8, 13))]),
    kills=st.integers(0, 6),
    store=st.booleans(),
)


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(CONDITIONS, st.integers(0, 2**32))
def test_members_of_any_network_end_with_equal_logs(conditions: Conditions, seed: int) -> None:
    Simulation(conditions, seed).run()
