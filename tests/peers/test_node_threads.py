"""Parts of the threads of a node: the measured time of their work, and the snapshots that answers share."""

from __future__ import annotations

import pytest
from peering import memory
from people import ANN, raws

from cablestore.errors import StoreClosedError
from cablestore.peers.threads import Stopwatch


def test_short_work_is_measured_by_the_clock_and_longer_work_by_its_processor_time() -> None:
    now_s, used_s, queries = [10.0], [1.0], [0]

    def spent() -> float:
        queries[0] += 1
        return used_s[0]

    watch = Stopwatch(lambda: now_s[0], spent)

    def measured(passed_s: float, worked_s: float) -> float:
        began_s = watch.begin()
        now_s[0] += passed_s
        used_s[0] += worked_s
        return round(watch.spent_s(began_s), 6)

    assert measured(0.0004, 0.0001) == 0.0004
    assert queries == [1]
    assert measured(1.0, 0.25) == 0.2501  # the short work since the last query is part of it
    assert measured(1.0, 0.5) == 0.5
    assert measured(0.25, 0.5) == 0.25  # as far as the clocks agree
    assert queries == [4]


def test_a_shared_snapshot_is_closed_at_the_end_of_its_last_use() -> None:
    with memory("a", posts=[ANN.text("default", "x")]) as store:
        with store.parts.engine.reading() as reader:
            assert reader.keep() is reader
            assert reader.keep() is reader
            store.ingest(raws(ANN.text("default", "y")))
        for _ in range(2):
            assert len(list(reader.posts())) == 1
            reader.close()
        with pytest.raises(StoreClosedError):
            list(reader.posts())
