"""The report of a sync adds the counts of its parts."""

from __future__ import annotations

from dataclasses import asdict

from cablestore.peers.report import ReconcileReport, SyncReport


def test_the_counts_of_parts_are_added() -> None:
    """The sizes and the duration belong to the whole sync."""
    whole = SyncReport(channels=1, posts=2, refused=3, early=4, missing=5, unstored=6, seconds=7.0)
    whole.add(SyncReport(10, 20, 30, 40, 50, 60, 70, 80, 90.0))
    assert whole == SyncReport(11, 22, 33, 44, 55, 66, 0, 0, 7.0)
    whole.add(SyncReport())
    assert whole == SyncReport(11, 22, 33, 44, 55, 66, 0, 0, 7.0)


def test_a_new_report_has_no_counts() -> None:
    for report in (SyncReport(), ReconcileReport()):
        assert not any(asdict(report).values()), report
    assert ReconcileReport(posts_sent=2, posts_received=3).moved == 5
