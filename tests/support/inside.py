"""The inside of an open store: for rows that the API cannot write, and for events between two steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from cablestore import CableStore
from cablestore.index.database import Database
from cablestore.index.engine import Engine
from cablestore.search.table import IndexTable


def engine_of(store: CableStore) -> Engine:
    return store._engine


def live_database(store: CableStore) -> Database:
    return engine_of(store)._database


def exchange_database(store: CableStore, database: Database) -> None:
    engine_of(store)._database = database


def write_rows(store: CableStore, rows: Mapping[bytes, bytes | None]) -> None:
    """Write rows directly to the database, as damage or another version would."""
    live_database(store).write(dict(rows), sync=False)


def reload(store: CableStore) -> None:
    """Read sizes and numbers as on the next start."""
    engine_of(store)._load()


@contextmanager
def index_table(store: CableStore) -> Iterator[IndexTable]:
    with store._searcher._index._locked() as table:
        yield table
