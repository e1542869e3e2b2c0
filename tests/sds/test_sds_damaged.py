"""Damaged causal logs: a lost or damaged row never raises another error than the one with advice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sds_people import SMALL, START_MS, Member, changed, content

from cablestore.errors import CorruptStoreError
from cablestore.index.memory import MemoryDB
from cablestore.index.packing import pack
from cablestore.sds.log import CausalLog
from cablestore.sds.message import HistoryEntry
from cablestore.sds.repair import RepairParameters
from cablestore.sds.settings import Backoff

SETTINGS = replace(SMALL, repair=RepairParameters(1_000, 4_000), repair_backoff=Backoff(4_000, 60_000))
ADVICE = "Remove the folder `sds` of the store"


def written() -> dict[bytes, bytes]:
    """Return the rows of a log with messages in all states, and with unconfirmed effects."""
    ann = Member("ann", SETTINGS)
    ann.channel.send(b"own", START_MS)
    ann.receives(content("a"), content("c", "b", at=2), content("d", "c", at=3))
    ann.receives(changed(content("ask", sender="bob"), content=None, repair_request=(HistoryEntry("a"),)))
    with ann.log.rows() as rows:
        return dict(rows)


def used(rows: dict[bytes, bytes]) -> None:
    """Use each part of a log."""
    database = MemoryDB()
    database.write(dict(rows), sync=False)
    ann = Member("ann", SETTINGS, CausalLog.in_memory(database))
    assert ann.log.status()
    ann.effects()
    ann.tick(10_000)
    ann.receives(content("b", at=1))
    ann.says("again")
    ann.tick(10**7)
    ann.texts()
    list(ann.channel.missing())


def test_a_log_that_lost_any_row_works_or_reports_the_damage() -> None:
    whole, reports = written(), []
    used(whole)
    for key in whole:
        try:
            used({each: row for each, row in whole.items() if each != key})
        except CorruptStoreError as error:
            reports.append(str(error))
    assert len(reports) > 5
    assert all(ADVICE in each for each in reports)


@pytest.mark.parametrize("table", [b"ids", b"state"])
@pytest.mark.parametrize("damaged", [b"", b"\x00", b"\xff" * 40])
def test_damaged_states_are_reported(table: bytes, damaged: bytes) -> None:
    whole = written()
    keys = [key for key in whole if key.split(b"!")[2] == table]
    assert keys
    for key in keys:
        with pytest.raises(CorruptStoreError, match=ADVICE):
            used({**whole, key: damaged})


def test_an_effect_of_a_newer_version_is_reported() -> None:
    whole = written()
    last = max(key for key in whole if key.split(b"!")[2] == b"outbox")
    with pytest.raises(CorruptStoreError, match="Use the newer version of cablestore"):
        used({**whole, last: pack([99, b""])})
