"""The commands `serve` and `sync`: a node on uvloop, signals, logs."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import structlog

from cablestore import __version__, limits
from cablestore.chat.hosting import RunningNode, with_stored_channels
from cablestore.cli import values
from cablestore.cli.inspect_options import inspect_options, shown_beside
from cablestore.cli.maintenance_options import maintenance_options
from cablestore.cli.options import common_options, on_mount
from cablestore.cli.output import Output, safe, size
from cablestore.cli.policy_options import check_policy, policy_options
from cablestore.cli.serve_options import (
    AddressType,
    address_options,
    invited,
    setting_options,
    settings_of,
    sync_options,
)
from cablestore.cli.serve_plan import ServePlan, SettingsReloader, log_level_of, plan_of
from cablestore.cli.serve_start import ServePages, open_served
from cablestore.cli.service import StopSignals, call_on_sigusr1, fast_loop, ignore_sigusr1, is_started, run_on_loop
from cablestore.cli.service_manager import service_manager
from cablestore.cli.settings_file import PREFIX, ServeCommand, read_config, unknown_variables
from cablestore.cli.stores import offered, open_to_sync
from cablestore.errors import NodeError, StorageError
from cablestore.index.header import peek
from cablestore.maintenance import Maintenance
from cablestore.moderation import Seed, UserRole
from cablestore.peers import Address, Invitation, Node, NodeSettings, SyncReport, descriptors
from cablestore.peers.metrics_http import shown
from cablestore.peers.status_pages import StatusPages
from cablestore.plurals import counted
from cablestore.remote.methods import load_functions
from cablestore.store.store import CableStore

_LOG: Final = logging.getLogger("cablestore.node")

_SECTIONS: Final = {
    "Addresses": ("listen", "connect", "reconcile_listen", "reconcile_connect", "metrics"),
    "Cabal and channels": (
        "invitation",
        "cabal_key",
        "moderation_seed",
        "channels",
        "window",
        "follow",
        "list_every",
        "prologue",
        "separate_static_key",
    ),
    "Sending to peers": ("relay", "spare_cable_js"),
    "Reconciliation": (
        "reconcile",
        "reconcile_every",
        "reconcile_window",
        "reconcile_delay",
        "reconcile_all_every",
    ),
    "Limits": (
        "max_peers",
        "max_peers_per_address",
        "max_handshakes",
        "max_handshakes_per_address",
        "idle_timeout",
        "max_queued_size",
        "rows_per_s",
        "rows_in_advance",
    ),
    "Policy": ("policy", "policy_command", "policy_timeout", "policy_failure", "max_store_size", "min_free_space"),
    "Maintenance": ("backup_to", "backup_every", "backup_keep", "backup_require_mount", "keep", "keep_channel"),
    "Inspection": ("inspect", "inspect_token", "inspect_behind_proxy", "inspect_public"),
    "Output and logs": ("log_format", "log_level", "quiet", "as_json"),
}
"""Options of `serve` by section of its help."""


# --- serving --------------------------------------------------------------------------------------


def run(
    store: CableStore, path: Path, out: Output, pages: ServePages, signals: StopSignals, reloader: SettingsReloader
) -> None:
    """Serve an open store until a signal stops the process."""
    plan = reloader.plan
    # A new identity is created here, so that a problem with its file is reported early.
    public_key = store.identity.public_key.hex()
    shown_on = pages.open()
    faulthandler.enable()  # the watchdog of a service manager aborts a process that hangs
    descriptors.allow(plan.settings.max_peers)
    sys.setswitchinterval(limits.SWITCH_INTERVAL_S)
    load_functions()
    watched = RunningNode(plan.settings.cabal_key, plan.connect)
    with offered(store, "serve", watched):
        _LOG.info("started", extra={"version": __version__, "store": str(path), "public_key": public_key})
        run_on_loop(lambda: _serve(store, out, watched, shown_on, signals, reloader), fast_loop)
    _LOG.info("stopped", extra={"store": str(path)})


async def _serve(
    store: CableStore,
    out: Output,
    watched: RunningNode,
    pages: StatusPages | None,
    signals: StopSignals,
    reloader: SettingsReloader,
) -> None:
    received = signals.catch_on_loop()
    node = Node(store, reloader.plan.settings)
    maintenance = Maintenance(store, reloader.plan.maintenance)
    async with node:
        node.parts.context.metrics.registry.register(maintenance.metrics)
        call_on_sigusr1(node.dial_now)
        beside = [asyncio.create_task(work) for work in (watched.follow(node), service_manager().send_signs_of_life())]
        async with AsyncExitStack() as stack:
            # Looking up the host of a listening address may take long, and a signal must not wait for it.
            starting = asyncio.create_task(_open_ports(node, store, stack, out, watched, pages, reloader.plan))
            await stack.enter_async_context(maintenance)
            if await is_started(starting, received):
                signals.reload_with(partial(reloader.reload, node, watched, maintenance))
            ended_by = await received
        for task in beside:
            task.cancel()
        service_manager().stopping()
        _LOG.info("stopping", extra={"signal": ended_by.name, "peers": len(node.connections)})


async def _open_ports(
    node: Node,
    store: CableStore,
    stack: AsyncExitStack,
    out: Output,
    watched: RunningNode,
    pages: StatusPages | None,
    plan: ServePlan,
) -> None:
    """Listen and connect according to the plan, and report that the service is ready."""
    await watched.listen(node, plan.listen)
    for wanted in plan.reconcile_listen:
        await node.reconcile_port.listen(wanted)
    if pages is not None:
        stack.enter_context(shown(pages, node))
    for found in node.addresses():
        out.say(f"listening on {found}", listening=str(found))
    for found in node.reconcile_port.addresses():
        out.say(f"reconciling on {found}", reconciling=str(found))
    for wanted in plan.connect:
        node.keep_connected(wanted)
    for wanted in plan.reconcile_connect:
        node.reconcile_port.keep_connected(wanted)
    if plan.inspect is not None:
        await stack.enter_async_context(shown_beside(store, watched, plan.inspect, out))
    service_manager().ready()


# --- logs -----------------------------------------------------------------------------------------


def log_to_standard_error(*, is_json: bool, level: str) -> None:
    """Log to standard error: JSON lines, or readable text."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(is_json=is_json, is_terminal=sys.stderr.isatty()))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("cablestore").setLevel(level.upper())


