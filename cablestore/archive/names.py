"""Names of the files in a community's folder of archives."""

from __future__ import annotations

from typing import Final

DATA: Final = "data"
"""Concatenated archives."""
INDEX: Final = "index"
"""Index of the archives."""
