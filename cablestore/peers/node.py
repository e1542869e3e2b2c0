"""The node: listens, connects, and brings together peers, the store, live requests, forwarding and syncing."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, Self

from cablestore import limits
from cablestore.errors import NodeError
from cablestore.peers.answering import Answer
from cablestore.peers.connection import Connection, new_request_id
from cablestore.peers.held import Held
from cablestore.peers.inspecting import Inspecting
from cablestore.peers.live import LiveRequests
from cablestore.peers.metrics import Metrics
from cablestore.peers.news import News
from cablestore.peers.reconcile_once import reconcile_once
from cablestore.peers.reconcile_port import OwnPort
from cablestore.peers.reconciler import Reconciling
from cablestore.peers.reconnect import retrying
from cablestore.peers.relay import Forward, Loops, Route
from cablestore.peers.report import ReconcileReport, SyncReport
from cablestore.peers.settings import Address, NodeSettings
from cablestore.peers.stopwatch import Stopwatch
from cablestore.peers.sync import Sync
from cablestore.peers.sync_state import Marks
from cablestore.peers.threads import Feed, Reads, Writes
from cablestore.protocol.exchange import Asker, Exchange
from cablestore.protocol.message import ListRequest, PostRequest, Request
from cablestore.protocol.recognition import Greeter
from cablestore.protocol.secure_channel import SecureChannel
from cablestore.protocol.session import Session
from cablestore.store.store import CableStore

_TICK_S: Final = 1.0
_ROWS_PER_FORWARD: Final = 20
"""What it costs to ask another peer, in rows."""
_STOP_TIMEOUT_S: Final = 5.0


class Node:
    """A store among peers. Use it in an `async with` on the loop that it is to run on.

    >>> async with Node(store, NodeSettings()) as node:
    ...     await node.listen(Address("127.0.0.1", 13333))
    ...     node.keep_connected(Address("192.0.2.7", 13333))
    """

    def __init__(self, store: CableStore, settings: NodeSettings | None = None) -> None:
        self.store: Final = store
        self.dialect: Final = store.dialect
        self.settings: Final = settings or NodeSettings()
        self.log: Final = logging.getLogger("cablestore.node")
        self.loop: asyncio.AbstractEventLoop
        self.watch: Stopwatch
        """Tells what the loop spends."""
        self.reads: Reads
        self.writes: Writes
        self.metrics: Final = Metrics(self)
        self.connections: Final[set[Connection]] = set()
        self.live: Final = LiveRequests(store.dialect)
        self.marks: Final = Marks(store.path)
        self.once: Final[set[Address]] = set()
        """Peers that are just being called for one purpose."""
        self.sync: Final = Sync(self)
        self.reconciling: Final = Reconciling(self)
        self.own_port: Final = OwnPort(self)
        self._inspecting: Final = Inspecting(self)
        self._feed: Feed
        self._by_session: Final[dict[Session, Connection]] = {}
        self._by_host: Final[Counter[str]] = Counter()
        self._routes: Final[dict[Exchange, Route]] = {}
        self._loops: Final = Loops()
        self._servers: Final[list[asyncio.Server]] = []
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._held_back: Final[set[Connection]] = set()
        """Connections that are not read from until there is room for their posts."""
        self._is_stopping = False

    # --- life ----------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Start the threads and the clock."""
        self.loop = asyncio.get_running_loop()
        self.watch = Stopwatch()
        self.reads = Reads(self.store, self.loop)
        self.writes = Writes(self.store, self.loop)
        self._feed = Feed(
            self.store, self.loop, lambda: bool(self.connections), lambda: self.live.state_channels, self._deliver
        )
        self.run(self._tick())
        self.run(self.sync.look_at_channels())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Stop in good order: no new connections, what is written goes out, what arrived is stored."""
        self._is_stopping = True
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        connections = list(self.connections)
        for connection in connections:
            connection.end("the node stops")
        closing = [connection.closed for connection in connections]
        if closing:
            await asyncio.wait(closing, timeout=_STOP_TIMEOUT_S)
        for connection in list(self.connections):
            connection.close("the node stops")
        await self.own_port.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.reconciling.close()
        await self._inspecting.close()
        for worker in (self._feed, self.writes):
            await self.loop.run_in_executor(None, worker.close)
        await self.reads.close()
        await asyncio.sleep(0)  # what the threads handed over last
        self.marks.save()

    def run(self, work: Any) -> asyncio.Task[None]:
        """Run a coroutine until it ends or the node stops."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and not self._is_stopping:
            self.log.error("a task failed", exc_info=task.exception())

    async def listen(self, address: Address) -> Address:
        """Take connections. Returns where, with the port that was given for port 0. Raises NodeError."""
        try:
            server = await self.loop.create_server(lambda: Connection(self), address.host, address.port, backlog=1024)
        except (OSError, ValueError) as error:  # ValueError: no host can have this name
            raise NodeError(f"cannot listen on {address}: {getattr(error, 'strerror', None) or error}") from None
        self._servers.append(server)
        found = Address(*server.sockets[0].getsockname()[:2])
        self.log.info("listening", extra={"address": str(found), "encrypted": self.settings.cabal_key is not None})
        return found

    async def connect(self, address: Address, timeout_s: float = limits.HANDSHAKE_TIMEOUT_S) -> Connection:
        """Connect to a peer, the handshake included. Raises NodeError."""
        connection: Connection | None = None
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await self.loop.create_connection(lambda: Connection(self, address), *address)
                is_established = await asyncio.shield(connection.established)
        except TimeoutError:
            raise NodeError(f"{address} does not answer within {timeout_s:g} s") from None
        except (OSError, ValueError) as error:  # ValueError: no host can have this name
            raise NodeError(f"cannot connect to {address}: {getattr(error, 'strerror', None) or error}") from None
        finally:
            if connection is not None and not connection.is_established:
                connection.close("the handshake was not done in time")
        if not is_established:
            raise NodeError(f"no connection with {address}: {await asyncio.shield(connection.closed)}")
        return connection

    def keep_connected(self, address: Address) -> None:
        """Stay connected to a peer: where that fails, try again after ever longer times."""

        async def connected() -> None:
            connection = await self.connect(address)
            await asyncio.wait({connection.closed})

        self.run(retrying(self, address, connected))

    async def sync_once(self, address: Address, progress: Any = None) -> SyncReport:
        """Fetch what a peer has and the store lacks, then let go of the peer. Raises NodeError."""
        return await self.sync.once(address, progress)

    async def reconcile_once(
        self,
        address: Address,
        *,
        since_ms: int = 0,
        over_cable: bool = False,
        is_audit: bool = False,
        progress: Any = None,
        report: ReconcileReport | None = None,
    ) -> ReconcileReport:
        """Reconcile with a store at its own port, or at its Cable port, once, then let go of it.

        Posts move both ways, of the channels and the window of the settings and not older than `since_ms`. An audit moves
        none. What came of it is counted in `report`, where there is an error too. Raises NodeError and ReconcileError.
        """
        return await reconcile_once(
            self,
            address,
            since_ms=since_ms,
            over_cable=over_cable,
            is_audit=is_audit,
            progress=progress,
            report=report or ReconcileReport(),
        )

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            now_s = self.loop.time()
            for connection in list(self.connections):
                connection.tick(now_s)
            self._disconnect_slowest()
            self.marks.save()

    def _disconnect_slowest(self) -> None:
        sizes = {connection: connection.held_size_bytes for connection in self.connections}
        held = sum(sizes.values())
        if held <= self.settings.max_queued_total_size_bytes:
            return
        by_size = sorted(sizes, key=sizes.__getitem__)
        while held > self.settings.max_queued_total_size_bytes:
            slowest = by_size.pop()
            held -= sizes[slowest]
            slowest.close("it reads too slowly, and the memory for queues is used up")

    # --- connections ---------------------------------------------------------------------------

    def new_session(self, *, greets: bool) -> Session:
        """Make the session of a connection. It speaks when it is told to, with `greets` so that it can be recognised."""
        return Session(
            self.dialect,
            Greeter(new_request_id) if greets else new_request_id,
            speaks_first=False,
            spares=self.settings.spares_cable_js and self.settings.cabal_key is None,
            max_requests_alive=self.settings.max_requests_alive,
            answer_timeout_s=self.settings.answer_timeout_s,
        )

    def new_channel(self, *, is_initiator: bool, beside: bytes = b"") -> SecureChannel | None:
        """Make the encrypted channel of a connection, None where the node has no cabal key. `beside` is of another port's prologue."""
        settings = self.settings
        if settings.cabal_key is None:
            return None
        identity = self.store.identity
        return SecureChannel(
            cabal_key=settings.cabal_key,
            static_secret=identity.separate_exchange_secret
            if settings.has_separate_static_key
            else identity.exchange_secret,
            is_initiator=is_initiator,
            prologue=settings.prologue + beside,
            max_message_size_bytes=limits.MAX_MESSAGE_SIZE_BYTES + 16,
        )

    def admit(self, connection: Connection) -> str:
        """Take a connection up. Returns why not, or ""."""
        self.connections.add(connection)
        self._by_session[connection.session] = connection
        self._by_host[connection.host] += 1
        self.metrics.connected(is_ours=connection.dialed is not None)
        if self._is_stopping:
            return "the node stops"
        if len(self.connections) > self.settings.max_peers:
            return f"more than {self.settings.max_peers} peers"
        if self._by_host[connection.host] > self.settings.max_peers_per_address:
            return f"more than {self.settings.max_peers_per_address} peers from one address"
        return self._too_many_handshakes(connection) if self.settings.cabal_key else ""

    def _too_many_handshakes(self, connection: Connection) -> str:
        hosts = [known.host for known in self.connections if not known.is_established]
        if len(hosts) > self.settings.max_handshakes:
            return f"more than {self.settings.max_handshakes} handshakes in progress"
        if hosts.count(connection.host) > self.settings.max_handshakes_per_address:
            return f"more than {self.settings.max_handshakes_per_address} handshakes in progress with one address"
        return ""

    def established(self, connection: Connection) -> None:
        """Begin to talk with a peer."""
        self.log.info("connected", extra={"peer": connection.name, "dialed": connection.dialed is not None})
        self.sync.begin(connection)
        if self.settings.reconciles and not connection.is_once:
            self.reconciling.greet(connection)

    def lost(self, connection: Connection, reason: str) -> None:
        """Forget a connection that is over."""
        self.connections.discard(connection)
        self._held_back.discard(connection)
        self._by_session.pop(connection.session, None)
        self._by_host[connection.host] -= 1
        if not self._by_host[connection.host]:
            del self._by_host[connection.host]
        self.metrics.disconnected(connection)
        self.log.info("disconnected", extra={"peer": connection.name, "reason": reason})
        self.sync.lost(connection)

    def connection_of(self, session: Session) -> Connection | None:
        """Return the connection that a session is of, None when it is over."""
        return self._by_session.get(session)

    # --- answering -----------------------------------------------------------------------------

    def takes_up(self, connection: Connection, exchange: Exchange) -> bool:
        """Begin to follow a request of a peer; False for one that came in a circle and is not answered again."""
        request = exchange.request
        self.metrics.asked(request)
        if request.ttl > 0 and self.settings.relays:
            if self._loops.is_loop(connection.session, request, self._by_session):
                connection.session.refuse(exchange)
                return False
            is_forwarded = not (isinstance(request, ListRequest) and request.offset > 0)
            if is_forwarded and connection.is_within_its_share():
                route = self._routes[exchange] = Route(connection.session, exchange, self._inspecting)
                if not isinstance(request, PostRequest):
                    self._forward(route)
        if request.is_live:
            self.live.add(connection, exchange)
        return True

    def is_asked_too_often(self, connection: Connection, request: Request) -> bool:
        """Tell whether a peer has too many live requests about the same already: each of them is told all news of it."""
        return request.is_live and self.live.alike(connection, request) >= limits.MAX_LIVE_ALIKE

    def _forward(self, route: Route, hashes: tuple[bytes, ...] | None = None) -> None:
        others = [known.session for known in self.connections if known.is_established]
        route.forward(others, self.loop.time(), hashes)
        origin = self._by_session.get(route.origin)
        if origin is not None:
            origin.charge(_ROWS_PER_FORWARD * len(others))
        self._flush_all()

    def _flush_all(self) -> None:
        for connection in list(self.connections):
            connection.flush()

    def to_give(self, exchange: Exchange, hashes: list[bytes]) -> Sequence[bytes]:
        """Return which of these hashes of the store the peer is to get: those that it did not get from others."""
        route = self._routes.get(exchange)
        return hashes if route is None else route.fresh(hashes)

    def answered(self, connection: Connection, answer: Answer) -> None:
        """The store has no more for a request: conclude it, or wait for others, or for the future."""
        exchange = answer.exchange
        self.metrics.answered(exchange.request, self.loop.time() - answer.began_s)
        route = self._routes.get(exchange)
        if exchange.is_over:
            pass
        elif route is not None:
            self._answered_here(route, answer)
        elif isinstance(exchange.request, ListRequest):
            connection.session.answer_names(exchange, answer.names)
        else:
            connection.session.finish(exchange)
        live = self.live.get(exchange) if exchange.request.is_live else None
        if live is not None:
            live.caught_up(answer.sequence)
        if exchange.is_over:
            self.dropped(exchange)

    def _answered_here(self, route: Route, answer: Answer) -> None:
        """The store has no more for a request that others are asked too; for posts they are asked only now."""
        route.names.update(answer.names)
        if isinstance(route.exchange.request, PostRequest):
            route.fresh(answer.found)
            missing = tuple(digest for digest in route.exchange.request.hashes if digest not in answer.found)
            if missing:
                self._forward(route, missing)
        route.finish()

    def dropped(self, exchange: Exchange) -> None:
        """Forget a request of a peer that is over."""
        if exchange.request.is_live:
            self.live.remove(exchange)
        route = self._routes.pop(exchange, None)
        if route is not None:
            route.end()
            self._flush_all()

    def relayed(self, owner: Asker) -> None:
        """Send on what came from one peer for another."""
        if isinstance(owner, Forward):
            self.sent_on(owner.route)

    def sent_on(self, route: Route) -> None:
        """Send what a route has passed on, and forget the request where that was the end."""
        origin = self._by_session.get(route.origin)
        if origin is not None:
            origin.flush()
        if route.exchange.is_over:
            self.dropped(route.exchange)

    def _deliver(self, news: list[News]) -> None:
        self.sync.heard(news)
        for live in self.live.deliver(news):
            live.connection.flush()
            if live.exchange.is_over:
                self.dropped(live.exchange)

    def store_posts(self, connection: Connection, posts: list[bytes], stored: Any) -> None:
        """Have posts of a peer stored. Where too much waits already, nothing more is read from it until there is room."""
        self.store_for(connection.name, posts, stored)
        if self.writes.queued_size_bytes > limits.MAX_INGEST_QUEUE_SIZE_BYTES:
            self._held_back.add(connection)
            connection.hold_back(Held.STORING, holds=True)

    def store_for(self, peer: str, posts: list[bytes], stored: Any) -> None:
        """Have posts stored, and tell what became of them."""

        def done(outcomes: Any) -> None:
            stored(outcomes)
            if outcomes is None:
                self.metrics.failed_writes += 1
                self.sync.fetches.halt()
                self.log.error("posts could not be stored", extra={"peer": peer, "reason": self.writes.failure})
            else:
                self.metrics.stored(outcomes)
            if self.writes.queued_size_bytes < limits.MAX_INGEST_QUEUE_SIZE_BYTES // 2:
                while self._held_back:
                    self._held_back.pop().hold_back(Held.STORING, holds=False)

        self.writes.submit(posts, done)