def _formatter(*, is_json: bool, is_terminal: bool) -> logging.Formatter:
    stamp = structlog.processors.TimeStamper(fmt="iso" if is_json else "%Y-%m-%d %H:%M:%S", utc=is_json)
    look: list[Any]
    if is_json:
        look = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    else:
        # The default tracebacks show local variables, which may contain keys.
        console = structlog.dev.ConsoleRenderer(
            colors=is_terminal, pad_event_to=24, exception_formatter=structlog.dev.plain_traceback
        )
        look = [_safe_on_terminals, console]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[stamp, structlog.stdlib.add_log_level, structlog.stdlib.ExtraAdder()],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *look],
    )


def _safe_on_terminals(_: Any, __: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape control characters, which peers may put into a reason."""
    return {key: safe(value) if isinstance(value, str) else value for key, value in fields.items()}


# --- commands -------------------------------------------------------------------------------------


@on_mount("path")
@click.command(cls=ServeCommand, sections=_SECTIONS, context_settings={"auto_envvar_prefix": PREFIX})
@click.option(
    "--config",
    type=values.PathValue(),
    envvar="CABLESTORE_CONFIG",
    is_eager=True,
    expose_value=False,
    callback=read_config,
    help="TOML file with these options in a table [serve].",
)
@address_options
@sync_options
@click.option(
    "--moderation-seed",
    type=values.moderation_seed,
    metavar="@FILE|HEX",
    help="Moderation seed for joining the cabal. Its users are admins or mods until you revoke the seed.",
)
@click.option(
    "--follow/--no-follow",
    default=True,
    help="Request posts from peers, or only answer their requests [default: follow].",
)
@click.option(
    "--metrics",
    type=AddressType(),
    metavar="HOST:PORT",
    help="Serve Prometheus metrics on this address [default: off].",
)
@policy_options
@maintenance_options
@inspect_options
@setting_options
@click.option(
    "--log-format",
    type=click.Choice(["json", "text"]),
    help="Format of the log on standard error [default: text on a terminal, else json].",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Minimum level to log [default: info, or warning with -q].",
)
@click.option("-q", "--quiet", is_flag=True, help="Do not print to standard output, and log only warnings and errors.")
@common_options
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    path: Path,
    out: Output,
    log_format: str | None,
    quiet: bool,
    create: bool,
    **chosen: Any,
) -> int:
    """Run a peer until SIGTERM or Ctrl-C. The peer answers other peers and follows channels.

    Environment variables such as CABLESTORE_SERVE_LISTEN also set options, with spaces between several values. The file
    of --config also sets options. Options override the environment, and the environment overrides the file. On SIGHUP,
    `serve` reads the file and the policy again. Peers, limits, intervals and the log level change at once.

    Example: `cablestore serve --listen 0.0.0.0:13333 --cabal-key @cabal-key`
    """
    log_to_standard_error(
        is_json=log_format == "json" or (log_format is None and not sys.stderr.isatty()), level=log_level_of(ctx.params)
    )
    plan = plan_of(chosen)
    check_policy(path, plan.settings)
    if quiet:
        out = Output(as_json=False, quiet=True)
    unknown = unknown_variables(ctx.command)
    if unknown:
        _LOG.warning("unknown variables in the environment", extra={"names": unknown})
    is_new = create and peek(path) is None
    ignore_sigusr1()
    with (
        StopSignals(reloads=True) as signals,
        ServePages(plan.metrics, out) as pages,
        open_served(path, pages, create=create) as store,
    ):
        if is_new:
            _log_new(store, path)
        if plan.moderation_seed is not None:
            join_with_seed(store, plan.moderation_seed)
        plan = plan._replace(settings=with_stored_channels(store, plan.settings))
        run(store, path, out, pages, signals, SettingsReloader(ctx, plan))
    return signals.status


def _log_new(store: CableStore, path: Path) -> None:
    """Log that a store is new. The reason may be that the disk of an existing store is not mounted."""
    _LOG.warning(
        "created a new store with a new key, because none was found",
        extra={"store": str(path), "public_key": store.identity.public_key.hex()},
    )


def join_with_seed(store: CableStore, text: str) -> bool:
    """Join a store with a moderation seed, unless the store already has this seed or revoked it.

    Returns True if the store joined.
    """
    known = store.moderation.seed
    if known is not None and known.roles == Seed.read_hex(text, 0).roles:
        if known.revoked_at_ms is not None:
            _LOG.warning("moderation seed ignored, because it was revoked", extra={"users": len(known.roles)})
        return False
    store.moderation.join_with_seed(text)
    _LOG.info(
        "joined with a moderation seed (`cablestore moderation --revoke-seed` revokes it)",
        extra={f"{role.name.lower()}_{number}": user.hex() for number, (user, role) in enumerate(_seeded(store), 1)},
    )
    return True


def join_as_invited(store: CableStore, invitation: Invitation | None, out: Output) -> None:
    """Join a store with the moderation seed of an invitation, if any, and print a note."""
    if invitation is not None and invitation.seed and join_with_seed(store, invitation.seed.hex()):
        out.note("joined with the moderation seed of the invitation. `cablestore moderation` shows and revokes it")


def _seeded(store: CableStore) -> tuple[tuple[bytes, UserRole], ...]:
    seed = store.moderation.seed
    return () if seed is None else seed.roles


@click.command(context_settings={"auto_envvar_prefix": "CABLESTORE_SYNC"})
@click.argument("address", metavar="[HOST:PORT]", required=False, type=AddressType(to_connect=True))
@sync_options
@common_options
def sync(path: Path, out: Output, address: Address | None, create: bool, **chosen: Any) -> None:
    """Fetch missing posts from a peer once.

    A peer that runs cablestore also receives the posts that it lacks. Other peers may request posts during the sync.

    Without HOST:PORT, the command uses the first reachable peer of the invitation. Environment variables such as
    CABLESTORE_SYNC_CABAL_KEY also set options.

    Example: `cablestore sync peer.example:13333 --cabal-key @cabal-key`
    """
    invitation = invited(chosen)
    addresses = (address,) if address is not None else () if invitation is None else invitation.peers
    if not addresses:
        raise click.UsageError(
            "Missing argument 'HOST:PORT'."
            if invitation is None
            else "the invitation does not contain peers. Add HOST:PORT"
        )
    settings = settings_of(chosen)
    with open_to_sync(path, out, create=create) as store:
        join_as_invited(store, invitation, out)
        settings = with_stored_channels(store, settings)
        with out.progress("syncing", None) as progress:
            report = run_on_loop(lambda: _sync_once(store, settings, addresses, progress, out), fast_loop)
    _print_sync(out, report)
    if report.unstored:
        raise StorageError(
            f"cannot store {counted(report.unstored, 'received post')}: writing to the disk failed. Free disk "
            "space, then run the command again"
        )


async def _sync_once(
    store: CableStore,
    settings: NodeSettings,
    addresses: tuple[Address, ...],
    progress: Callable[[int], None],
    out: Output,
) -> SyncReport:
    """Sync with the peers in order until one sync succeeds. Raises the error of the last sync."""
    *others, last = addresses
    async with Node(store, settings) as node:
        for address in others:
            try:
                return await node.sync_once(address, progress)
            except NodeError as error:
                out.note(f"{error}. Trying the next peer")
        return await node.sync_once(last, progress)


def _print_sync(out: Output, report: SyncReport) -> None:
    text = (
        f"fetched {counted(report.posts, 'new post')} in {counted(report.channels, 'channel')}, "
        f"{report.seconds:.1f} s, {size(report.received_size_bytes)} received, {size(report.sent_size_bytes)} sent"
    )
    if report.refused:
        text += f"; {report.refused:,} rejected"
    if report.early:
        text += f", {report.early:,} of them dated in the future (check the clock)"
    if report.missing:
        text += f"; {report.missing:,} offered but not received"
    out.say(text, **asdict(report) | {"seconds": round(report.seconds, 3)})


COMMANDS: Final = (serve, sync)
