"""The command `import-irc`: import chat logs."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from datetime import date, datetime, tzinfo
from functools import partial
from pathlib import Path
from typing import Final

import click

from cablestore.cli.options import common_options, stored_channel
from cablestore.cli.output import Output, safe
from cablestore.cli.stores import open_store, or_connect
from cablestore.cli.values import ParamType, PathValue, time_zone
from cablestore.irc.importer import ImportReport, import_logs, names_in
from cablestore.irc.survey import MOST_NOT_UNDERSTOOD, LogFile, Options, Survey, survey
from cablestore.store.store import CableStore

_SHOWN_FILES: Final = 3


class _Encoding(ParamType[str]):
    """Name of a text encoding that Python supports."""

    name = "NAME"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            "".encode(codecs.lookup(value).name)
        except (LookupError, ValueError):
            self.fail(f"unknown encoding: {value!r}. Use a name such as cp1251, iso8859-2 or utf-16", param, ctx)
        return value


@click.command("import-irc")
@click.argument("files", nargs=-1, required=True, type=PathValue())
@click.option(
    "--seed-phrase",
    default="cablestore",
    show_default=True,
    help="Phrase from which the keys of all nicks are derived.",
)
@click.option("--channel", help="Name of the channel. Overrides the name in lines and paths.")
@click.option(
    "--date",
    "day",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="YYYY-MM-DD",
    help="Day of the log, if neither lines nor paths contain it.",
)
@click.option(
    "--timezone",
    "zone",
    type=time_zone,
    default="UTC",
    show_default=True,
    metavar="NAME",
    help="Time zone of times without a zone.",
)
@click.option(
    "--encoding",
    type=_Encoding(),
    help="Encoding of lines that are not UTF-8. By default it is detected for each file.",
)
@click.option("--queries", is_flag=True, help="Also import private conversations: all members can then read them.")
@click.option("--lenient", is_flag=True, help="Import logs even if more than 5% of the lines cannot be parsed.")
@common_options
def import_irc(
    path: Path,
    out: Output,
    files: tuple[Path, ...],
    seed_phrase: str,
    channel: str | None,
    day: datetime | None,
    zone: tzinfo,
    encoding: str | None,
    queries: bool,
    lenient: bool,
) -> int:
    """Import IRC logs: files, folders, tar and zip archives.

    Files may be compressed. docs/how-to/import-logs.md lists the supported clients. Lines that were imported before,
    from this or another log, are skipped. Private conversations are left out. Exit status 1 if a file is not a log,
    or contains an invalid date or too many lines that cannot be parsed.

    Example: `cablestore import-irc logs --timezone Europe/Berlin`
    """
    with or_connect(partial(open_store, path), path) as store:
        channel = None if channel is None else stored_channel(store, channel)
        options = Options(channel, _day(day), zone, encoding, with_queries=queries, is_lenient=lenient)
        found = survey(files, options, names_in(store))
        report = run_import(store, out, found.logs, seed_phrase)
        print_import(out, report, found)
    is_strange = report.skips.unknown_lines > MOST_NOT_UNDERSTOOD * report.lines
    return 1 if found.not_logs or report.cut_short or (is_strange and not lenient) else 0


def _day(moment: datetime | None) -> date | None:
    return None if moment is None else moment.date()


def run_import(store: CableStore, out: Output, logs: list[LogFile], seed_phrase: str) -> ImportReport:
    """Import logs with a progress bar in bytes."""
    with out.progress("importing", sum(log.size_bytes for log in logs)) as progress:
        return import_logs(store, logs, seed_phrase=seed_phrase, progress=progress)


def print_import(out: Output, report: ImportReport, found: Survey) -> None:
    """Print the numbers of lines, posts and verdicts, and the parts that were left out."""
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
            encodings=dict(report.encodings),
            private=[str(path) for path in found.private],
            not_logs={str(path): why for path, why in found.not_logs},
            cut_short=[{"file": str(path), "line": number, "text": text} for path, number, text in report.cut_short],
            separate=found.separate,
        )
        return
    rows = [{"item": "lines read", "count": report.lines}, {"item": "files read", "count": report.files}]
    rows += [{"item": f"post/{kind}", "count": number} for kind, number in report.posts.most_common()]
    rows += [{"item": f"posts {verdict}", "count": number} for verdict, number in report.verdicts.most_common()]
    rows += [{"item": f"lines skipped: {why}", "count": number} for why, number in report.skips.reasons.most_common()]
    rows += [{"item": "texts split or cut at the limit", "count": report.skips.cut}] if report.skips.cut else []
    rows += [{"item": f"lines read as {name}", "count": number} for name, number in report.encodings.most_common()]
    rows += [{"item": "private conversations left out", "count": len(found.private)}] if found.private else []
    rows += [{"item": "files that are not logs", "count": len(found.not_logs)}] if found.not_logs else []
    out.table(("item", "count"), rows)
    for line in report.skips.examples:
        out.say(f"cannot parse this line: {safe(line)}")
    if report.encodings:
        out.say("Lines that are not UTF-8 were read in the encoding above. If the text looks wrong, use --encoding.")
    for channel, names in found.separate.items():
        out.say(f"#{safe(channel)} exists on several networks: imported as {safe(', '.join(names))}.")
    _list(out, "left out private conversation (use --queries to import it)", map(str, found.private))
    _list(out, "not a log", (why for _, why in found.not_logs))
    for path, number, text in report.cut_short:
        out.say(f"imported {safe(str(path))} up to line {number}, which contains an invalid date: {safe(text[:100])}")


def _list(out: Output, what: str, entries: Iterable[str]) -> None:
    """Print the first entries, and the number of further entries."""
    found = list(entries)
    for entry in found[:_SHOWN_FILES]:
        out.say(f"{what}: {safe(entry)}")
    if len(found) > _SHOWN_FILES:
        out.say(f"{what}: {len(found) - _SHOWN_FILES} more")


COMMANDS: Final = (import_irc,)
