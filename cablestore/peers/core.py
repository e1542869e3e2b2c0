"""The core of a node: brings together its ports, the store, live requests, forwarding, syncing and reconciling."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

from cablestore import limits
from cablestore.forks import ProcessBound, bind
from cablestore.interruptible import in_thread
from cablestore.peers.address import Address
from cablestore.peers.answering import Answer
from cablestore.peers.clock_watch import ClockWatch
from cablestore.peers.connection import Connection, disconnect_slowest
from cablestore.peers.context import PeerContext
from cablestore.peers.dialling import Dials
from cablestore.peers.inspecting import InspectionThread
from cablestore.peers.intake import PostIntake
from cablestore.peers.key_warnings import KeyWarnings
from cablestore.peers.lifetime import Lifetime
from cablestore.peers.link import ITSELF, PeerLink
from cablestore.peers.listener import PeerListener
from cablestore.peers.live import LiveRequests
from cablestore.peers.mark_saver import MarkSaver
from cablestore.peers.metrics import Metrics, NodeLoad
from cablestore.peers.news import News
from cablestore.peers.peer_events import Peer, PeerWatchers
from cablestore.peers.reachability import Reachability
from cablestore.peers.reconcile_port import ReconcilePort
from cablestore.peers.reconciler import Reconciler
from cablestore.peers.relay import Loops, Route
from cablestore.peers.restrictions import RestrictionKeeper
from cablestore.peers.settings import NodeSettings
from cablestore.peers.sweeper import Sweeper
from cablestore.peers.sync import Sync
from cablestore.peers.sync_state import SyncState
from cablestore.peers.threads import FeedThread, ReadThread, Stopwatch, WriteThread, beside_loop
from cablestore.peers.told import ToldPosts
from cablestore.peers.write_watch import WriteWatch
from cablestore.protocol.exchange import Exchange, Fault, Names, ResponseEvent
from cablestore.protocol.message import ListRequest, PostRequest, Request, StateRequest, TimeRangeRequest
from cablestore.protocol.session import Session
from cablestore.store.store import CableStore

_TICK_S: Final = 1.0
_FORWARDS_TICK_S: Final = limits.RELAY_STEP_S / 2
"""How often forwarded requests are looked at. Half of the step is left for the way of the answer."""
_GRACE_LOOK_S: Final = 0.01
"""How often a node that stops looks whether peers have asked for what they were told of."""
_ROWS_PER_FORWARD: Final = 20
"""What it costs to ask another peer, in rows."""


class NodeCore(ProcessBound):
    """One run of a node: its parts, and the `ConnectionOwner` of its connections. `Node` is what programs see of it."""

    context: PeerContext
    sync: Sync
    reconciler: Reconciler
    reconcile_port: ReconcilePort
    intake: PostIntake
    sweeper: Sweeper
    listener: PeerListener[Connection]
    _mark_saver: MarkSaver
    _inspection: InspectionThread
    _feed: FeedThread

    def __init__(self, store: CableStore, settings: NodeSettings, watchers: PeerWatchers) -> None:
        """Prepare a run on the running loop. `start` starts it."""
        self.store: Final = store
        self.settings = settings
        self.log: Final = logging.getLogger("cablestore.node")
        self.life: Final = Lifetime(asyncio.get_running_loop(), self.log)
        self.metrics: Final = Metrics(store, self.load)
        self.live: Final = LiveRequests(store.dialect)
        self.watchers: Final = watchers
        self._told: Final = ToldPosts()
        self.has_started = False
        self._threads: Final = ExitStack()
        """Ends the threads that were started, the last one first. It waits for them, in any thread."""
        self._by_session: Final[dict[Session, Connection]] = {}
        self._routes: Final[dict[Exchange, Route]] = {}
        """By the request of the peer that asked."""
        self._routes_of_forwarded: Final[dict[Exchange, Route]] = {}
        """By the requests to other peers."""
        self._loops: Final = Loops()
        bind(self)

    def _sockets(self) -> Iterable[int]:
        """Return the descriptors of all ports and connections: a peer must notice when this process ends."""
        return (*self.listener.sockets(), *self.reconcile_port.sockets()) if self.has_started else ()

    # --- life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the threads and tasks. If that fails or is cancelled, nothing of them is left."""
        try:
            self._make_parts(self.life.loop)
            await self.context.restrictions.read()
        except BaseException:
            await self.stop()
            raise
        self.life.run(self._tick())
        self.life.run(self._expire_forwards())
        self.life.run(self.sync.look_at_channels())

    def _make_parts(self, loop: asyncio.AbstractEventLoop) -> None:
        at_end = self._threads.callback
        marks = SyncState(self.store.path, self.store.sync)  # before there are threads: it reads a file
        reads = ReadThread(self.store, loop)
        at_end(reads.close)
        writes = WriteThread(self.store, loop)
        at_end(writes.close)
        self.context = context = PeerContext(
            store=self.store,
            dialect=self.store.dialect,
            settings=self.settings,
            life=self.life,
            loop=loop,
            log=self.log,
            watch=Stopwatch(),
            reads=reads,
            restrictions=RestrictionKeeper(self.store, reads, self._restricted),
            writes=writes,
            marks=marks,
            metrics=self.metrics,
            watchers=self.watchers,
            dials=Dials(loop.time),
            key_warnings=KeyWarnings(self.log),
            run=self.life.run,
        )
        self.listener = PeerListener(context, partial(Connection, context, self), self._keep)
        self.intake = PostIntake(context, self._halt_fetches)
        self.sync = Sync(context, self.intake, self.connections)
        self.reconciler = Reconciler(context, self.sync, self.links)
        at_end(self.reconciler.close)
        self.reconcile_port = ReconcilePort(context, self.reconciler)
        self.reachability = Reachability(context, self.links)
        self.clock_watch = ClockWatch(context, self.intake, self.sync, self.reconciler)
        self._mark_saver = MarkSaver(context)
        self.sweeper = Sweeper(self.store, self.log)
        at_end(self.sweeper.close)
        self.write_watch = WriteWatch(self.store, loop, self.log, self._writes_recovered)
        at_end(self.write_watch.close)
        self._inspection = InspectionThread(context, self._by_session.get, self._send_on)
        at_end(self._inspection.close)
        self._feed = FeedThread(
            self.store, loop, lambda: bool(self.connections), lambda: self.live.state_channels, self._deliver
        )
        at_end(self._feed.close)
        self.has_started = True

    def change_settings(self, settings: NodeSettings) -> None:
        """Use other limits and intervals."""
        self.settings = self.context.settings = settings

    async def stop(self) -> None:
        """Stop in good order: no new connections, what is written goes out, what arrived is stored.

        If the caller is cancelled meanwhile, peers get no more time. All the same, nothing of the node is left when
        CancelledError is raised.
        """
        finish, ports = self.life.finish, (self.listener, self.reconcile_port) if self.has_started else ()
        self.life.end()
        for port in ports:
            port.stop()
        await finish(self._let_peers_ask(), may_hurry=True)
        self._end_work()
        await finish(asyncio.gather(*(port.close() for port in ports)), may_hurry=True)
        await finish(self.life.tasks_ended())
        await finish(asyncio.gather(*(port.abort() for port in ports)))
        if self.has_started:
            self.context.reads.flush()
        await finish(beside_loop(self._threads.close))
        await finish(self._save_last())
        self.watchers.close()
        self.life.conclude()

    def _end_work(self) -> None:
        self.life.cancel_tasks()
        if self.has_started:
            self.reachability.close()
            self.sweeper.stop()
            self.context.restrictions.close()

    async def _save_last(self) -> None:
        """Take what the threads handed over last, and save the marks."""
        await asyncio.sleep(0)
        if self.has_started:
            await self.context.save_marks()

    def abandon(self) -> None:
        """End the threads and close the sockets where nothing can be awaited: the loop does not run any more."""
        self.life.end()
        in_thread(self._threads.close)
        if self.has_started:
            self.reachability.close()
            self.listener.abandon()
            self.reconcile_port.abandon()
        self.watchers.close()

    async def _let_peers_ask(self) -> None:
        """Wait until peers have got the own posts that they were told of less than `grace_s` ago.

        What was written before is told first. A peer that does not ask is waited for until the time is over.
        """
        if not self.has_started or self.store.is_closed:
            return
        loop, grace_s = self.context.loop, self.settings.grace_s
        ends_s, last = loop.time() + grace_s, self.store.last_sequence
        while self.connections and loop.time() < ends_s:
            is_told = self._feed.reached >= last
            await asyncio.sleep(0)  # news that were handed to the loop go out
            if is_told and not self._told.is_recent(loop.time() - grace_s):
                return
            await asyncio.sleep(_GRACE_LOOK_S)

    async def _expire_forwards(self) -> None:
        while True:
            await asyncio.sleep(_FORWARDS_TICK_S)
            for connection in list(self.connections) if self._routes_of_forwarded else ():
                connection.expire(self.context.loop.time())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            now_s = self.context.loop.time()
            self.reachability.look(now_s)
            for link in self.links():
                link.tick(now_s)
            disconnect_slowest(self.connections, self.settings.max_queued_total_size_bytes)
            self.clock_watch.look(now_s)
            if self.context.restrictions.are_outdated():  # by a seed, or while there were no peers
                self.context.restrictions.read_soon()
            self.write_watch.retry()
            self.sweeper.look()
            self._mark_saver.look(now_s)

    def _halt_fetches(self) -> None:
        self.sync.fetches.halt()

    def _writes_recovered(self) -> None:
        """Ask all peers again: what came meanwhile was not stored."""
        self.context.writes.failure = ""
        self.sync.fetches.resume()
        self.sync.restricted((), asks_again=True)

    @property
    def feed_failure(self) -> str:
        """Why peers cannot be told what is new, or were not told of everything. "" if all is well."""
        return self._feed.failure

    def load(self) -> NodeLoad:
        """Return the load of the node at this moment. In any thread."""
        if not self.has_started:
            return NodeLoad()
        connections, context = list(self.connections), self.context
        return NodeLoad(
            peers=len(connections),
            silent_peers=sum(connection.is_silent for connection in connections),
            unreachable_peers=sum(not dial.is_connected for dial in context.dials.states()),
            live_requests=self.live.count,
            queued_size_bytes=sum(connection.queued_size_bytes for connection in connections),
            received_size_bytes=sum(connection.received_size_bytes for connection in connections),
            sent_size_bytes=sum(connection.sent_size_bytes for connection in connections),
            reads_waiting=context.reads.waiting,
            ingest_queued_size_bytes=context.writes.queued_size_bytes,
            wanted_hashes=len(self.sync.fetches.wanted),
            early_posts=len(self.intake.early),
        )

    # --- connections ---------------------------------------------------------------------------

    @property
    def connections(self) -> set[Connection]:
        """The connections of the Cable port, in both directions."""
        return self.listener.links

    def links(self) -> tuple[PeerLink, ...]:
        """Return the connections of both ports."""
        return (*self.connections, *self.reconcile_port.links)

    def peers(self) -> list[Peer]:
        """Return who is connected to either port, in order of time."""
        links = self.links() if self.has_started else ()
        return sorted((link.peer for link in links if link.is_established), key=lambda peer: peer.number)

    async def connect_once(self, address: Address) -> Connection:
        """Connect to a peer for one purpose: nothing else is asked of it."""
        return await self.listener.connect(address, new_link=partial(Connection, self.context, self, is_once=True))

    async def connect_met(self, address: Address) -> Connection:
        """Connect to a store that reconciles at its Cable port. Raises NodeError."""
        connection = await self.connect_once(address)
        await connection.require_met()
        return connection

    async def _keep(self, connection: Connection) -> None:
        """Use a connection that is kept, until it is over."""
        self.reconciler.node_ids.keep(connection)
        if await asyncio.shield(connection.met):
            self.reconciler.node_ids.announce(connection)
        await asyncio.wait({connection.closed})

    def admit(self, connection: Connection) -> str:
        """Add a connection. Returns why it is refused, or ""."""
        self._by_session[connection.session] = connection
        self.metrics.connections[connection.is_ours].inc()
        return self.listener.admit(connection)

    def established(self, connection: Connection) -> None:
        """Start to exchange messages with a peer."""
        self.log.info("connected", extra={"peer": connection.name, "dialed": connection.is_ours})
        other_end = next((known for known in self.connections if known.ends == connection.ends[::-1]), None)
        if other_end is not None and all(connection.ends):
            connection.close(ITSELF)
            other_end.close(ITSELF)
            return
        if self._feed.has_skipped:
            self._feed.has_skipped = False
            self.context.restrictions.read()
        if connection.audience.is_blocked:
            connection.banish()
            return
        self.sync.begin(connection)
        if self.settings.reconciles and not connection.is_once:
            connection.greet()

    def _restricted(self, dropped: frozenset[str], asks_again: bool) -> None:
        """Keep to restrictions that were read: end connections with those that the local user blocks (4.6.1.1)."""
        for link in self.links():
            if link.is_established and link.audience.is_blocked:
                if isinstance(link, Connection):
                    self.sync.lost(link)
                link.banish()
        self.sync.restricted(dropped, asks_again=asks_again)

    def met(self, connection: Connection) -> None:
        """Start to reconcile with a peer: both sides know that the other one does."""
        if connection.is_ours and not connection.is_once and not connection.is_banished:
            self.life.run(self.reconciler.keep_in_step(connection))

    def is_reconciling(self, connection: Connection) -> bool:
        """Tell whether a reconciliation over the connection is under way."""
        return self.reconciler.is_under_way(connection)

    def received_extra(self, connection: Connection, frame: bytes) -> None:
        """Take a frame of a reconciliation."""
        if not connection.is_banished:
            self.reconciler.received(connection, frame)

    def lost(self, connection: Connection) -> None:
        """Forget a connection that is over."""
        self.listener.remove(connection)
        self.intake.paused.discard(connection)
        self._told.lost(connection)
        self._by_session.pop(connection.session, None)
        self.metrics.disconnected(connection.received_size_bytes, connection.sent_size_bytes)
        self.sync.lost(connection)

    # --- answering -----------------------------------------------------------------------------

    def request(self, connection: Connection, exchange: Exchange) -> bool:
        """Start to follow a request of the peer. False if it was refused and must not be answered.

        That is so if the request came in a circle, or if the peer has too many live requests for the same already: each
        of them gets all news of it.
        """
        request = exchange.request
        if self.reconciler.node_ids.leads_here(connection):
            connection.session.refuse(exchange)
            return False
        if request.is_live and self.live.alike(connection, request) >= limits.MAX_LIVE_ALIKE:
            connection.faulted(Fault.TOO_MANY_REQUESTS.value, "live requests for the same")
            connection.session.refuse(exchange)
            return False
        self.metrics.requests[type(request)].inc()
        if request.ttl > 0 and self.settings.relays:
            if self._loops.is_loop(connection.session, request, self._by_session):
                connection.session.refuse(exchange)
                return False
            is_forwarded = not (isinstance(request, ListRequest) and request.offset > 0) and not self._is_dropped(
                request
            )
            if is_forwarded and connection.share.is_left() and not connection.is_banished:
                route = Route(connection.session, exchange, self._inspection, self._routes_of_forwarded)
                self._routes[exchange] = route
                if not isinstance(request, PostRequest):
                    self._forward(route)
        if request.is_live:
            self.live.add(connection, exchange)
        return True

    def _is_dropped(self, request: Request) -> bool:
        """Tell whether a request is for a channel that is dropped."""
        channel = request.channel if isinstance(request, TimeRangeRequest | StateRequest) else ""
        return self.store.dialect.channel_id(channel) in self.context.restrictions.now.channels

    def _forward(self, route: Route, hashes: tuple[bytes, ...] | None = None) -> None:
        others = [known.session for known in self.connections if known.is_established and not known.is_banished]
        route.forward(others, self.context.loop.time(), hashes)
        origin = self._by_session.get(route.origin)
        if origin is not None:
            origin.share.charge(_ROWS_PER_FORWARD * len(others))
        self._flush_all()

    def _flush_all(self) -> None:
        for connection in list(self.connections):
            connection.flush()

    def to_give(self, exchange: Exchange, hashes: list[bytes]) -> Sequence[bytes]:
        """Return those of the store's hashes that the peer did not get from others."""
        route = self._routes.get(exchange)
        return hashes if route is None else route.fresh(hashes)

    def answered(self, connection: Connection, answer: Answer) -> None:
        """Conclude a request for which the store has no more, unless others or the future may have."""
        exchange = answer.exchange
        if isinstance(exchange.request, PostRequest):
            self._told.gave(connection, exchange.request.hashes)
        self.metrics.answer_seconds[type(exchange.request)].observe(self.context.loop.time() - answer.began_s)
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
        """Add what the store had for a request that others are asked too. For posts, they are asked only now."""
        route.names.update(answer.names)
        if isinstance(route.exchange.request, PostRequest):
            route.fresh(answer.found)
            missing = tuple(digest for digest in route.exchange.request.hashes if digest not in answer.found)
            if missing:
                self._forward(route, missing)
        route.finish()

    def dropped(self, exchange: Exchange) -> None:
        """Forget a request of the peer that is over."""
        if exchange.request.is_live:
            self.live.remove(exchange)
        route = self._routes.pop(exchange, None)
        if route is not None:
            route.end()
            self._flush_all()

    def responded(self, connection: Connection, event: ResponseEvent) -> None:
        """Take a part of the answer to a request of ours, or its end: for the peer that it was forwarded for, or for us."""
        route = self._routes_of_forwarded.get(event.exchange)
        if route is None:
            self.sync.take(connection, event)
        else:
            if isinstance(event, Names):  # others may know a channel that is dropped here (moderation.md 5.1.3.7)
                dropped, channel_id = self.context.restrictions.now.channels, self.store.dialect.channel_id
                event = event._replace(channels=tuple(c for c in event.channels if channel_id(c) not in dropped))
            route.take(connection.session, event)
            self._send_on(route)

    def _send_on(self, route: Route) -> None:
        """Send what a route has passed on, and forget the request if that was the end."""
        origin = self._by_session.get(route.origin)
        if origin is not None:
            origin.flush()
        if route.exchange.is_over:
            self.dropped(route.exchange)

    def _deliver(self, news: list[News]) -> None:
        self.context.restrictions.heard(news)
        self.sync.heard(news)
        has_own = any(item.is_own for item in news)
        for live, items in self.live.deliver(news).items():
            if has_own:
                own = [item.hash for item in items if item.is_own]
                self._told.tell(live.connection, own, self.context.loop.time())
            live.connection.flush()
            if live.exchange.is_over:
                self.dropped(live.exchange)
