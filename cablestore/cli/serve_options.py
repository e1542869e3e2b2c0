"""The commands serve and sync: their options, environment variables and configuration file. `cablestore.cli.serve` runs them."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cablestore import limits
from cablestore.cli.options import all_of, common_options
from cablestore.cli.output import Output, safe, size
from cablestore.cli.stores import open_store
from cablestore.cli.values import AddressType, CabalKey, ChannelName, Duration, Prologue
from cablestore.errors import StorageError

if TYPE_CHECKING:
    from cablestore.peers import Address, NodeSettings, SyncReport

_PREFIX: Final = "CABLESTORE_SERVE"


# --- configuration file and environment -----------------------------------------------------------


def _read_config(ctx: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Make the values of the file the defaults of options. Called before other options are read."""
    if path is not None:
        ctx.default_map = _config(ctx, path)
    return path


def _config(ctx: click.Context, path: Path) -> dict[str, Any]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise click.UsageError(f"{path} cannot be read: {reason}") from None
    values = tables.pop("serve", {})
    if tables or not isinstance(values, dict):
        found = ", ".join(sorted(tables)) or "serve, which is not a table"
        raise click.UsageError(f"{path} must have one table, [serve], and not {safe(found)}")
    known = config_keys(ctx.command)
    unknown = sorted(values.keys() - known)
    if unknown:
        raise click.UsageError(
            f"{path} sets {safe(', '.join(unknown))}, which is not known. Known are: {', '.join(sorted(known))}"
        )
    return {known[key].name or "": _config_value(ctx, path, key, known[key], value) for key, value in values.items()}


def config_keys(command: click.Command) -> dict[str, click.Option]:
    """Return the options of a command that the file can set, by their long names."""
    options = (param for param in command.params if isinstance(param, click.Option) and param.name != "config")
    return {max(option.opts, key=len).removeprefix("--"): option for option in options}


def _config_value(ctx: click.Context, path: Path, key: str, option: click.Option, value: Any) -> Any:
    """Return the value after checking its type and that the option accepts it."""
    if option.multiple:
        expected, is_right = "an array of texts", isinstance(value, list) and all(isinstance(v, str) for v in value)
    elif option.is_flag:
        expected, is_right = "true or false", isinstance(value, bool)
    elif isinstance(option.type, click.IntRange):
        expected, is_right = "a whole number", isinstance(value, int) and not isinstance(value, bool)
    else:
        expected, is_right = "a text in quotes", isinstance(value, str)
    if not is_right:
        raise click.UsageError(f"{path}: {key} must be {expected}")
    try:
        option.type_cast_value(ctx, value)
    except click.UsageError as error:
        raise click.UsageError(f"{path}: {key}: {error.message}") from None
    return value


def unknown_variables(command: click.Command) -> list[str]:
    """Return the environment variables with our prefix that no option reads: a misspelt key would protect nothing."""
    known = {f"{_PREFIX}_{(param.name or '').upper()}" for param in command.params}
    return sorted(name for name in os.environ if name.startswith(f"{_PREFIX}_") and name not in known)


# --- options --------------------------------------------------------------------------------------


peer_options = all_of(
    click.option(
        "--cabal-key",
        type=CabalKey(),
        metavar="@FILE|HEX",
        help="Shared key of all members, 64 hex digits: encrypts connections and keeps others out. Use a file or the environment: "
        "every user of the machine can see the command line.",
    ),
    click.option(
        "--channels", type=ChannelName(), multiple=True, help="Follow only this channel; repeatable [default: all]."
    ),
    click.option("--prologue", type=Prologue(), help="Prologue of the handshake [default: CABLE/1.0]."),
    click.option(
        "--separate-static-key/--no-separate-static-key",
        help="Use a separate static key in the handshake instead of the identity's, as cable-handshake.ts does.",
    ),
    click.option("--create", is_flag=True, help="Create the store if it does not exist."),
)
"""Options of every command that connects to peers."""

_sync_options = all_of(
    peer_options,
    click.option(
        "--window",
        "window",
        type=Duration(),
        metavar="DURATION",
        help="Age of the oldest posts to request: 20w [default: no limit].",
    ),
)

_SPANS: Final = {
    "reconcile-every": ("5m", "How often recent posts are reconciled with each peer that this one connects to."),
    "reconcile-window": ("1h", "Age of the oldest recent posts."),
    "reconcile-delay": ("20s", "Age of the youngest recent posts: younger ones are still arriving on their own."),
    "reconcile-all-every": ("1d", "How often all posts are reconciled."),
}
"""Durations among the options of reconciliation: default and help."""

