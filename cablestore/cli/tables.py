"""The command `tables`, which writes Parquet for other tools."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cablestore.cli.options import json_option, on_mount
from cablestore.cli.output import Output, safe
from cablestore.cli.reindex import archives_of, drops_of, source_options, spark_of, spark_options
from cablestore.cli.service import ending_on_sigterm
from cablestore.cli.values import FolderValue
from cablestore.files import folder_of

if TYPE_CHECKING:
    from cablestore.files import ObjectFolder
    from cablestore.reindex.table_files import TablesReport


@on_mount("out")
@click.command()
@ending_on_sigterm()
@click.argument("exports", metavar="EXPORT...", nargs=-1, type=FolderValue())
@click.option("--out", required=True, type=FolderValue(), help="New folder or URI for the tables.")
@source_options
@json_option
@spark_options
def tables(exports: tuple[ObjectFolder, ...], out: ObjectFolder, as_json: bool, **chosen: Any) -> None:
    """Write tables of exports and archives as Parquet, on Spark.

    DuckDB, pandas, Polars and other programs can read the tables: posts, messages, topics, members, users, channels and
    deletions. Their rows equal the rows of a store with all posts, except deleted posts and posts to leave out. To
    resume with the unfinished table after an interruption, run the same command again.

    Example: `cablestore tables EXPORT --out tables`
    """
    from cablestore.reindex.job import temporary_work  # noqa: PLC0415 - as below
    from cablestore.reindex.table_files import write_tables  # noqa: PLC0415 - needs the extra cablestore[reindex]

    printer = Output(as_json=as_json)
    if not exports and not chosen["communities"]:
        raise click.UsageError("missing input: pass an export of `cablestore export`, or use --archives")
    archives = archives_of(chosen)
    with ExitStack() as stack:
        work = chosen["work"].path if chosen["work"] else Path(tempfile.mkdtemp(prefix="cablestore-tables-"))
        if not chosen["work"]:
            stack.enter_context(temporary_work(folder_of(work), work))
        report = write_tables(
            exports,
            out,
            archives=archives,
            drops=drops_of(exports, archives, chosen),
            work=work,
            spark=spark_of(chosen),
            progress=stack.enter_context(printer.stages()),
        )
    _print(printer, report)


def _print(out: Output, report: TablesReport) -> None:
    """Print the rows and files of each table."""
    if out.as_json:
        rows = {name: {"rows": table.rows, "files": list(table.files)} for name, table in report.tables.items()}
        out.say("", out=report.uri, tables=rows, seconds=report.seconds)
        return
    out.table(
        ("table", "rows", "files"),
        [{"table": name, "rows": table.rows, "files": len(table.files)} for name, table in report.tables.items()],
    )
    out.say(f"the tables are in {safe(report.uri)}")


COMMANDS: Final = (tables,)
