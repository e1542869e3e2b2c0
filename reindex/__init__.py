"""Spark jobs for histories too large for one process: reindexing a store, making archives, and tables for other tools."""

if __name__ != "cablestore.reindex":
    raise ImportError(f"this package is cablestore.reindex and cannot be imported as {__name__!r}")

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cablestore.reindex.settled import Tables, tables
    from cablestore.reindex.source import register

__all__ = ["Tables", "register", "tables"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cablestore.reindex import settled, source  # noqa: PLC0415 - they need PySpark, which other modules do without

    return getattr(source if name == "register" else settled, name)
