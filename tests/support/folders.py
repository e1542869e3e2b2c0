"""Paths of the folders that tests use."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SUPPORT: Final = Path(__file__).parent
"""Modules that tests share, and programs that tests start."""
TESTS: Final = SUPPORT.parent
KNOWN_ANSWERS: Final = TESTS / "vectors"
"""Vectors of specifications and of other implementations."""
ROOT: Final = TESTS.parent
"""The checkout."""
