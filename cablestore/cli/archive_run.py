"""Commands that give history archives over BitTorrent until they are ended: archive seed, and archive run for control nodes."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import click

from cablestore.cli.archive_options import (
    address,
    cabal_key_option,
    folder_argument,
    json_option,
    key_of,
    making_options,
    needs_extra,
    seeding_options,
    tell_made,
    writable,
)
from cablestore.cli.control_socket import ControlServer, Reply, Request, ask, connect
from cablestore.cli.output import Duration, Output, common_options
from cablestore.cli.remote import told_by
from cablestore.cli.service_manager import tell_ready
from cablestore.errors import OwnerGoneError, StorageError, StoreLockedError
from cablestore.store.store import system_clock_ms

if TYPE_CHECKING:
    from cablestore.archive.seed import Seeder
    from cablestore.archive.torrent.engine import TorrentConfig, TorrentEngine

_INTERRUPTED: Final = 130
_LOOK_EVERY_S: Final = 1.0
_AGAIN_MS: Final = 10_000
"""When a step is tried again for which the store could not be had."""
_SEEDING: Final = "seeding"
"""What `archive status` asks of the process that gives a folder."""


# --- commands -------------------------------------------------------------------------------------


@click.command()
@folder_argument
@click.option("--community", required=True, help="The community's name below FOLDER: the control node's public key.")
@cabal_key_option
@seeding_options
@json_option
@needs_extra
def seed(
    folder: Path,
    community: str,
    cabal_key: str | None,
    listen: str,
    trackers: tuple[str, ...],
    dht: bool,
    upload_rate: int,
    as_json: bool,
) -> int:
    """Give a community's archives over BitTorrent until SIGTERM or Ctrl-C. Prints the magnet link.

    The folder has to be whole. Archives that it gains are given too, and the new link is printed.
    """
    from cablestore.archive.torrent.engine import TorrentEngine  # noqa: PLC0415 - an extra, see archive_options

    out = Output(as_json=as_json)
    config = _config(folder, listen, trackers, dht=dht, upload_rate=upload_rate)
    with _Signals() as signals, TorrentEngine(config) as engine:
        giving = _Giving(out, engine, key_of(cabal_key))
        with giving.offered(folder / community):
            giving.begin(community)
            tell_ready()
            signals.wait(giving.look)
    return signals.status


@click.command()
@folder_argument
@making_options
@click.option(
    "--settle",
    "settle_ms",
    type=Duration(),
    default="30m",
    show_default=True,
    metavar="DURATION",
    help="How long a week is over before its archive is made: posts that come later get one of their own.",
)
@seeding_options
@common_options
@needs_extra
def run(
    path: Path,
    out: Output,
    folder: Path,
    profile: str,
    cabal_key: str | None,
    public: bool,
    settle_ms: int,
    listen: str,
    trackers: tuple[str, ...],
    dht: bool,
    upload_rate: int,
) -> int:
    """Be a control node: make the archives of each week when it is over, give them, announce them, until SIGTERM or Ctrl-C.

    The store may be open in `cablestore serve`, which then does what needs the store. Prints each new link. Ends with
    another status than 0 when the archives cannot be made or given any more.
    """
    from cablestore.archive.torrent.engine import TorrentEngine  # noqa: PLC0415 - an extra, see archive_options

    config = _config(folder, listen, trackers, dht=dht, upload_rate=upload_rate)
    making = {"folder": folder, "profile": profile, "cabal_key": cabal_key, "public": public, "settle_ms": settle_ms}
    with _Signals() as signals, TorrentEngine(config) as engine, ExitStack() as stack:
        giving = _Giving(out, engine, None if public else key_of(cabal_key))
        node = _ControlNode(path, out, making, giving, stack)
        node.look()
        tell_ready()
        signals.wait(node.look)
    return signals.status


def _config(folder: Path, listen: str, trackers: tuple[str, ...], *, dht: bool, upload_rate: int) -> TorrentConfig:
    from cablestore.archive.torrent.engine import TorrentConfig  # noqa: PLC0415 - an extra

    host, port = address(listen)
    return TorrentConfig(
        enabled=True,
        port=port,
        listen_address=host,
        data_folder=writable(folder),
        torrent_folder=folder,
        trackers=trackers,
        dht=dht,
        upload_rate_bytes_per_s=upload_rate,
    )


# --- what they do ---------------------------------------------------------------------------------


class _Giving:
    """A community's folder that is given, and what is told of it: each link, and to `archive status` how it goes."""

    def __init__(self, out: Output, engine: TorrentEngine, key: bytes | None) -> None:
        self._out = out
        self._engine = engine
        self._key = key
        self.seeding: Seeder | None = None

    @contextmanager
    def offered(self, community_folder: Path) -> Iterator[None]:
        """Answer `archive status` meanwhile, where the disk takes sockets."""
        with ExitStack() as stack:
            try:
                stack.enter_context(ControlServer(community_folder, self._answer))
            except StorageError as error:
                self._out.note(f"archive status cannot tell how it goes: {error}")
            yield

    def begin(self, community: str) -> None:
        """Give a folder from now on."""
        from cablestore.archive.seed import Seeder  # noqa: PLC0415 - an extra

        self.seeding = Seeder(self._engine, community, self._key)
        self._say()

    def look(self) -> None:
        """Take up what is new in the folder. Raises what `Seeding.look` raises."""
        if self.seeding is not None and self.seeding.look():
            self._say()

    def _say(self) -> None:
        assert self.seeding is not None  # noqa: S101 - the callers saw to it
        self._out.say(self.seeding.link, magnet=self.seeding.link, port=self._engine.port)

    def _answer(self, request: Request, reply: Reply) -> int:
        """Tell how it goes. Called in a thread for each that asks."""
        if request.command != _SEEDING or self.seeding is None:
            return 2
        host = self._engine.config.listen_address
        found = {
            "seeding": self.seeding.link,
            "listening": f"[{host}]:{self._engine.port}" if ":" in host else f"{host}:{self._engine.port}",
            "peers": self.seeding.peers,
            "given_bytes": self.seeding.given_bytes,
        }
        reply.write("out", json.dumps(found))
        return 0


