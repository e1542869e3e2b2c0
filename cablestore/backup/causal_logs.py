"""Reading and creating the causal logs of a store.

The package `cablestore.sds` needs an extra, so it is imported only if necessary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path

from cablestore.extras import naming_extras
from cablestore.index.database import Row
from cablestore.index.folder import CAUSAL_LOGS


@contextmanager
def causal_log_rows(path: Path, *, read_only: bool = False) -> Iterator[Iterable[Row]]:
    """Yield the rows of a store's causal logs, if any. Raises StoreLockedError if another process has the logs open."""
    if not (path / CAUSAL_LOGS).is_dir():
        yield ()
        return
    with naming_extras("causal logs need"):
        from cablestore.sds.log import CausalLog  # noqa: PLC0415 - an extra
    opened = CausalLog.open_here(path)
    log = CausalLog.open(path, create=False, read_only=read_only) if opened is None else nullcontext(opened)
    with log as present, present.rows() as rows:
        yield rows


def make_causal_logs(path: Path, rows: Iterable[list[Row]]) -> None:
    """Create the causal logs of a store from their rows, if any."""
    blocks = iter(rows)
    first = next(blocks, None)
    if first is None:
        return
    with naming_extras("causal logs need"):
        from cablestore.sds.log import CausalLog  # noqa: PLC0415 - an extra
    CausalLog.make(path, chain(first, chain.from_iterable(blocks)))
