"""Commands that seed archives over BitTorrent until they are stopped: seed, and run for control nodes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cablestore.archive.folder import ArchiveFolder
from cablestore.archive.format.magnet import check_community
from cablestore.archive.format.period import due_after
from cablestore.archive.torrent.config import TorrentConfig
from cablestore.cli.archive_options import (
    address,
    cabal_key_option,
    create,
    creating_options,
    folder_argument,
    key_of,
    print_created,
    seeding_options,
    writable,
)
from cablestore.cli.archive_publish import announce_new
from cablestore.cli.options import common_options, json_option, on_mount
from cablestore.cli.output import Output
from cablestore.cli.seeding_status import SeedingReporter
from cablestore.cli.service import StopSignals
from cablestore.cli.service_manager import service_manager
from cablestore.cli.stores import open_or_connect
from cablestore.errors import OwnerGoneError, StorageError, StoreLockedError
from cablestore.index.batches import no_progress
from cablestore.store.options import system_clock_ms

if TYPE_CHECKING:
    from cablestore.archive.seed import Seeder
    from cablestore.archive.torrent.engine import TorrentEngine

_AGAIN_MS: Final = 10_000
"""Delay before retrying a step that found the store in use."""


# --- commands -------------------------------------------------------------------------------------


@click.command()
@folder_argument
@click.option(
    "--community", required=True, help="Name of the community's folder below FOLDER: the control node's public key."
)
@cabal_key_option
@seeding_options
@json_option
def seed(
    folder: Path,
    community: str,
    cabal_key: str | None,
    as_json: bool,
    **seeding: Any,
) -> int:
    """Seed a community's archives over BitTorrent until SIGTERM or Ctrl-C. Print the magnet link.

    The folder must contain all archives of its index, and may be on a read-only disk. Archives that are added later
    are seeded too, and the new link is printed.

    Example: `cablestore archive seed archives --community KEY`
    """
    check_community(community)
    out = Output(as_json=as_json)
    engine = _engine(folder, **seeding)
    with StopSignals() as signals, engine, ExitStack() as stack:
        giving = _SeededFolder(out, engine, key_of(cabal_key))
        giving.offer(folder / community, stack)
        giving.begin(community)
        service_manager().ready()
        signals.wait(giving.seed_new)
    return signals.status


@on_mount("folder")
@click.command()
@creating_options(
    "Delay between the end of a week and the creation of its archive. Later posts go into a separate archive.",
    default="30m",
    show_default=True,
)
@seeding_options
@common_options
def run(
    path: Path,
    out: Output,
    listen: str,
    trackers: tuple[str, ...],
    dht: bool,
    upload_rate: int,
    **making: Any,
) -> int:
    """Run a control node until SIGTERM or Ctrl-C: create the archives of each past week, seed and announce them.

    If `cablestore serve` has the store open, this command connects to it. Prints each new link.
    The exit status is not 0 if the archives can no longer be created or seeded.

    Example: `cablestore archive run archives --cabal-key @cabal-key`
    """
    engine = _engine(writable(making["folder"]), listen, trackers, dht=dht, upload_rate=upload_rate)
    with StopSignals() as signals, engine, ExitStack() as stack:
        giving = _SeededFolder(out, engine, None if making["public"] else key_of(making["cabal_key"]))
        node = _ControlNode(path, out, making, giving, stack)
        node.run_due()
        service_manager().ready()
        signals.wait(node.run_due)
    return signals.status


def _engine(folder: Path, listen: str, trackers: tuple[str, ...], *, dht: bool, upload_rate: int) -> TorrentEngine:
    from cablestore.archive.torrent.engine import TorrentEngine  # noqa: PLC0415 - needs libtorrent

    host, port = address(listen)
    config = TorrentConfig(
        enabled=True,
        port=port,
        listen_address=host,
        data_folder=folder,
        torrent_folder=folder,
        trackers=trackers,
        dht=dht,
        upload_rate_bytes_per_s=upload_rate,
    )
    return TorrentEngine(config)


# --- seeding and creating --------------------------------------------------------------------------


class _SeededFolder:
    """Seeded folder of a community. It prints each link, and answers `archive status`."""

    def __init__(self, out: Output, engine: TorrentEngine, key: bytes | None) -> None:
        self._out = out
        self._engine = engine
        self._key = key
        self.seeding: Seeder | None = None

    def offer(self, community_folder: Path, stack: ExitStack) -> None:
        """Serve `archive status` until the stack is closed, if the file system supports sockets."""
        try:
            stack.enter_context(SeedingReporter(community_folder, self._report))
        except StorageError as error:
            self._out.note(f"`archive status` cannot show the seeded archives: {error}")

    def begin(self, community: str) -> None:
        """Start seeding the folder of a community."""
        from cablestore.archive.seed import Seeder  # noqa: PLC0415 - needs libtorrent

        self.seeding = Seeder(self._engine, community, self._key)
        self._print_link()

    def seed_new(self) -> None:
        """Seed new archives of the folder. Raises the errors of `Seeder.seed_new`."""
        if self.seeding is not None and self.seeding.seed_new():
            self._print_link()

    def _print_link(self) -> None:
        assert self.seeding is not None  # noqa: S101 - `begin` was called
        self._out.say(self.seeding.link, magnet=self.seeding.link, port=self._engine.port)

    def _report(self) -> dict[str, Any]:
        """Return the fields for `archive status`. Called in a thread."""
        seeding, host = self.seeding, self._engine.config.listen_address
        if seeding is None:
            return {}
        return {
            "seeding": seeding.link,
            "listening": f"[{host}]:{self._engine.port}" if ":" in host else f"{host}:{self._engine.port}",
            "peers": seeding.peers,
            "given_bytes": seeding.given_bytes,
        }


@dataclass
class _ControlNode:
    """Control node of a community: creates archives when they are due, seeds them, and announces the link."""

    store: Path
    out: Output
    making: dict[str, Any]
    """Parameters of `archive create`."""
    giving: _SeededFolder
    stack: ExitStack
    """Closed at the end of the command."""
    community: str = ""
    due_ms: int = 0
    announced: str = ""
    again_ms: int = 0
    problem: str = ""

    def run_due(self) -> None:
        """Run the steps that are due. Raises all errors except those of a store in use, whose steps are retried."""
        now_ms = system_clock_ms()
        if now_ms >= max(self.due_ms, self.again_ms):
            self._with_store(self._make)
        if self.giving.seeding is None and self._has_archives():
            self.giving.begin(self.community)
        self.giving.seed_new()
        link = self.giving.seeding.link if self.giving.seeding else self.announced
        if link != self.announced and now_ms >= self.again_ms:
            self._with_store(lambda: self._announce(link))

    def _make(self) -> None:
        now_ms = system_clock_ms()
        made = create(self.store, no_progress, **self.making)
        if not self.community:
            self.community = made["community"]
            self.giving.offer(self.making["folder"] / self.community, self.stack)
        self.due_ms = due_after(now_ms, self.making["settle_ms"])
        print_created(self.out, made)

    def _has_archives(self) -> bool:
        return bool(self.community) and ArchiveFolder(self.making["folder"] / self.community).state() is not None

    def _announce(self, link: str) -> None:
        with open_or_connect(self.store) as store:
            post = announce_new(store, link)
        self.announced = link
        if post is not None:
            self.out.say(f"announced in post {post.hex()}", announced=link, hash=post.hex())

    def _with_store(self, step: Callable[[], None]) -> None:
        """Run `step`. If another process has the store open and does not serve it, print a note and retry later."""
        try:
            step()
        except (StoreLockedError, OwnerGoneError) as error:
            self.again_ms = system_clock_ms() + _AGAIN_MS
            if str(error) != self.problem:
                self.out.note(f"{error}. Retrying every {_AGAIN_MS // 1000} s")
            self.problem = str(error)
        else:
            self.problem = ""


COMMANDS: Final = (seed, run)
