"""What the commands print with: rich, of the extra cablestore[cli], or plain output where it is not installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING or find_spec("rich"):
    from rich.cells import cell_len
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.table import Table
    from rich.text import Text
else:
    from cablestore.cli.plain import AlignedTable as Table
    from cablestore.cli.plain import NoColumn, cell_len
    from cablestore.cli.plain import NoProgress as Progress
    from cablestore.cli.plain import PlainConsole as Console
    from cablestore.cli.plain import UnstyledText as Text

    BarColumn = DownloadColumn = MofNCompleteColumn = ProgressColumn = TextColumn = NoColumn
    TimeElapsedColumn = TimeRemainingColumn = TransferSpeedColumn = NoColumn
    TaskID = int

__all__ = [
    "BarColumn",
    "Console",
    "DownloadColumn",
    "MofNCompleteColumn",
    "Progress",
    "ProgressColumn",
    "Table",
    "TaskID",
    "Text",
    "TextColumn",
    "TimeElapsedColumn",
    "TimeRemainingColumn",
    "TransferSpeedColumn",
    "cell_len",
]