_reconcile_options = all_of(
    click.option(
        "--reconcile/--no-reconcile",
        default=True,
        help="Reconcile with peers that are cablestore too; other peers do not notice [default: on].",
    ),
    click.option(
        "--reconcile-listen",
        type=AddressType(),
        multiple=True,
        metavar="HOST:PORT",
        help="Accept connections for reconciliation only; repeatable.",
    ),
    click.option(
        "--reconcile-connect",
        type=AddressType(to_connect=True),
        multiple=True,
        metavar="HOST:PORT",
        help="Stay connected to this peer's reconciliation port; repeatable.",
    ),
    *(
        click.option("--" + name, type=Duration(), metavar="DURATION", default=default, show_default=True, help=text)
        for name, (default, text) in _SPANS.items()
    ),
)

_COUNTS: Final = {
    "max_peers": (limits.MAX_PEERS, "Maximum number of connected peers."),
    "max_peers_per_address": (limits.MAX_PEERS_PER_ADDRESS, "Maximum number of connected peers from one address."),
    "max_handshakes": (limits.MAX_HANDSHAKES, "Maximum number of handshakes at a time."),
    "max_handshakes_per_address": (
        limits.MAX_HANDSHAKES_PER_ADDRESS,
        "Maximum number of handshakes at a time with one address.",
    ),
    "rows_per_s": (limits.ROWS_PER_S, "Database rows per second that one peer may read."),
    "rows_in_advance": (limits.ROWS_IN_ADVANCE, "Database rows that one peer may read at once after a pause."),
}
"""Counts among the settings of a node, with an option of the same name: default and help."""

_limit_options = all_of(
    *(
        click.option(
            "--" + name.replace("_", "-"),
            type=click.IntRange(1),
            metavar="N",
            default=default,
            show_default=True,
            help=text,
        )
        for name, (default, text) in _COUNTS.items()
    ),
    click.option(
        "--idle-timeout",
        type=Duration(),
        metavar="DURATION",
        default=f"{limits.IDLE_TIMEOUT_S:.0f}s",
        show_default=True,
        help="Timeout after which an idle peer is disconnected.",
    ),
    click.option(
        "--list-every",
        type=Duration(),
        metavar="DURATION",
        default=f"{limits.LIST_EVERY_S:.0f}s",
        show_default=True,
        help="How often peers are asked for new channels.",
    ),
    click.option(
        "--max-queued-size",
        type=click.IntRange(limits.MAX_MESSAGE_SIZE_BYTES),
        metavar="BYTES",
        default=limits.MAX_QUEUED_TOTAL_SIZE_BYTES,
        show_default=True,
        help="Maximum size of data queued for slow peers, in total.",
    ),
)


def settings_of(chosen: dict[str, Any]) -> NodeSettings:
    """Return the settings that options choose. Either all options of `serve` are there or none."""
    from cablestore.peers import NodeSettings  # noqa: PLC0415 - as in `values`

    more: dict[str, Any] = {"reconciles": chosen.get("reconcile", False)}
    if "max_peers" in chosen:
        more |= {name: chosen[name] for name in _COUNTS} | {
            "reconcile_every_s": chosen["reconcile_every"] / 1000,
            "reconcile_window_ms": chosen["reconcile_window"],
            "reconcile_delay_ms": chosen["reconcile_delay"],
            "reconcile_all_every_s": chosen["reconcile_all_every"] / 1000,
            "relays": chosen["relay"],
            "spares_cable_js": chosen["spare_cable_js"],
            "idle_timeout_s": chosen["idle_timeout"] / 1000,
            "list_every_s": chosen["list_every"] / 1000,
            "max_queued_total_size_bytes": chosen["max_queued_size"],
        }
    if chosen["prologue"] is not None:
        more["prologue"] = chosen["prologue"]
    channels = frozenset(chosen["channels"]) or None
    return NodeSettings(
        cabal_key=chosen["cabal_key"],
        has_separate_static_key=chosen["separate_static_key"],
        channels=channels if chosen.get("follow", True) else frozenset(),
        window_ms=chosen.get("window"),
        **more,
    )


# --- commands -------------------------------------------------------------------------------------


