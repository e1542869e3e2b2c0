"""Names of the files in a community's folder of archives."""

from __future__ import annotations

from typing import Final

DATA: Final = "data"
"""Stored archives, back to back."""
INDEX: Final = "index"
"""Which archives there are."""
