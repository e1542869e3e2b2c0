"""Limits of the page that shows a store."""

from __future__ import annotations

from typing import Final

MAX_LIVE_PAGES: Final = 64
"""Maximum number of open pages to which changes are sent. Each keeps a connection open; a browser opens at most six."""