@click.command(context_settings={"auto_envvar_prefix": _PREFIX})
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="CABLESTORE_CONFIG",
    is_eager=True,
    expose_value=False,
    callback=_read_config,
    help="TOML file with these options in a table [serve].",
)
@click.option(
    "--listen",
    type=AddressType(),
    multiple=True,
    metavar="HOST:PORT",
    help="Accept connections on this address; repeatable.",
)
@click.option(
    "--connect",
    type=AddressType(to_connect=True),
    multiple=True,
    metavar="HOST:PORT",
    help="Stay connected to this peer; repeatable.",
)
@_sync_options
@click.option(
    "--follow/--no-follow",
    default=True,
    help="Request posts from peers, or only answer their requests [default: follow].",
)
@click.option(
    "--relay/--no-relay", default=True, help="Forward requests of legacy peers according to their ttl [default: on]."
)
@click.option(
    "--spare-cable-js/--no-spare-cable-js",
    default=True,
    help="Withhold posts that crash cable.js from legacy peers: names, topics and channels that are long in bytes [default: on].",
)
@click.option(
    "--metrics",
    type=AddressType(),
    metavar="HOST:PORT",
    help="Serve Prometheus metrics on this address [default: off].",
)
@_reconcile_options
@_limit_options
@click.option(
    "--log-format",
    type=click.Choice(["json", "text"]),
    help="Format of the log on standard error [default: text on a terminal, else json].",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Least level to log [default: info, with -q warning].",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing on standard output, and log only problems.")
@common_options
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    path: Path,
    out: Output,
    listen: tuple[Address, ...],
    connect: tuple[Address, ...],
    reconcile_listen: tuple[Address, ...],
    reconcile_connect: tuple[Address, ...],
    metrics: Address | None,
    log_format: str | None,
    log_level: str | None,
    quiet: bool,
    create: bool,
    **chosen: Any,
) -> int:
    """Run a peer until SIGTERM or Ctrl-C: answer other peers and follow channels.

    Every option can also be set in the environment, as CABLESTORE_SERVE_LISTEN and so on, with spaces between several
    values, or in a file. Options override the environment, and the environment overrides the file.
    """
    if not (listen or connect or reconcile_listen or reconcile_connect):
        raise click.UsageError("no address is given: use --listen 127.0.0.1:13333, --connect HOST:PORT, or both")
    if (reconcile_listen or reconcile_connect) and not chosen["reconcile"]:
        raise click.UsageError("--reconcile-listen and --reconcile-connect need --reconcile")
    settings = settings_of(chosen)
    from cablestore.cli import serve  # noqa: PLC0415 - as in `values`

    serve.log_to_standard_error(
        is_json=log_format == "json" or (log_format is None and not sys.stderr.isatty()),
        level=log_level or ("warning" if quiet else "info"),
    )
    if quiet:
        out = Output(as_json=False, quiet=True)
    serve.warn_of(unknown_variables(ctx.command))
    with open_store(path, create=create) as store:
        plan = serve.ServePlan(settings, listen, connect, metrics, reconcile_listen, reconcile_connect)
        return serve.run(store, path, out, plan)


@click.command(context_settings={"auto_envvar_prefix": "CABLESTORE_SYNC"})
@click.argument("address", metavar="HOST:PORT", type=AddressType(to_connect=True))
@_sync_options
@common_options
def sync(path: Path, out: Output, address: Address, create: bool, **chosen: Any) -> None:
    """Fetch once what a peer has and this store lacks. The peer may fetch what it lacks at the same time.

    Options can also be set in the environment, as CABLESTORE_SYNC_CABAL_KEY and so on.
    """
    settings = settings_of(chosen)
    from cablestore.cli import serve  # noqa: PLC0415 - as in `values`

    with open_store(path, create=create) as store, out.progress("syncing", None) as progress:
        report = serve.sync_once(store, settings, address, progress)
    _tell_sync(out, report)
    if report.unstored:
        raise StorageError(
            f"{report.unstored:,} of the received posts could not be written to the disk: make room, then sync again"
        )


def _tell_sync(out: Output, report: SyncReport) -> None:
    text = (
        f"{report.posts:,} new posts of {report.channels:,} channels in {report.seconds:.1f} s, "
        f"{size(report.received_size_bytes)} received, {size(report.sent_size_bytes)} sent"
    )
    if report.refused:
        text += f"; {report.refused:,} were refused"
    if report.missing:
        text += f"; {report.missing:,} were offered but did not arrive"
    out.say(
        text,
        channels=report.channels,
        posts=report.posts,
        refused=report.refused,
        missing=report.missing,
        unstored=report.unstored,
        received_size_bytes=report.received_size_bytes,
        sent_size_bytes=report.sent_size_bytes,
        seconds=round(report.seconds, 3),
    )


COMMANDS: Final = (serve, sync)
