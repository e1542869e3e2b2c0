"""Commands for histories that outgrow one process: reindex, generations, archive make."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from cablestore.cli.archive import archive
from cablestore.cli.archive_options import (
    cabal_key_option,
    folder_argument,
    key_of,
    needs_extra,
    tell_created,
    writable,
)
from cablestore.cli.output import Key, Moment, Output, PathValue, common_options, safe, size
from cablestore.protocol.crypto import Identity
from cablestore.protocol.dialect import DIALECTS, dialect_named
from cablestore.store.closed import ClosedStore
from cablestore.store.key_file import load_identity
from cablestore.store.store import CableStore, system_clock_ms

if TYPE_CHECKING:
    from cablestore.reindex.inputs import ArchiveSource
    from cablestore.reindex.job import Drops
    from cablestore.reindex.reindex import Reindexed
    from cablestore.reindex.stages import Derived, SparkOptions


class _JavaMemory(click.ParamType[str]):
    """Memory as Java has it, enough for Spark to start."""

    name = "size"
    _UNITS: Final = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
    _LEAST_BYTES: Final = 512 * 2**20
    """Spark refuses less than 472 MB, of which Java keeps some to itself."""
    _MOST_BYTES: Final = 2**44

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it as Java reads it."""
        found = re.fullmatch(r"([0-9]{1,15})([kmgt])b?", str(value).strip().lower())
        if found is None:
            self.fail(f'"{safe(str(value)[:40])}" is no size of memory: write 900m or 4g', param, ctx)
        if not self._LEAST_BYTES <= int(found[1]) * self._UNITS[found[2]] <= self._MOST_BYTES:
            self.fail(f"{found[0]} cannot be: Spark starts with 512m or more, and with up to 16t", param, ctx)
        return found[1] + found[2]


