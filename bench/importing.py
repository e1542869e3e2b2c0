"""Import of IRC logs: posts per second, including signing. `importing.py LOGS...`, by default the package's sample."""

from __future__ import annotations

import resource
import sys
import tempfile
from pathlib import Path

from common import print_result, refusing, seconds

import cablestore
from cablestore import CableStore
from cablestore.irc.importer import ImportReport, import_logs
from cablestore.irc.survey import find_logs

SAMPLE = Path(cablestore.__file__).parent / "sample"


def main() -> None:
    """Import twice."""
    paths = [Path(name) for name in sys.argv[1:]] or [SAMPLE]
    with tempfile.TemporaryDirectory() as folder, CableStore.open(Path(folder) / "store") as store:
        with refusing():
            logs = find_logs(paths)
        report = ImportReport()

        def run() -> None:
            nonlocal report
            report = import_logs(store, logs, seed_phrase="bench")

        elapsed = seconds(run)
        posts = report.posts.total()
        print(
            f"# import: {report.files:,} files, {report.lines:,} lines, {posts:,} posts, skipped {dict(report.skips.reasons)}"
        )
        print_result(
            "first run, signing included", f"{posts / elapsed:,.0f} posts/s", "at least 5,000", posts / elapsed >= 5000
        )
        elapsed = seconds(run)
        assert report.verdicts.keys() == {"duplicate"}
        print_result("second run, all known", f"{posts / elapsed:,.0f} posts/s", "adds nothing")
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        print_result("peak resident memory, mapped files included", f"{peak_mb:.0f} MB", "")


if __name__ == "__main__":
    main()
