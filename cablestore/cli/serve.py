"""Work of `serve`, `sync` and `reconcile`: a node on uvloop, signals, logs. Imported only by commands that need it."""

from __future__ import annotations

import asyncio
import logging
import resource
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from cablestore import __version__
from cablestore.cli.output import Output, safe
from cablestore.cli.remote import control
from cablestore.cli.service import StopSignal, tell_ready
from cablestore.errors import StorageError
from cablestore.extras import naming_extras
from cablestore.peers import Address, Node, NodeSettings, ReconcileReport, SyncReport
from cablestore.store.store import CableStore

T = TypeVar("T")
_LOG: Final = logging.getLogger("cablestore.node")
_OTHER_FILES: Final = 512
"""Files that a process has open besides connections of peers: LevelDB's tables, the control socket, scrapes of metrics."""


class ServePlan(NamedTuple):
    """Settings and addresses of a run of `serve`."""

    settings: NodeSettings
    listen: tuple[Address, ...]
    connect: tuple[Address, ...]
    metrics: Address | None
    reconcile_listen: tuple[Address, ...] = ()
    reconcile_connect: tuple[Address, ...] = ()


# --- serving --------------------------------------------------------------------------------------


def run(store: CableStore, path: Path, out: Output, plan: ServePlan) -> int:
    """Serve an open store until a signal. Returns the exit status."""
    # A new identity is created now, so that a problem with its file is reported now.
    public_key = store.identity.public_key.hex()
    _allow_files(plan.settings.max_peers + _OTHER_FILES)
    with _controlled(store, path):
        _LOG.info("started", extra={"version": __version__, "store": str(path), "public_key": public_key})
        status = _run(_serve(store, out, plan))
    _LOG.info("stopped", extra={"store": str(path)})
    return status


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run work on uvloop, of the extra cablestore[serve], or on Python's own loop where it is not installed."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ModuleNotFoundError:
        return asyncio.run(work)
    return uvloop.run(work)


async def _serve(store: CableStore, out: Output, plan: ServePlan) -> int:
    stop = StopSignal()
    async with Node(store, plan.settings) as node:
        with ExitStack() as stack:
            if plan.metrics is not None:
                with naming_extras("metrics need"):
                    from cablestore.peers.metrics_http import exporter  # noqa: PLC0415 - needs an extra
                address = stack.enter_context(exporter(node, plan.metrics))
                out.say(f"metrics on {address}", metrics=str(address))
            for wanted in plan.listen:
                found = await node.listen(wanted)
                out.say(f"listening on {found}", listening=str(found))
            for wanted in plan.reconcile_listen:
                found = await node.reconcile_port.listen(wanted)
                out.say(f"reconciling on {found}", reconciling=str(found))
            for wanted in plan.connect:
                node.keep_connected(wanted)
            for wanted in plan.reconcile_connect:
                node.reconcile_port.keep_connected(wanted)
            tell_ready()
            name, status = await stop.wait()
        _LOG.info("stopping", extra={"signal": name, "peers": len(node.connections)})
    return status


@contextmanager
def _controlled(store: CableStore, path: Path) -> Iterator[None]:
    """Run commands for other processes during the body, if the file system supports sockets."""
    with ExitStack() as stack:
        try:
            stack.enter_context(control(store, path))
        except StorageError as error:
            _LOG.warning("other commands cannot use the store meanwhile", extra={"reason": str(error)})
        yield


def _allow_files(wanted: int) -> None:
    """Raise the limit of open files to what peers may need. Most shells set 1,024 and let a process raise it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError):  # a sandbox forbids it, or the kernel has a lower limit
        allowed = soft
    if allowed < wanted:
        _LOG.warning("too few open files are allowed for all peers", extra={"allowed": allowed, "wanted": wanted})


# --- syncing --------------------------------------------------------------------------------------


def sync_once(
    store: CableStore, settings: NodeSettings, address: Address, progress: Callable[[int], None]
) -> SyncReport:
    """Sync once with a peer."""

    async def work() -> SyncReport:
        async with Node(store, settings) as node:
            return await node.sync_once(address, progress)

    return _run(work())


def reconcile_once(
    store: CableStore,
    settings: NodeSettings,
    address: Address,
    *,
    since_ms: int,
    over_cable: bool,
    is_audit: bool,
    progress: Callable[[int], None],
) -> ReconcileReport:
    """Reconcile once with a peer."""

    async def work() -> ReconcileReport:
        async with Node(store, settings) as node:
            return await node.reconcile_once(
                address, since_ms=since_ms, over_cable=over_cable, is_audit=is_audit, progress=progress
            )

    return _run(work())


# --- logs -----------------------------------------------------------------------------------------


def log_to_standard_error(*, is_json: bool, level: str) -> None:
    """Log to standard error: lines of JSON for machines, or text for people."""
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
        # Its default tracebacks show local variables, and some of those are keys.
        console = structlog.dev.ConsoleRenderer(
            colors=is_terminal, pad_event_to=24, exception_formatter=structlog.dev.plain_traceback
        )
        look = [_safe_on_terminals, console]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[stamp, structlog.stdlib.add_log_level, structlog.stdlib.ExtraAdder()],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *look],
    )


def _safe_on_terminals(_: Any, __: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape control characters that peers may have put into a reason."""
    return {key: safe(value) if isinstance(value, str) else value for key, value in fields.items()}


def warn_of(variables: list[str]) -> None:
    """Log environment variables that have no meaning."""
    if variables:
        _LOG.warning("unknown variables in the environment", extra={"names": variables})
