"""Warning of the client about a possibly wrong clock: it appears once, and all else is displayed as usual."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from people import BOB, CYD, raws
from serving import HERE, Served
from terminals import CTRL_Q, Screen, Start

from cablestore import CableStore


@pytest.mark.thorough
@pytest.mark.parametrize("is_served", [False, True])
def test_the_client_warns_of_a_clock_that_is_slow(
    tmp_path: Path, start_chat: Start, serving: type[Served], is_served: bool
) -> None:
    """The clock is an hour slow, as after a missed change to summer time. The next typed line clears the warning."""
    later_ms = time.time_ns() // 1_000_000 + 3_600_000
    folder = tmp_path / "store"
    with CableStore.open(folder) as store:
        store.ingest(
            raws(*(person.text("default", f"from {at}", at=later_ms + at) for at, person in enumerate((BOB, CYD))))
        )
    if is_served:
        assert serving(folder, "--listen", HERE).address
    client = start_chat("-s", str(folder))
    sees = Screen(client)
    sees.shows("from 1")
    sees.shows("The clock of this machine may be wrong")
    client.type("/names")
    sees.shows("2 members of #default")
    client.type("so it is")
    sees.shows("so it is")
    assert "may be wrong" not in sees.text
    assert client.end(CTRL_Q) == 0
