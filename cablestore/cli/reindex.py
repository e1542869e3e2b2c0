"""Commands for histories too large for one process: reindex, archive make, and generations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cablestore.cli.archive_options import (
    cabal_key_option,
    created_fields,
    folder_argument,
    key_of,
    making_options,
    print_created,
    writable,
)
from cablestore.cli.maintain import unknown_loss
from cablestore.cli.options import all_of, common_options, json_option, on_mount, reading_options, stored_channels
from cablestore.cli.output import Output, safe, size
from cablestore.cli.stores import open_to_read
from cablestore.cli.values import FolderValue, Moment, PathValue, java_memory, public_key, spark_master, spark_remote
from cablestore.errors import CableStoreError, ExportError
from cablestore.export.importer import manifests_of
from cablestore.plurals import counted
from cablestore.protocol.crypto import Identity
from cablestore.protocol.dialect import DIALECTS, dialect_named
from cablestore.store.closed import ClosedStore
from cablestore.store.key_file import load_identity
from cablestore.store.lookup import typed_channel
from cablestore.store.options import system_clock_ms
from cablestore.views.installed import installed_catalog

if TYPE_CHECKING:
    from cablestore.files import ObjectFolder
    from cablestore.reindex import ReindexReport
    from cablestore.reindex.inputs import ArchiveSource
    from cablestore.reindex.job import Drops
    from cablestore.reindex.stages import DerivedRows, SparkOptions


source_options = all_of(
    click.option(
        "--archives",
        "communities",
        multiple=True,
        type=(FolderValue(), public_key),
        metavar="FOLDER CONTROL-KEY",
        help="Also read the archives below FOLDER that this control node signed; repeatable.",
    ),
    cabal_key_option,
    click.option(
        "--drop-author",
        "authors",
        multiple=True,
        type=public_key,
        help="Leave out posts of this public key; repeatable.",
    ),
    click.option("--drop-channel", "channels", multiple=True, help="Leave out posts in this channel; repeatable."),
    click.option(
        "--before",
        "before_ms",
        type=Moment(),
        default=None,
        help="Leave out posts dated before this time, such as 2024-01-31 or 5y.",
    ),
)
"""Options for further inputs and for posts to leave out."""

spark_options = all_of(
    click.option("--conf", "settings", multiple=True, metavar="NAME=VALUE", help="Spark setting; repeatable."),
    click.option(
        "--driver-memory", type=java_memory, default="1g", show_default=True, help="Java memory of the driver."
    ),
    click.option(
        "--cores", type=click.IntRange(1, 1024), help="Number of cores of this machine to use [default: all]."
    ),
    click.option(
        "--master", type=spark_master, help="Spark master, such as spark://HOST:PORT or yarn [default: this machine]."
    ),
    click.option("--remote", type=spark_remote, help="Spark Connect server instead of a master: sc://HOST:PORT."),
    click.option(
        "--work",
        type=FolderValue(),
        help="Work folder or URI, shared by all workers [default: a folder beside the output].",
    ),
)


@on_mount("store")
@click.command()
@click.argument("exports", metavar="EXPORT...", nargs=-1, type=FolderValue())
@click.option("--out", "store", type=PathValue(), help="Store to rebuild or to create.")
@click.option(
    "--verify",
    "verified",
    type=PathValue(),
    help="Compare the store at this path with a rebuilt store, without changing it.",
)
@click.option("--views", help="Rebuild only these views, such as messages,author.")
@click.option(
    "--skip-corrupt", is_flag=True, help="Leave out and list damaged segments and archives instead of stopping."
)
@click.option("--keep-work", is_flag=True, help="Keep the work folder with the rows of every view.")
@click.option(
    "--check",
    is_flag=True,
    help="Derive all rows of the new database a second time and compare, instead of only reading them back.",
)
@source_options
@json_option
@spark_options
def reindex(exports: tuple[ObjectFolder, ...], as_json: bool, **chosen: Any) -> int:
    """Rebuild all views on Spark from exports and archives.

    The new database contains all posts of the inputs that are not deleted or left out. A deletion in one export applies
    to all inputs. Archives only add posts. The command reads the new database back, and then replaces the old database
    atomically. `cablestore generations --back-to` reverts this. To resume after an interruption, run the same command
    again.

    Example: `cablestore reindex EXPORT --out my-store`
    """
    out = Output(as_json=as_json)
    if (chosen["store"] is None) == (chosen["verified"] is None):
        raise click.UsageError("use exactly one of --out STORE and --verify STORE")
    if chosen["verified"] is not None:
        if exports or chosen["communities"]:
            raise click.UsageError(
                "--verify exports the store itself and cannot be combined with exports or --archives"
            )
        return _verify(out, chosen)
    if not exports and not chosen["communities"]:
        raise click.UsageError("missing input: pass an export of `cablestore export`, or use --archives")
    return _reindex(out, exports, chosen)


def _reindex(out: Output, exports: tuple[ObjectFolder, ...], chosen: dict[str, Any]) -> int:
    from cablestore.reindex import reindex as run  # noqa: PLC0415 - needs the extra cablestore[reindex]

    archives = archives_of(chosen)
    with out.stages() as progress:
        report = run(
            exports,
            chosen["store"],
            archives=archives,
            work=chosen["work"],
            drops=drops_of(exports, archives, chosen),
            views=frozenset(name for name in (chosen["views"] or "").split(",") if name),
            skip_corrupt=chosen["skip_corrupt"],
            catalog=installed_catalog(),
            spark=spark_of(chosen),
            keep_work=chosen["keep_work"],
            check=chosen["check"],
            progress=progress,
        )
    print_reindexed(out, report, chosen["store"])
    return 0


def _verify(out: Output, chosen: dict[str, Any]) -> int:
    from cablestore.reindex.compare import verify_store  # noqa: PLC0415 - as above

    with out.stages() as progress:
        report = verify_store(
            chosen["verified"],
            work=chosen["work"],
            spark=spark_of(chosen),
            catalog=installed_catalog(),
            progress=progress,
        )
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
        "the store equals a rebuilt store"
        if report.is_equal
        else "the store differs from a rebuilt store. Run `cablestore rebuild` to repair it"
    )
    return 0 if report.is_equal else 1


def archives_of(chosen: dict[str, Any]) -> list[ArchiveSource]:
    """Return the archives that `source_options` select."""
    from cablestore.reindex.inputs import ArchiveSource  # noqa: PLC0415 - as above

    key = key_of(chosen["cabal_key"])
    return [ArchiveSource(folder, control_key, key) for folder, control_key in chosen["communities"]]


def drops_of(exports: tuple[ObjectFolder, ...], archives: list[ArchiveSource], chosen: dict[str, Any]) -> Drops:
    """Return the posts that `source_options` leave out."""
    from cablestore.reindex.job import Drops  # noqa: PLC0415 - as above
    from cablestore.reindex.prepare import read_sources  # noqa: PLC0415 - as above

    channels = frozenset[str]()
    if names := _stored(chosen.get("store"), chosen["channels"]):
        channels = frozenset(map(read_sources(exports, archives).dialect.channel_id, names))
    return Drops(frozenset(chosen["authors"]), channels, chosen["before_ms"] or 0)


def _stored(path: Path | None, names: Sequence[str]) -> Sequence[str]:
    """Return the stored names of channels, or the typed names if the store cannot be read yet."""
    if not names or path is None:
        return list(map(typed_channel, names))
    try:
        store = open_to_read(path, read_only=True)
    except CableStoreError:
        return list(map(typed_channel, names))
    with store:
        return stored_channels(store, names)


def spark_of(chosen: dict[str, Any]) -> SparkOptions:
    """Return the options of Spark that `spark_options` select. Raises UsageError if they are invalid or conflict."""
    from cablestore.reindex.stages import SparkOptions  # noqa: PLC0415 - as above

    pairs = [setting.partition("=") for setting in chosen["settings"]]
    for name, equals, value in pairs:
        if not equals or not re.fullmatch(r"[A-Za-z][\w.-]*", name) or not value.isprintable():
            raise click.UsageError(
                f"invalid --conf {safe(name[:100])}: expected NAME=VALUE, such as spark.executor.memory=2g"
            )
        if name.endswith((".memory", ".memoryOverhead")):
            _size_of(name, value)
    settings = {name: value for name, _, value in pairs}
    if chosen["master"] is not None and chosen["remote"] is not None:
        raise click.UsageError("--master starts a driver, --remote uses the driver of a server. Use only one of them")
    return SparkOptions(chosen["master"], chosen["cores"], chosen["driver_memory"], settings, chosen["remote"])


def _size_of(name: str, value: str) -> None:
    if not re.fullmatch(r"[0-9]+([kmgtp]b?|b)?", value, flags=re.IGNORECASE):
        raise click.UsageError(
            f'invalid --conf {name}: expected an amount of memory such as 900m or 4g, got "{safe(value[:40])}"'
        )


def print_reindexed(out: Output, report: ReindexReport, store: Path) -> None:
    """Print the inputs that were left out, the size of each view, and the time of each stage."""
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
    print_counts(out, derived)
    views = [{"view": name, "rows": rows, "size": size(of)} for name, (rows, of) in sorted(sizes.items())]
    out.table(("view", "rows", "size"), views)
    stages = [{"stage": stage, "seconds": seconds} for stage, seconds in report.seconds.items()]
    out.table(("stage", "seconds"), stages)
    since = report.succession.arrived_since
    late = f" and {counted(since, 'log entry', 'log entries')} after the export" if since else ""
    out.say(f"loaded {counted(report.rows, 'row')}{late}; {store} now uses {report.generation}, which was checked")


def print_counts(out: Output, derived: DerivedRows) -> None:
    """Print the inputs that were left out, and the numbers of posts and rows."""
    for path, problem in derived.left_out.items():
        out.say(f"✗ left out {safe(path)}: {safe(problem)}")
    rows = [{"item": f"live post/{kind}", "count": number} for kind, number in derived.posts.most_common()]
    rows += [{"item": what, "count": number} for what, number in sorted(derived.counts.items()) if number]
    out.table(("item", "count"), rows)


@click.command()
@click.option(
    "--back-to", metavar="GENERATION", help="Make this generation live again, and add the posts that arrived since."
)
@click.option(
    "--remove", "removed", metavar="GENERATION", help="Remove this generation; `kept` removes all kept generations."
)
@click.option(
    "--recover", "recovered", metavar="GENERATION", help="Make this generation live if the file STORE is lost."
)
@click.option(
    "--dialect",
    type=click.Choice(list(DIALECTS)),
    help="With --recover: dialect of the database, if it is too damaged to contain it.",
)
@reading_options
def generations(
    path: Path,
    out: Output,
    back_to: str | None,
    removed: str | None,
    recovered: str | None,
    dialect: str | None,
    read_only: bool,
) -> int:
    """List the databases of the store, or roll back to one.

    The list contains the live database, databases that reindexing kept, and databases that the file STORE does not
    name. It also contains missing databases that STORE names.

    If the file STORE is lost, damaged, or names a missing database, --recover makes any of the databases live.

    Example: `cablestore generations --back-to generation-000001`
    """
    if sum(chosen is not None for chosen in (back_to, removed, recovered)) > 1:
        raise click.UsageError("use only one of --back-to, --remove and --recover")
    if dialect is not None and recovered is None:
        raise click.UsageError("--dialect needs --recover")
    if read_only and (back_to or removed or recovered):
        raise click.UsageError("--read-only cannot be combined with --back-to, --remove or --recover")
    if recovered is not None:
        return _recover(path, out, recovered, dialect)
    if back_to is not None:
        succession = ClosedStore(path, catalog=installed_catalog()).roll_back(back_to)
        out.note(f"added {counted(succession.arrived_since, 'later log entry', 'later log entries')}")
    if removed is not None:
        ClosedStore(path).remove(removed)
    rows = [
        {
            "generation": found.name,
            "state": found.state,
            **({"size_bytes": found.size_bytes} if out.as_json else {"size": size(found.size_bytes)}),
            "made": found.made,
        }
        for found in ClosedStore(path, read_only=read_only).generations()
    ]
    out.table(("generation", "state", "size", "made"), rows)
    return 0


def _recover(path: Path, out: Output, generation: str, dialect: str | None) -> int:
    known = None if dialect is None else dialect_named(dialect)
    report = ClosedStore(path, catalog=installed_catalog(), dialect=known).recover(generation)
    if report.posts is None:
        found = "it is damaged. Run `cablestore rebuild` to recover the readable posts"
    else:
        found = f"recovered {counted(report.posts, 'post')}"
    if report.posts is not None and report.lost_posts is None:
        found += (
            f"; {unknown_loss(report.lost_posts_at_least)}. Deletions may be missing too. Run `cablestore sync` with a "
            "peer to fetch both"
        )
    elif report.lost_posts:
        found += f"; lost {report.lost_posts:,}"
    out.say(
        f"{path} now uses {generation}: {found}",
        generation=generation,
        posts=report.posts,
        lost_posts=report.lost_posts,
        lost_posts_at_least=report.lost_posts_at_least,
    )
    return 0 if report.has_all_posts else 1


@on_mount("folder")
@click.command()
@folder_argument
@click.argument("exports", metavar="EXPORT...", nargs=-1, required=True, type=FolderValue())
@click.option(
    "--identity",
    "key_file",
    type=PathValue(),
    help="Key file of the control node, as `cablestore identity --export` writes it [default: the store's key].",
)
@making_options
@click.option(
    "--leave-out-hidden",
    is_flag=True,
    help="Accept only exports of `cablestore export --leave-out-hidden`, without messages that their owners hid publicly.",
)
@click.option("--keep-work", is_flag=True, help="Keep the work folder.")
@common_options
@spark_options
def make(
    path: Path,
    out: Output,
    folder: Path,
    exports: tuple[ObjectFolder, ...],
    key_file: Path | None,
    profile: str,
    cabal_key: str | None,
    public: bool,
    leave_out_hidden: bool,
    **chosen: Any,
) -> None:
    """Create archives of all past weeks below FOLDER, from exports, on Spark.

    The archives are byte for byte equal to the archives that `archive create` writes for the same posts. Either command
    can resume the work of the other. Signatures are not verified: first run `cablestore verify-export --signatures` on
    exports of others.

    Example: `cablestore archive make archives EXPORT --identity key-file`
    """
    from cablestore.archive.folder import ArchiveFolder  # noqa: PLC0415 - needs the extra cablestore[archive]
    from cablestore.archive.format.profile import PROFILES  # noqa: PLC0415 - as above
    from cablestore.reindex.make_archives import make_archives  # noqa: PLC0415 - needs both extras

    if leave_out_hidden:
        _require_without_hidden(exports)
    identity = load_identity(key_file) if key_file is not None else _identity_of(path)
    community = identity.public_key.hex()
    with out.stages() as progress:
        made = make_archives(
            exports,
            ArchiveFolder(writable(folder) / community),
            PROFILES[profile],
            identity,
            system_clock_ms(),
            key=None if public else key_of(cabal_key),
            work=chosen["work"],
            spark=spark_of(chosen),
            keep_work=chosen["keep_work"],
            progress=progress,
        )
    print_created(out, created_fields(community, made.created, counts=dict(made.ran.counts), seconds=made.ran.seconds))


def _require_without_hidden(exports: tuple[ObjectFolder, ...]) -> None:
    """Reject exports that may contain hidden messages. An export does not record which messages are hidden."""
    for manifest in manifests_of(exports, None):
        if manifest.filters is None or not manifest.filters.without_hidden:
            raise ExportError(
                f"{manifest.source} may contain messages that its store's owner hid. Export again with "
                "`cablestore export --leave-out-hidden`"
            )


def _identity_of(path: Path) -> Identity:
    with open_to_read(path) as store:
        return store.identity


COMMANDS: Final = (reindex, generations)
