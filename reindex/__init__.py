"""Spark jobs for large histories: reindexing a store, creating archives, and tables for other tools.

`reindex` builds the next generation of a store and returns a `ReindexReport`. `verify_store` compares a store with the
rows that Spark derives from its posts. `tables` and `register` read exports in a Spark session. `SparkOptions`,
`ArchiveSource` and `Drops` are arguments of these functions.
"""

if __name__ != "cablestore.reindex":
    raise ImportError(f"this package is cablestore.reindex and cannot be imported as {__name__!r}")

from typing import TYPE_CHECKING

from cablestore.lazy import loader

if TYPE_CHECKING:
    from cablestore.reindex.compare import Comparison, ViewDifference, verify_store
    from cablestore.reindex.inputs import ArchiveSource
    from cablestore.reindex.job import Drops
    from cablestore.reindex.new_generation import ReindexReport, reindex
    from cablestore.reindex.settled import Tables, tables
    from cablestore.reindex.source import register
    from cablestore.reindex.stages import DerivedRows, SparkOptions

__all__ = [
    "ArchiveSource",
    "Comparison",
    "DerivedRows",
    "Drops",
    "ReindexReport",
    "SparkOptions",
    "Tables",
    "ViewDifference",
    "register",
    "reindex",
    "tables",
    "verify_store",
]

__getattr__ = loader(
    __name__,
    {
        "compare": "Comparison ViewDifference verify_store",
        "inputs": "ArchiveSource",
        "job": "Drops",
        "new_generation": "ReindexReport reindex",
        "settled": "Tables tables",
        "source": "register",
        "stages": "DerivedRows SparkOptions",
    },
)
"""Names of this package, loaded on first use because some modules need PySpark."""
