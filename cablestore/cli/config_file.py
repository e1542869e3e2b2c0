"""User settings files: TOML in UTF-8, or in UTF-16 with a byte order mark."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import click

from cablestore.files import read_small, text_of


def read_tables(path: Path) -> dict[str, Any]:
    """Return the tables of a file. Raises UsageError if it cannot be read or is not TOML."""
    try:
        return tomllib.loads(text_of(read_small(path)))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise click.UsageError(f"cannot read {path}: {reason}") from None
