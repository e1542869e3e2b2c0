"""The command `import-irc`: import chat logs."""

from __future__ import annotations

from datetime import date, datetime, tzinfo
from pathlib import Path
from typing import Final

import click

from cablestore.cli.options import common_options
from cablestore.cli.output import Output, safe
from cablestore.cli.stores import open_store
from cablestore.cli.values import PathValue, time_zone
from cablestore.irc.importer import ImportReport, LogFile, find_logs, import_logs
from cablestore.store.store import CableStore


@click.command("import-irc")
@click.argument("files", nargs=-1, required=True, type=PathValue())
@click.option(
    "--seed-phrase",
    default="cablestore",
    show_default=True,
    help="Phrase from which the keys of all nicks are derived.",
)
@click.option("--channel", help="Name of the channel, if neither lines nor paths name it, or to override it.")
@click.option(
    "--date",
    "day",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="YYYY-MM-DD",
    help="Day of the log, if neither lines nor paths name it.",
)
@click.option(
    "--timezone",
    "zone",
    type=time_zone,
    default="UTC",
    show_default=True,
    metavar="NAME",
    help="Time zone of times that name none.",
)
@common_options
def import_irc(
    path: Path,
    out: Output,
    files: tuple[Path, ...],
    seed_phrase: str,
    channel: str | None,
    day: datetime | None,
    zone: tzinfo,
) -> None:
    """Import IRC logs: files, folders, tar and zip archives.

    Files may be compressed. Logs of any client that docs/how-to/import-logs.md names are understood. Give all logs of a
    channel at once. A second run adds nothing.
    """
    with open_store(path) as store:
        logs = find_logs(files, channel=channel, day=_day(day), zone=zone)
        tell_import(out, run_import(store, out, logs, seed_phrase))


def _day(moment: datetime | None) -> date | None:
    return None if moment is None else moment.date()


def run_import(store: CableStore, out: Output, logs: list[LogFile], seed_phrase: str) -> ImportReport:
    """Import with a progress bar that counts bytes."""
    with out.progress("importing", sum(log.size_bytes for log in logs)) as progress:
        return import_logs(store, logs, seed_phrase=seed_phrase, progress=progress)


def tell_import(out: Output, report: ImportReport) -> None:
    """Print what was read and what it became."""
    if out.as_json:
        out.say(
            "",
            files=report.files,
            lines=report.lines,
            posts=dict(report.posts),
            verdicts=dict(report.verdicts),
            skipped=dict(report.skips.reasons),
            not_understood=report.skips.examples,
            cut=report.skips.cut,
        )
        return
    rows = [{"what": "lines read", "number": report.lines}, {"what": "files read", "number": report.files}]
    rows += [{"what": f"post/{kind}", "number": number} for kind, number in report.posts.most_common()]
    rows += [{"what": f"posts {verdict}", "number": number} for verdict, number in report.verdicts.most_common()]
    rows += [{"what": f"lines skipped: {why}", "number": number} for why, number in report.skips.reasons.most_common()]
    rows += [{"what": "texts cut to the limit", "number": report.skips.cut}] if report.skips.cut else []
    out.table(("what", "number"), rows)
    for line in report.skips.examples:
        out.say(f"not understood, for example: {safe(line)}")


COMMANDS: Final = (import_irc,)
