"""When a store was last checked, and the result: `last-check.json` in its folder.

{"format": 1, "at_ms": 1700000000000, "posts": 4, "problems": 0, "signatures": false}
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cablestore.index.check import CheckReport
from cablestore.index.last_records import LastRecord, read_last, write_last

LAST_CHECK: Final = "last-check.json"


class LastCheck(LastRecord, frozen=True, kw_only=True):
    """The last complete check of a store: when it ended, and the numbers of checked posts and of problems.

    `signatures` is True if the signatures of all posts were verified too.
    """

    posts: int
    problems: int
    signatures: bool


def last_check(store: Path) -> LastCheck | None:
    """Return the last complete check of the store in a folder, None if no check is recorded."""
    return read_last(store, LAST_CHECK, LastCheck)


def note_check(store: Path, at_ms: int, report: CheckReport, *, signatures: bool) -> None:
    """Record a complete check, clean or not."""
    check = LastCheck(at_ms=at_ms, posts=report.posts, problems=report.problem_count, signatures=signatures)
    write_last(store, LAST_CHECK, check)
