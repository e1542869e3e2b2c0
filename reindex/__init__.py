"""Work on histories too large for one process."""

if __name__ != "cablestore.reindex":
    raise ImportError(f"this package is cablestore.reindex and cannot be imported as {__name__!r}")
