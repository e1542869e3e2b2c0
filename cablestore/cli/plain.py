"""Output without rich: the same lines and tables, with no colours, wrapping or progress bars.

Its classes have what the commands use of those of rich. `terminal` chooses between the two.
"""

from __future__ import annotations

import sys
import unicodedata
from typing import IO, Any, Self

_REMOVED = dict.fromkeys((7, 8, 11, 12, 13))
"""Characters that rich removes from text, too: bell, backspace, vertical tab, form feed, carriage return."""
_BETWEEN_COLUMNS = "  "
_TAB_WIDTH = 8
_NO_WIDTH = frozenset({"Mn", "Me", "Cf"})


class UnstyledText:
    """Text whose style is not shown."""

    def __init__(self, text: str = "", **_: Any) -> None:
        self.plain = text.translate(_REMOVED)

    def append(self, text: str, **_: Any) -> Self:
        """Add text at the end."""
        self.plain += text.translate(_REMOVED)
        return self

    def __str__(self) -> str:
        return self.plain


class AlignedTable:
    """Rows in aligned columns. Options of how they look are not used."""

    def __init__(self, **_: Any) -> None:
        self._columns: list[tuple[str, bool]] = []
        self._rows: list[list[str]] = []

    def add_column(self, name: str, *, justify: str = "left", **_: Any) -> None:
        """Add a column with this heading."""
        self._columns.append((name, justify == "right"))

    def add_row(self, *cells: UnstyledText) -> None:
        """Add a row with a cell for each column."""
        self._rows.append([str(cell) for cell in cells])

    def __str__(self) -> str:
        rows = [[name for name, _ in self._columns], *self._rows]
        widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(_BETWEEN_COLUMNS.join(map(self._aligned, row, range(len(row)), widths)) for row in rows)

    def _aligned(self, cell: str, column: int, width: int) -> str:
        space = " " * (width - cell_len(cell))
        return space + cell if self._columns[column][1] else cell + space


def cell_len(text: str) -> int:
    """Return the number of columns that a terminal shows the text in."""
    return sum(map(_columns_of, text))


def _columns_of(character: str) -> int:
    if unicodedata.category(character) in _NO_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _with_spaces(line: str) -> str:
    """Return the line with spaces instead of tabs, which rich does, too."""
    found, *rest = line.split("\t")
    for part in rest:
        found += " " * (_TAB_WIDTH - cell_len(found) % _TAB_WIDTH) + part
    return found


class PlainConsole:
    """File to print to."""

    color_system = None
    no_color = True
    is_terminal = False
    """Whether output is made for a terminal. It never is: here, everything is printed as into a file."""

    def __init__(
        self,
        *,
        file: IO[str] | None = None,
        stderr: bool = False,
        quiet: bool = False,
        width: int | None = None,
        **_: Any,
    ) -> None:
        self._file = file
        self._is_stderr = stderr
        self._is_quiet = quiet
        self.width = width or 0

    @property
    def file(self) -> IO[str]:
        """The file that was given, or else what is standard output or error at this moment."""
        return self._file or (sys.stderr if self._is_stderr else sys.stdout)

    def print(self, *objects: object) -> None:
        """Print the objects as a line."""
        if not self._is_quiet:
            print("\n".join(map(_with_spaces, " ".join(map(str, objects)).split("\n"))), file=self.file, flush=True)


class NoColumn:
    """Part of a progress bar, which is not shown."""

    def __init__(self, *_: Any) -> None:
        pass


class NoProgress:
    """Progress bar that is not shown."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def start(self) -> None:
        """Show nothing."""

    def stop(self) -> None:
        """End."""

    def add_task(self, *_: Any, **__: Any) -> int:
        """Return a number for something that makes progress."""
        return 0

    def advance(self, *_: Any) -> None:
        """Show nothing."""

    def update(self, *_: Any, **__: Any) -> None:
        """Show nothing."""
