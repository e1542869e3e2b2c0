"""Spark jobs for histories too large for one process: reindexing a store, making archives, and tables for other tools."""

if __name__ != "cablestore.reindex":
    raise ImportError(f"this package is cablestore.reindex and cannot be imported as {__name__!r}")

from typing import TYPE_CHECKING

from cablestore.lazy import loader

if TYPE_CHECKING:
    from cablestore.reindex.settled import Tables, tables
    from cablestore.reindex.source import register

__all__ = ["Tables", "register", "tables"]

__getattr__ = loader(__name__, {"settled": "Tables tables", "source": "register"})
"""They need PySpark, which other modules of the package do without."""