def seeding_now(community_folder: Path) -> dict[str, Any]:
    """Return what the process tells that gives a folder just now: its link, where it listens, peers, bytes given; else None of each."""
    nothing = dict.fromkeys(("seeding", "listening", "peers", "given_bytes"))
    connection = connect(community_folder)
    if connection is None:
        return nothing
    request = Request(_SEEDING, {}, json=True, width=1, terminal=False)
    with connection:
        try:
            told = dict(ask(connection, request))
        except OwnerGoneError:
            return nothing
    found: dict[str, Any] = json.loads(told.get("out", "{}"))
    return nothing | found


@dataclass
class _ControlNode:
    """What is done for one community, look by look: make what is due, give it, announce the link."""

    store: Path
    out: Output
    making: dict[str, Any]
    """The parameters of `archive create`."""
    giving: _Giving
    stack: ExitStack
    """Ends with the command."""
    community: str = ""
    due_ms: int = 0
    announced: str = ""
    again_ms: int = 0
    problem: str = ""

    def look(self) -> None:
        """Do what is to be done now. Raises where that is not possible, and will not be."""
        now_ms = system_clock_ms()
        if now_ms >= max(self.due_ms, self.again_ms):
            self._with_store(self._make)
        if self.giving.seeding is None and self._has_archives():
            self.giving.begin(self.community)
        self.giving.look()
        link = self.giving.seeding.link if self.giving.seeding else self.announced
        if link != self.announced and now_ms >= self.again_ms:
            self._with_store(lambda: self._announce(link))

    def _make(self) -> None:
        from cablestore.archive.format.period import due_after  # noqa: PLC0415 - an extra

        now_ms = system_clock_ms()
        [made] = told_by(self.store, "create", **self.making)
        if not self.community:
            self.community = made["community"]
            self.stack.enter_context(self.giving.offered(self.making["folder"] / self.community))
        self.due_ms = due_after(now_ms, self.making["settle_ms"])
        tell_made(self.out, made)

    def _has_archives(self) -> bool:
        from cablestore.archive.folder import ArchiveFolder  # noqa: PLC0415 - an extra

        return bool(self.community) and ArchiveFolder(self.making["folder"] / self.community).state() is not None

    def _announce(self, link: str) -> None:
        [told] = told_by(self.store, "announce", link=link)
        self.announced = link
        if told["hash"]:
            self.out.say(f"announced by post {told['hash']}", announced=link, hash=told["hash"])

    def _with_store(self, step: Callable[[], None]) -> None:
        """Do a step; where another process has the store and does nothing for others, put it off."""
        try:
            step()
        except (StoreLockedError, OwnerGoneError) as error:
            self.again_ms = system_clock_ms() + _AGAIN_MS
            if str(error) != self.problem:
                self.out.note(f"{error}: trying again")
            self.problem = str(error)
        else:
            self.problem = ""


class _SignalledError(BaseException):
    """Ends whatever the main thread does, as KeyboardInterrupt does."""


class _Signals:
    """SIGTERM and Ctrl-C end the body of the `with`, `status` is the exit status then. A second one ends the process at once."""

    def __init__(self) -> None:
        self.status = 0
        self._is_asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for each in (signal.SIGINT, signal.SIGTERM):
            self._before[each] = signal.signal(each, self._ask)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        for each, before in self._before.items():
            signal.signal(each, before)
        return kind is _SignalledError

    def wait(self, look: Callable[[], None]) -> None:
        """Look each second until a signal comes, or a look raises."""
        while not self._is_asked:
            look()
            time.sleep(_LOOK_EVERY_S)

    def _ask(self, number: int, _: object) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        self._is_asked = True
        self.status = _INTERRUPTED if number == signal.SIGINT else 0
        raise _SignalledError


COMMANDS: Final = (seed, run)
