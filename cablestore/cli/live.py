"""Tables that follow the state of a node: drawn again when it changes, and each second for rates and durations."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from rich.console import RenderableType
from rich.live import Live

from cablestore.cli.output import Output
from cablestore.remote.node import WatchedNode

_REDRAW_EVERY_S: Final = 1.0
"""Interval of updates, because rates and durations change without an event."""


def follow(node: WatchedNode, out: Output, show: Callable[[], RenderableType | None]) -> None:
    """Call `show` now, after changes of the node, and each second, until Ctrl-C or the end of the node.

    On a terminal, each result replaces the previous result. Otherwise, `show` prints and returns None.
    """
    changed = threading.Event()
    unwatch = node.watch(changed.set)
    try:
        if not out.draws:
            while out.has_reader():
                show()
                _wait(changed)
            return
        with Live(show(), console=out.console, auto_refresh=False) as live:
            while True:
                _wait(changed)
                live.update(show() or "", refresh=True)
    finally:
        unwatch()


def _wait(changed: threading.Event) -> None:
    changed.wait(_REDRAW_EVERY_S)
    changed.clear()
