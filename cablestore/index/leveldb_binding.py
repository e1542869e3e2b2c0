"""plyvel, the binding to LevelDB.

On Python 3.13 and later, it is plyvel-next, a fork with wheels for Linux and macOS.
"""

from __future__ import annotations

try:
    import plyvel
except ModuleNotFoundError:
    import plyvel_next as plyvel

__all__ = ["plyvel"]