class _Master(click.ParamType[str]):
    """Where Spark runs, in a form that it knows."""

    name = "master"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it as it is."""
        if not re.fullmatch(r"local(-cluster)?(\[[0-9*,]+\])?|yarn|(spark|k8s)://\S+", str(value)):
            self.fail(
                f'"{safe(str(value)[:100])}" is no master of Spark: write local[2], spark://HOST:PORT, yarn or k8s://https://HOST:PORT',
                param,
                ctx,
            )
        return str(value)


def _spark_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--work",
            type=PathValue(),
            help="Folder that all workers share [default: one beside what is made].",
        ),
        click.option(
            "--master", type=_Master(), help="Spark's master: spark://HOST:PORT, yarn, ... [default: this machine]."
        ),
        click.option("--cores", type=click.IntRange(1, 1024), help="Cores of this machine to use [default: all]."),
        click.option(
            "--driver-memory", type=_JavaMemory(), default="1g", show_default=True, help="Java memory of the driver."
        ),
        click.option("--conf", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of Spark's own."),
    ):
        function = option(function)
    return function


@click.command()
@click.argument("exports", metavar="EXPORT...", nargs=-1, type=PathValue())
@click.option(
    "--archives",
    "communities",
    multiple=True,
    type=(PathValue(), Key()),
    metavar="FOLDER CONTROL-KEY",
    help="Read the archives below FOLDER that this control node signed, too; repeatable.",
)
@cabal_key_option
@click.option("--out", "store", type=PathValue(), help="The store to build again, or to make.")
@click.option(
    "--verify",
    "verified",
    type=PathValue(),
    help="Change nothing: compare this store with a rebuilt one.",
)
@click.option("--views", help="Build only these views anew: messages,author.")
@click.option("--drop-author", "authors", multiple=True, type=Key(), help="Leave out the posts of this public key.")
@click.option("--drop-channel", "channels", multiple=True, help="Leave out the posts in this channel.")
@click.option(
    "--before", "before_ms", type=Moment(), default=None, help="Leave out posts dated before: 2024-01-31, or 5y."
)
@click.option(
    "--skip-corrupt", is_flag=True, help="Leave damaged segments and archives out and say which, instead of stopping."
)
@click.option("--keep-work", is_flag=True, help="Leave the work folder, with the rows of every view, in place.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_spark_options
def reindex(exports: tuple[Path, ...], as_json: bool, **chosen: Any) -> int:
    """Build all views anew from exports and history archives, on Spark.

    The store gets all posts that any of them has and that nobody deleted: archives add to it and remove nothing.
    Duplicates, deletions across exports and what is to be left out are settled. The new database is checked and takes the
    place of the old one at once; `cablestore generations` goes back. Interrupted, the same command goes on.
    """
    out = Output(as_json=as_json)
    if (chosen["store"] is None) == (chosen["verified"] is None):
        raise click.UsageError("say where the store is: --out STORE, or --verify STORE to compare")
    if chosen["verified"] is not None:
        if exports or chosen["communities"]:
            raise click.UsageError("--verify makes its own export of the store: name none")
        return _verify(out, chosen)
    if not exports and not chosen["communities"]:
        raise click.UsageError("name at least one export: `cablestore export` makes one. Or name --archives")
    return _reindex(out, exports, chosen)


def _reindex(out: Output, exports: tuple[Path, ...], chosen: dict[str, Any]) -> int:
    from cablestore.reindex.reindex import reindex as run  # noqa: PLC0415 - needs the extra cablestore[reindex]

    archives = _archives(chosen)
    with stage_bars(out) as progress:
        report = run(
            exports,
            chosen["store"],
            archives=archives,
            work=chosen["work"],
            drops=_drops(exports, archives, chosen),
            views=frozenset(name for name in (chosen["views"] or "").split(",") if name),
            skip_corrupt=chosen["skip_corrupt"],
            spark=_spark(chosen),
            keep_work=chosen["keep_work"],
            progress=progress,
        )
    tell_reindexed(out, report, chosen["store"])
    return 0


def _verify(out: Output, chosen: dict[str, Any]) -> int:
    from cablestore.reindex.compare import verify_store  # noqa: PLC0415 - as above

    with stage_bars(out) as progress:
        report = verify_store(chosen["verified"], work=chosen["work"], spark=_spark(chosen), progress=progress)
    rows = [
        {"view": name, "rows": of.rows, "missing": of.missing, "extra": of.extra, "different": of.different}
        for name, of in report.views.items()
    ]
    out.table(("view", "rows", "missing", "extra", "different"), rows)
    for name, of in report.views.items():
        for what, key in of.examples:
            out.say(
                f"✗ {name}: {what}: {safe(key.decode(errors='backslashreplace'))}", view=name, what=what, key=key.hex()
            )
    out.say(
        "the store is what a rebuild makes of it"
        if report.is_equal
        else "the store differs: `cablestore rebuild` mends it"
    )
    return 0 if report.is_equal else 1


def _archives(chosen: dict[str, Any]) -> list[ArchiveSource]:
    from cablestore.reindex.inputs import ArchiveSource  # noqa: PLC0415 - as above

    key = key_of(chosen["cabal_key"])
    return [ArchiveSource(folder, control_key, key) for folder, control_key in chosen["communities"]]


def _drops(exports: tuple[Path, ...], archives: list[ArchiveSource], chosen: dict[str, Any]) -> Drops:
    from cablestore.reindex.job import Drops  # noqa: PLC0415 - as above
    from cablestore.reindex.prepare import read_sources  # noqa: PLC0415 - as above

    names = chosen["channels"]
    channels = frozenset(map(read_sources(exports, archives).dialect.channel_id, names)) if names else frozenset()
    return Drops(frozenset(chosen["authors"]), channels, chosen["before_ms"] or 0)


def _spark(chosen: dict[str, Any]) -> SparkOptions:
    from cablestore.reindex.stages import SparkOptions  # noqa: PLC0415 - as above

    pairs = [setting.partition("=") for setting in chosen["settings"]]
    for name, equals, value in pairs:
        if not equals or not re.fullmatch(r"[A-Za-z][\w.-]*", name) or not value.isprintable():
            raise click.UsageError(f"--conf {safe(name[:100])}: write NAME=VALUE, as in spark.executor.memory=2g")
        if name.endswith((".memory", ".memoryOverhead")):
            _size_of(name, value)
    settings = {name: value for name, _, value in pairs}
    return SparkOptions(chosen["master"], chosen["cores"], chosen["driver_memory"], settings)


def _size_of(name: str, value: str) -> None:
    if not re.fullmatch(r"[0-9]+([kmgtp]b?|b)?", value, flags=re.IGNORECASE):
        raise click.UsageError(f'--conf {name}: "{safe(value[:40])}" is no size of memory: write 900m or 4g')


@contextmanager
def stage_bars(out: Output) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar for each stage of the job; yields the function that moves them."""
    bars = Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=out.notes,
        disable=out.as_json or not out.notes.is_terminal,
        transient=True,
    )
    tasks: dict[str, Any] = {}
    with bars:

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield show


def tell_reindexed(out: Output, report: Reindexed, store: Path) -> None:
    """Tell what was read, what was left out and why, what every view holds, and how long it took."""
    derived = report.derived
    sizes = derived.sizes
    if out.as_json:
        out.say(
            "",
            generation=report.generation,
            posts=dict(derived.posts),
            counts=dict(derived.counts),
            left_out=derived.left_out,
            rows=report.rows,
            views={
                name: {"rows": rows, "size_bytes": size_bytes} for name, (rows, size_bytes) in sorted(sizes.items())
            },
            arrived_since=report.succession.arrived_since,
            local_only=report.succession.local_only,
            seconds=report.seconds,
        )
        return
    tell_counts(out, derived)
    views = [{"view": name, "rows": rows, "size": size(of)} for name, (rows, of) in sorted(sizes.items())]
    out.table(("view", "rows", "size"), views)
    stages = [{"stage": stage, "seconds": seconds} for stage, seconds in report.seconds.items()]
    out.table(("stage", "seconds"), stages)
    since = report.succession.arrived_since
    late = f", {since:,} entries of the log after the export" if since else ""
    out.say(f"{report.rows:,} rows loaded{late}; {store} is now at {report.generation}, checked")


