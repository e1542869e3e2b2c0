"""The parts of a node, created when it starts: services, ports and threads, and the references between them."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import Final

from cablestore.peers.bans import Bans
from cablestore.peers.cable_port import CablePort
from cablestore.peers.clock_watch import ClockWatch
from cablestore.peers.connection import Connection, Links, disconnect_slowest
from cablestore.peers.context import PeerContext
from cablestore.peers.dialling import Dials
from cablestore.peers.health import Health
from cablestore.peers.intake import PostIntake
from cablestore.peers.judge import PostJudge
from cablestore.peers.key_warnings import KeyWarnings
from cablestore.peers.lifetime import Lifetime
from cablestore.peers.mark_saver import MarkSaver
from cablestore.peers.metrics import Metrics, NodeLoad
from cablestore.peers.node_health import node_health
from cablestore.peers.peer_control import PeerControl
from cablestore.peers.peer_events import PeerWatchers
from cablestore.peers.policy import NAME as POLICY_NAME
from cablestore.peers.policy_command import PolicyCommand
from cablestore.peers.policy_keeper import PolicyKeeper
from cablestore.peers.quota import Quota, quota_limits
from cablestore.peers.reachability import Reachability
from cablestore.peers.reconcile_port import ReconcilePort
from cablestore.peers.reconciler import Reconciler
from cablestore.peers.rejected_posts import RejectionReason
from cablestore.peers.restrictions import RestrictionKeeper
from cablestore.peers.serving import Serving
from cablestore.peers.settings import NodeSettings
from cablestore.peers.sweeper import Sweeper
from cablestore.peers.sync import Sync
from cablestore.peers.sync_state import SyncState
from cablestore.peers.threads import ReadThread, Stopwatch, WriteThread
from cablestore.peers.write_watch import WriteWatch
from cablestore.store.store import CableStore


class NodeParts:
    """The parts of one run of a node. Each part refers only to the parts that it uses, and not to the node."""

    def __init__(
        self,
        store: CableStore,
        settings: NodeSettings,
        life: Lifetime,
        metrics: Metrics,
        watchers: PeerWatchers,
        threads: ExitStack,
    ) -> None:
        """Create the parts on the running loop. The calls that end their threads are added to `threads`."""
        loop, log = life.loop, life.log
        marks, bans = SyncState(store.path, store.sync), Bans(store.path)  # before threads start: they read files
        in_store = None if store.path is None else store.path / POLICY_NAME
        policies = PolicyKeeper(
            settings.policy_path or in_store,
            store.dialect,
            loop,
            self._policy_changed,
            is_chosen=settings.policy_path is not None,
        )
        reads = threads.enter_context(closing(ReadThread(store, loop)))
        writes = threads.enter_context(closing(WriteThread(store, loop, policies)))
        self.context: Final = PeerContext(
            store=store,
            dialect=store.dialect,
            settings=settings,
            life=life,
            loop=loop,
            log=log,
            watch=Stopwatch(),
            reads=reads,
            restrictions=RestrictionKeeper(store, reads, self._restricted),
            writes=writes,
            marks=marks,
            metrics=metrics,
            watchers=watchers,
            dials=Dials(loop.time),
            key_warnings=KeyWarnings(log),
            bans=bans,
            policies=policies,
        )
        self.links: Final = Links()
        """The connections of both ports."""
        self.control: Final = PeerControl(self.links, bans, self.context.dials, policies, loop)
        self.quota: Final = Quota(
            store, reads, writes, life, quota_limits(settings), settings.channels, self._quota_eased
        )
        self.command: Final = PolicyCommand(settings.policy_command, log) if settings.policy_command else None
        self.judge: Final = threads.enter_context(closing(PostJudge(self.context, self.quota, self.command)))
        self.intake: Final = PostIntake(self.context, self.judge, self.quota)
        self.sync: Final = Sync(self.context, self.intake, self.links.cable)
        self.reconciler: Final = threads.enter_context(closing(Reconciler(self.context, self.sync, self.links)))
        self.sweeper: Final = threads.enter_context(closing(Sweeper(store, log)))
        self.write_watch: Final = threads.enter_context(closing(WriteWatch(store, loop, log, self._writes_recovered)))
        self.serving: Final = threads.enter_context(
            closing(Serving(self.context, self.links.cable, self.sync, self.reconciler.node_ids))
        )
        self.cable_port: Final = CablePort(self.context, self.serving, self.sync, self.reconciler, self.links.cable)
        self.reconcile_port: Final = ReconcilePort(self.context, self.reconciler, self.links.reconcile)
        self.reachability: Final = Reachability(self.context, self.links)
        self.clock_watch: Final = ClockWatch(self.context, self.intake, self.sync, self.reconciler)
        self.mark_saver: Final = MarkSaver(self.context)

    @property
    def ports(self) -> tuple[CablePort, ReconcilePort]:
        """The Cable port and the reconciliation port."""
        return self.cable_port, self.reconcile_port

    def tick(self, now_s: float) -> None:
        """Run all checks that depend on time. Call it every second."""
        context = self.context
        self.reachability.check(now_s)
        for link in self.links:
            link.tick(now_s)
        disconnect_slowest(self.links.cable, context.settings.max_queued_total_size_bytes)
        self.clock_watch.check(now_s)
        if context.restrictions.are_outdated():  # by a seed, or while no peers were connected
            context.restrictions.read_soon()
        self.write_watch.retry()
        self.sweeper.check()
        self.mark_saver.check(now_s)
        self.quota.change(quota_limits(context.settings))
        self.quota.check()

    def end_work(self) -> None:
        """Stop watching the network, removing dropped posts and reading restrictions."""
        self.reachability.close()
        self.sweeper.stop()
        self.context.restrictions.close()

    def load(self) -> NodeLoad:
        """Return the present load. Callable in any thread."""
        connections, context = list(self.links.cable), self.context
        return NodeLoad(
            peers=len(connections),
            silent_peers=sum(connection.is_silent for connection in connections),
            unreachable_peers=sum(not dial.is_connected for dial in context.dials.states()),
            live_requests=self.serving.live.count,
            queued_size_bytes=sum(connection.queued_size_bytes for connection in connections),
            received_size_bytes=sum(connection.received_size_bytes for connection in connections),
            sent_size_bytes=sum(connection.sent_size_bytes for connection in connections),
            reads_waiting=context.reads.waiting,
            ingest_queued_size_bytes=context.writes.queued_size_bytes,
            wanted_hashes=len(self.sync.fetches.pending),
            early_posts=len(self.intake.early),
            postponed_posts=len(self.intake.postponed),
            judged_posts=0 if self.command is None else self.command.pending,
            policy_command_failure="" if self.command is None else self.command.failure,
            quota=self.quota.state,
            quota_room_bytes=self.quota.room_bytes,
        )

    def health(self, lag_s: float) -> Health:
        """Return the present health, if the event loop is late by `lag_s`. Callable in any thread."""
        return node_health(self.context, self.serving, self.load(), lag_s)

    def _restricted(self, dropped: frozenset[str], requests_again: bool) -> None:
        """Apply new restrictions: disconnect blocked users (4.6.1.1), and stop requesting dropped channels.

        With `requests_again`, request posts again that the earlier restrictions rejected.
        """
        for link in self.links:
            if link.is_established and link.audience.is_blocked:
                if isinstance(link, Connection):
                    self.sync.lost(link)
                link.banish()
        self.sync.restricted(dropped, requests_again=requests_again)

    def _policy_changed(self) -> None:
        """Apply a changed policy: disconnect rejected peers, and request posts again that were rejected before.

        All disconnected peers are dialled now, because the policy may no longer reject them.
        """
        self.control.disconnect_rejected()
        self.context.dials.retry_now()
        if self.judge.apply_change():
            self.sync.restricted((), requests_again=True)
            self.reconciler.compare_again()

    def _quota_eased(self) -> None:
        """Request posts again that the quota rejected before."""
        if self.intake.rejected.forget(RejectionReason.QUOTA):
            self.sync.restricted((), requests_again=True)
            self.reconciler.compare_again()

    def _writes_recovered(self) -> None:
        """Request posts from all peers again: posts received during the failure were not stored."""
        self.context.writes.failure = ""
        self.sync.fetches.resume()
        self.sync.restricted((), requests_again=True)
