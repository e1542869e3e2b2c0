"""The command that imports chat logs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import click

from cablestore.cli.common import Output, common_options
from cablestore.importing import ImportReport, find_logs, import_logs
from cablestore.store import CableStore


@click.command("import-irc")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--seed-phrase", default="cablestore", show_default=True, help="What the keys of all nicks are derived from."
)
@click.option("--channel", help="The channel, where neither lines nor folders name it.")
@common_options
def import_irc(path: Path, out: Output, files: tuple[Path, ...], seed_phrase: str, channel: str | None) -> None:
    """Import IRC logs: files, folders or tar archives.

    Give all logs of a channel at once. A second run adds nothing.
    """
    with CableStore.open(path) as store, tempfile.TemporaryDirectory() as scratch:
        report = run_import(store, out, list(files), Path(scratch), seed_phrase, channel)
        tell_import(out, report)


def run_import(
    store: CableStore, out: Output, files: list[Path], scratch: Path, seed_phrase: str, channel: str | None
) -> ImportReport:
    """Import with a progress bar that counts bytes."""
    logs = find_logs(files, scratch, channel)
    with out.progress("importing", sum(log.path.stat().st_size for log in logs)) as progress:
        return import_logs(store, logs, seed_phrase=seed_phrase, progress=progress)


def tell_import(out: Output, report: ImportReport) -> None:
    """Tell what was read and what became of it."""
    if out.as_json:
        out.say(
            "",
            files=report.files,
            lines=report.lines,
            posts=dict(report.posts),
            verdicts=dict(report.verdicts),
            skipped=dict(report.skips.reasons),
            cut=report.skips.cut,
        )
        return
    rows = [{"what": "lines read", "number": report.lines}, {"what": "files read", "number": report.files}]
    rows += [{"what": f"post/{kind}", "number": number} for kind, number in report.posts.most_common()]
    rows += [{"what": f"posts {verdict}", "number": number} for verdict, number in report.verdicts.most_common()]
    rows += [{"what": f"lines skipped: {why}", "number": number} for why, number in report.skips.reasons.most_common()]
    rows += [{"what": "texts cut to the limit", "number": report.skips.cut}] if report.skips.cut else []
    out.table(("what", "number"), rows)


COMMANDS: Final = (import_irc,)
