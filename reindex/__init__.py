"""Spark jobs for histories too large for one process: reindexing a store, and making archives."""

if __name__ != "cablestore.reindex":
    raise ImportError(f"this package is cablestore.reindex and cannot be imported as {__name__!r}")
