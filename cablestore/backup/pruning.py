"""Selecting the restore points that a run of `backup` keeps, and removing other points with their pieces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from cablestore.backup.keep import KeepRule
from cablestore.backup.manifest import KEY_FILE, MANIFEST, BackupManifest, damaged_files, own_sizes
from cablestore.backup.points import EarlierPoints
from cablestore.files import ObjectFolder, sync_folder

_ADJUSTED_MS: Final = 60_000
"""If the clock was set back by less than this, the new point is dated 1 ms after the last point."""


@dataclass(frozen=True, slots=True)
class Points:
    """Restore points of a backup to keep beside the new point. They are selected before the new point is written."""

    made_ms: int
    """Time of the new point. Each point has a different time."""
    keep: str | None
    """Rule that selects points, or None without a rule."""
    kept: tuple[BackupManifest, ...]
    earlier: EarlierPoints
    others: int
    """Number of points that are not kept."""

    @classmethod
    def read(
        cls,
        folder: ObjectFolder,
        last: BackupManifest | None,
        now_ms: int,
        keep: str | None,
        is_own: Callable[[BackupManifest], bool],
    ) -> Self:
        """Read the points of a backup, and select those that the rule `keep` keeps, by default the rule of `last`.

        `last` is the newest point, or None if it is missing. `is_own` returns True for points that the store wrote.
        Anyone may have added other points, so these do not replace points of the store.

        Without a rule, a backup has only one point, which the new point replaces. If there are other points, the rule
        was lost with the newest point, and all points are kept.
        """
        earlier = EarlierPoints.read(folder, last)
        points = [*(point.manifest for point in earlier.points), *([] if last is None else [last])]
        taken = {point.made_ms for point in points}
        made_ms = max(now_ms, 1)
        if last is not None and 0 <= last.made_ms - made_ms < _ADJUSTED_MS:
            made_ms = last.made_ms
        while made_ms in taken:
            made_ms += 1
        rule = keep or (None if last is None else last.keep)
        if rule is not None:
            kept_of = KeepRule.parse(rule).kept
            own = {point.made_ms for point in points if is_own(point)}
            times, own_times = kept_of({*taken, made_ms}, made_ms), kept_of({*own, made_ms}, made_ms)
            kept = tuple(p for p in points if p.made_ms in (own_times if p.made_ms in own else times))
        else:
            kept = tuple(points) if earlier.points or earlier.problems else ()
        return cls(made_ms, rule, kept, earlier, len(points) - len(kept))

    def keeps(self, point: BackupManifest) -> bool:
        """Return True if `point` remains beside the new point."""
        return point in self.kept

    def remove_others(self, folder: ObjectFolder, newest: BackupManifest) -> int:
        """Remove the points that are not kept, then the files that no point lists. Return the number of removed points.

        If a point is unreadable, nothing is removed, because its pieces are unknown.
        """
        if self.earlier.problems:
            return 0
        points = (*self.kept, newest)
        manifests = {MANIFEST, *(point.point_file for point in self.kept)}
        pieces = {piece.file for point in points for piece in point.pieces}
        key = {KEY_FILE} if any(point.key for point in points) else set()
        unused = [name for name in own_sizes(folder) if name not in manifests | pieces | key]
        outdated = [name for name in unused if name.endswith(".json")]
        for name in outdated:
            folder.remove(name)
        if outdated and folder.is_local:
            sync_folder(folder.path)  # after a power failure, a point must not remain without its pieces
        for name in unused:
            folder.remove(name)
        return self.others

    def damaged(self, folder: ObjectFolder, sizes: Mapping[str, int]) -> int:
        """Return the number of earlier points that are unreadable or lack files.

        `sizes` maps the names of the files in the folder to their sizes in bytes.
        """
        return len(self.earlier.problems) + sum(bool(damaged_files(folder, point, sizes)) for point in self.kept)
