"""What the commands print with: rich, of the extra cablestore[cli], or plain output where it is not installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING or find_spec("rich"):
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.table import Table
    from rich.text import Text
else:
    from cablestore.cli.plain import Column, Console, Progress, Table, Text

    BarColumn = DownloadColumn = MofNCompleteColumn = TextColumn = Column
    TimeElapsedColumn = TimeRemainingColumn = TransferSpeedColumn = Column

__all__ = [
    "BarColumn",
    "Console",
    "DownloadColumn",
    "MofNCompleteColumn",
    "Progress",
    "Table",
    "Text",
    "TextColumn",
    "TimeElapsedColumn",
    "TimeRemainingColumn",
    "TransferSpeedColumn",
]
