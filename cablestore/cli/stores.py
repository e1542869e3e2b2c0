"""Opening stores with the views of installed packages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from cablestore.cli.output import Output
from cablestore.protocol.dialect import Dialect
from cablestore.store.store import CableStore
from cablestore.views.installed import installed_catalog


def open_store(path: Path, *, create: bool = True, dialect: Dialect | None = None) -> CableStore:
    """Open a store to write to it. Raises MissingViewError if it has views that are not installed."""
    return CableStore.open(path, create=create, dialect=dialect, catalog=installed_catalog())


def open_upgraded(path: Path) -> CableStore:
    """Open a store to write to it, made if it is missing.

    Views that another version built are rebuilt first, with a progress bar.
    """
    with ExitStack() as stack:

        @cache
        def bar() -> Callable[[int], None]:
            return stack.enter_context(Output(as_json=False).progress("rebuilding", None))

        def advance(posts: int) -> None:
            bar()(posts)

        return CableStore.open(path, upgrade=True, progress=advance, catalog=installed_catalog())


def open_to_read(path: Path, *, read_only: bool = False) -> CableStore:
    """Open a store to read it, even if it has views that are not installed.

    What would write then raises MissingViewError. With `read_only` nothing is written into its folder.
    """
    return CableStore.open(
        path, create=False, catalog=installed_catalog(), allow_missing_views=True, read_only=read_only
    )