def tell_counts(out: Output, derived: Derived) -> None:
    """Tell what was read and what became of it."""
    for path, problem in derived.left_out.items():
        out.say(f"✗ left out {safe(path)}: {safe(problem)}")
    rows = [{"what": f"live post/{kind}", "number": number} for kind, number in derived.posts.most_common()]
    rows += [{"what": what, "number": number} for what, number in sorted(derived.counts.items()) if number]
    out.table(("what", "number"), rows)


@click.command()
@click.option("--back-to", metavar="GENERATION", help="Make this one live again, with what arrived since.")
@click.option("--remove", "removed", metavar="GENERATION", help="Remove one, or `kept` for all that are kept.")
@click.option("--recover", "recovered", metavar="GENERATION", help="Make this one live where the file STORE is lost.")
@click.option(
    "--dialect", type=click.Choice(list(DIALECTS)), help="With --recover: of a database that is too damaged to say it."
)
@common_options
def generations(
    path: Path, out: Output, back_to: str | None, removed: str | None, recovered: str | None, dialect: str | None
) -> int:
    """List the databases that the store has: the live one, and those that reindexing left to go back to.

    A store whose file STORE is lost, damaged or names what is not there goes on with any of its databases: --recover.
    """
    if sum(chosen is not None for chosen in (back_to, removed, recovered)) > 1:
        raise click.UsageError("say one thing: --back-to, --remove or --recover")
    if dialect is not None and recovered is None:
        raise click.UsageError("--dialect goes with --recover")
    if recovered is not None:
        return _recover(path, out, recovered, dialect)
    if back_to is not None:
        succession = ClosedStore(path).roll_back(back_to)
        out.note(f"{succession.arrived_since:,} entries of the log that came since were added")
    if removed is not None:
        ClosedStore(path).remove(removed)
    rows = [
        {
            "generation": found.name,
            "state": found.state,
            "size": size(found.size_bytes),
            "made": found.made,
        }
        for found in ClosedStore(path).generations()
    ]
    out.table(("generation", "state", "size", "made"), rows)
    return 0


def _recover(path: Path, out: Output, generation: str, dialect: str | None) -> int:
    known = None if dialect is None else dialect_named(dialect)
    posts = ClosedStore(path, dialect=known).recover(generation)
    found = (
        "is damaged: `cablestore rebuild` brings back what can be read"
        if posts is None
        else f"{posts:,} post{'s' * (posts != 1)} came back"
    )
    out.say(f"{path} is now at {generation}: {found}", generation=generation, posts=posts)
    return 1 if posts is None else 0


@archive.command()
@folder_argument
@click.argument("exports", metavar="EXPORT...", nargs=-1, required=True, type=PathValue())
@click.option(
    "--identity",
    "key_file",
    type=PathValue(),
    help="The control node's key: `cablestore identity --export` writes it [default: the store's].",
)
@click.option("--profile", type=click.Choice(["rfc61", "status-go"]), default="rfc61", show_default=True)
@cabal_key_option
@click.option("--public", is_flag=True, help="Do not encrypt, even with a cabal key.")
@click.option("--keep-work", is_flag=True, help="Leave the work folder in place.")
@common_options
@_spark_options
@needs_extra
def make(
    path: Path,
    out: Output,
    folder: Path,
    exports: tuple[Path, ...],
    key_file: Path | None,
    profile: str,
    cabal_key: str | None,
    public: bool,
    **chosen: Any,
) -> None:
    """Make archives of all weeks that are over, below FOLDER, from exports and on Spark.

    They are those that `archive create` makes of a store that holds the same, byte for byte; each may go on where the
    other ended. Exports are believed: `cablestore verify-export --signatures` first for those of strangers.
    """
    from cablestore.archive.folder import ArchiveFolder  # noqa: PLC0415 - needs the extra cablestore[archive]
    from cablestore.archive.format.profile import PROFILES  # noqa: PLC0415 - as above
    from cablestore.reindex.make_archives import make_archives  # noqa: PLC0415 - needs both extras

    identity = load_identity(key_file) if key_file is not None else _identity_of(path)
    community = identity.public_key.hex()
    with stage_bars(out) as progress:
        made = make_archives(
            exports,
            ArchiveFolder(writable(folder) / community),
            PROFILES[profile],
            identity,
            system_clock_ms(),
            key=None if public else key_of(cabal_key),
            work=chosen["work"],
            spark=_spark(chosen),
            keep_work=chosen["keep_work"],
            progress=progress,
        )
    tell_created(out, community, made.created, counts=dict(made.ran.counts), seconds=made.ran.seconds)


def _identity_of(path: Path) -> Identity:
    with CableStore.open(path, create=False) as store:
        return store.identity


COMMANDS: Final = (reindex, generations)
