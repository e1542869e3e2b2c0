"""The store: posts in, indexed views out. What chat clients embed and peers are answered from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Self

from cablestore import limits
from cablestore.errors import InvalidPostError, OutdatedViewError, StoreClosedError
from cablestore.export.exporter import export_store
from cablestore.export.importer import ImportSummary, effective_tombstones, lay_skeletons, manifests_of, posts_of
from cablestore.export.manifest import Filters, Manifest
from cablestore.index import meta
from cablestore.index.batches import Progress, batches, no_progress
from cablestore.index.check import CheckReport, check
from cablestore.index.engine import Engine, check_closed, rebuild_closed
from cablestore.index.leveldb import Tuning
from cablestore.index.reader import Reader
from cablestore.index.rebuild import RebuildReport
from cablestore.index.signatures import SignatureVerifier
from cablestore.index.tombstone import Tombstone
from cablestore.index.verdict import Outcome, Verdict
from cablestore.index.view import Catalog
from cablestore.protocol.body import DELETE, TYPE_NAMES, Body, Delete
from cablestore.protocol.crypto import Identity
from cablestore.protocol.dialect import LEGACY, RESERVED_CHANNELS, Dialect
from cablestore.protocol.keys import after_prefix
from cablestore.protocol.post import Post
from cablestore.store import answers, retention
from cablestore.store.authoring import Authoring, Composer
from cablestore.store.intake import Batch, Intake
from cablestore.store.key_file import Owner, unseal_of
from cablestore.store.queries import Event, Reads, Snapshot, Stats
from cablestore.views import CATALOG, activity


def system_clock_ms() -> int:
    """Return the present time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class CableStore(Reads, Authoring):
    """An open store. Thread-safe within its process; one process at a time has it open.

    Read methods (`messages`, `channels`, `members`, ...) come from `Reads` and read the present state; `snapshot` gives
    one that stands still. `text`, `join` and the like come from `Authoring`.
    """

    def __init__(self, engine: Engine, owner: Owner, clock: Callable[[], int], threads: int | None) -> None:
        """Use `open` or `in_memory`."""
        self._engine = engine
        self._owner = owner
        self._verifier = SignatureVerifier(threads)
        self._intake = Intake(engine.dialect, self._verifier, clock, self._owner.known)
        self._composer = Composer(self._owner, clock)

    # --- opening and closing -------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        create: bool = True,
        dialect: Dialect | None = None,
        identity: Identity | None = None,
        rebuild_outdated: bool = False,
        catalog: Catalog = CATALOG,
        tuning: Tuning | None = None,
        verify_threads: int | None = None,
        clock: Callable[[], int] = system_clock_ms,
    ) -> Self:
        """Open the store in a folder, making it where `create` allows it.

        `dialect` is what a new store is made for (legacy without one), and must be that of an existing one. `identity`
        is used instead of the key file in the folder. With `rebuild_outdated`, a store whose views were built by another
        version is rebuilt first. `catalog` has the views to keep: all of cablestore's, and your own behind them.
        `clock` returns milliseconds since 1970.

        Raises OpenError (its subclasses say why), StorageError where the disk fails or is damaged, MissingDatabaseError
        where the header or the database that it names is lost: nothing is made in its place.
        """
        path = Path(path)
        tuning = tuning or Tuning()
        owner = Owner(identity, path)
        try:
            engine = Engine.open(path, catalog, create=create, dialect=dialect, tuning=tuning, unseal=owner.unseal)
        except OutdatedViewError:
            if not rebuild_outdated:
                raise
            cls.rebuild_closed(path, identity=identity, catalog=catalog)
            engine = Engine.open(path, catalog, create=False, dialect=dialect, tuning=tuning, unseal=owner.unseal)
        return cls(engine, owner, clock, verify_threads)

    @classmethod
    def in_memory(
        cls,
        *,
        dialect: Dialect = LEGACY,
        identity: Identity | None = None,
        catalog: Catalog = CATALOG,
        verify_threads: int | None = None,
        clock: Callable[[], int] = system_clock_ms,
    ) -> Self:
        """Make a store that keeps nothing once it is closed: for tests and throwaway clients."""
        owner = Owner(identity or Identity.generate(), None)
        return cls(Engine.in_memory(dialect, catalog, owner.unseal), owner, clock, verify_threads)

    @classmethod
    def rebuild_closed(
        cls,
        path: Path | str,
        *,
        identity: Identity | None = None,
        catalog: Catalog = CATALOG,
        processes: int | None = None,
        progress: Progress = no_progress,
    ) -> RebuildReport:
        """Rebuild a store that is not open, also one that cannot be opened: outdated views, damaged files.

        A large one is rebuilt in so many processes, as many as there are cores without a number; 1 stays in this one. What
        cannot be read is left out and reported; then the old database stays beside the new one. Raises OpenError,
        StorageError where files must not be read, IdentityError where the key of local-only posts is missing.
        """
        return rebuild_closed(Path(path), catalog, partial(unseal_of, identity, Path(path)), progress, processes)

    @classmethod
    def check_closed(
        cls,
        path: Path | str,
        *,
        identity: Identity | None = None,
        catalog: Catalog = CATALOG,
        signatures: bool = False,
        processes: int | None = None,
        progress: Progress = no_progress,
    ) -> CheckReport:
        """Do what `check` does with a store that is not open, a large one in several processes. Raises OpenError."""
        unseal = partial(unseal_of, identity, Path(path))
        return check_closed(Path(path), catalog, unseal, progress, processes, signatures=signatures)

    def close(self) -> None:
        """Close the store. Iterators and snapshots that are still open end with StoreClosedError."""
        self._engine.close()
        self._verifier.close()

    def __enter__(self) -> Self:
        """Return the store."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the store."""
        self.close()

    @property
    def dialect(self) -> Dialect:
        """The wire that the store was made for."""
        return self._engine.dialect

    @property
    def path(self) -> Path | None:
        """The store's folder, None for one in memory."""
        return None if self._engine.folder is None else self._engine.folder.path

    @property
    def identity(self) -> Identity:
        """Who writes here. The key file is made when this is first asked for, unless `open` was given an identity."""
        return self._owner.identity

    def import_identity(self, identity: Identity) -> None:
        """Write as `identity` from now on. Raises IdentityError where the store has another already."""
        self._owner.become(identity)

    # --- posts from others ---------------------------------------------------------------------

    def ingest(
        self, posts: Iterable[bytes], *, sync: bool = False, batch_posts: int = 100, verify: bool = True
    ) -> list[Outcome]:
        """Store posts as they come from peers. Returns what became of each, in order; nothing in a post raises.

        Each batch is one atomic write. With `sync` it is on the disk before the next begins and before this returns;
        without, a crash of the machine (not of the process) may lose the last seconds. `verify=False` trusts signatures:
        only for posts that this program just signed or verified.
        """
        return list(chain.from_iterable(self.ingest_batches(posts, sync=sync, batch_posts=batch_posts, verify=verify)))

    def ingest_batches(
        self, posts: Iterable[bytes], *, sync: bool = False, batch_posts: int = 100, verify: bool = True
    ) -> Iterator[list[Outcome]]:
        """Like `ingest`, but yields the outcomes of each batch when it is written. Memory does not grow with `posts`.

        The signatures of the next batch are verified while this one is written.
        """
        previous: Batch | None = None
        for raws in batches(posts, len, min(max(batch_posts, 1), limits.MAX_BATCH_POSTS)):
            batch = self._intake.decode(raws)
            if previous is not None:
                yield self._store(previous, batch if verify else None, sync=sync)
            elif verify:
                self._intake.verify(batch)
            previous = batch
        if previous is not None:
            yield self._store(previous, None, sync=sync)

    def _store(self, batch: Batch, following: Batch | None, *, sync: bool) -> list[Outcome]:
        """Plan and write a batch, while the one that follows is verified."""
        signed = batch.signed()
        if following is not None:
            self._intake.verify(following)
        with self._engine.transaction() as transaction:
            plan = transaction.plan()
            outcomes = batch.settle(plan.add_all(batch.posts, signed))
            transaction.commit(plan.finish(), sync=sync)
        return outcomes

    def appraise(self, posts: list[bytes], dialect: Dialect) -> list[Outcome]:
        """Tell what posts of this dialect are that go from one peer to another. Those that are ACCEPTED may; none is stored."""
        with self._reading() as reader:
            return replace(self._intake, dialect=dialect).appraise(posts, partial(answers.is_deleted_here, reader))

    def admit(self, posts: Iterable[Post]) -> Batch:
        """Begin to verify decoded posts that `replace` is to store, while further ones are still read. Writes nothing."""
        return self._intake.admit(posts)

    def replace(
        self, admitted: Batch, surplus: Callable[[Reader], Iterable[bytes]], *, sync: bool = True
    ) -> tuple[list[Outcome], list[Outcome]]:
        """Store what `admit` returned and discard others, in one atomic write. Returns what became of each of both.

        `surplus` returns the hashes of those to discard in the state that it is given. All is in memory at once. Raises
        InvalidPostError, and changes nothing, where one of the posts cannot be stored for what it is.
        """
        signed = admitted.signed()
        admitted.check(signed)
        with self._engine.transaction() as transaction:
            plan = transaction.plan()
            discarded = [Outcome(digest, plan.discard(digest)) for digest in surplus(transaction.reader)]
            outcomes = admitted.settle(plan.add_all(admitted.posts, signed))
            transaction.commit(plan.finish(), sync=sync)
        return outcomes, discarded

    # --- posts of one's own --------------------------------------------------------------------

    def delete(self, hashes: bytes | Iterable[bytes], *, sync: bool = True) -> list[Post]:
        """Delete own posts, here and at everyone who hears of it. Returns the post/delete, several for very many hashes.

        A hash that is not here may be given: the deletion waits for it. Local-only posts are discarded instead, because
        a post/delete would tell their hash. Raises InvalidPostError for posts of others and for deletions.
        """
        targets = list(dict.fromkeys([hashes] if isinstance(hashes, bytes) else hashes))
        with self._engine.transaction() as transaction:
            public = [digest for digest in targets if not self._discard_private(transaction.reader, digest)]
            found = [
                public[at : at + limits.MAX_DELETIONS_WRITTEN]
                for at in range(0, len(public), limits.MAX_DELETIONS_WRITTEN)
            ]
            return [self.write(Delete(tuple(part)), sync=sync) for part in found]

    def _discard_private(self, reader: Reader, digest: bytes) -> bool:
        """Check that a post may be deleted; discard it if it is local-only."""
        post = reader.post(digest)
        if post is None:
            return False
        if post.author != self.identity.public_key:
            raise InvalidPostError(f"the post {digest.hex()} is by {post.author.hex()}: only its author can delete it")
        if post.type == DELETE:
            raise InvalidPostError(f"the post {digest.hex()} is a post/delete, and a deletion cannot be deleted")
        if post.is_local_only:
            self.discard([digest])
        return post.is_local_only

    def write(self, body: Body, *, sync: bool = True) -> Post:
        """Sign and store a post, linked to the heads of its channel, dated now or just after the last own post.

        A text or a topic by who is no member of the channel is preceded by a post/join, in the same write (wire.md 5.4.3).
        """
        with self._engine.transaction() as transaction:
            posts = self._composer.compose(transaction.reader, body)
            plan = transaction.plan()
            for post in posts:
                plan.add(post)
            transaction.commit(plan.finish(), sync=sync)
            self._composer.written(posts[-1])
        return posts[-1]

    # --- removing without a trace --------------------------------------------------------------

    def discard(self, hashes: Iterable[bytes], *, sync: bool = False) -> list[Outcome]:
        """Remove posts from this store alone: DISCARDED, UNKNOWN, or KEPT for a post/delete. Peers may send them again."""
        outcomes: list[Outcome] = []
        for batch in batches(hashes, len):
            with self._engine.transaction() as transaction:
                plan = transaction.plan()
                outcomes += [Outcome(digest, plan.discard(digest)) for digest in batch]
                transaction.commit(plan.finish(), sync=sync)
        return outcomes

    def prune(
        self,
        *,
        before_ms: int | None = None,
        keep_newest: int | None = None,
        by_author: bytes | None = None,
        progress: Progress = no_progress,
    ) -> int:
        """Discard what the given rules name (`cablestore.store.retention`); returns how many posts went.

        `before_ms` names texts and superseded state posts dated before it, `keep_newest` all but so many texts of each
        channel, `by_author` all that one author wrote. Interrupted, it can be run again.
        """
        discarded = 0
        with self._reading() as reader:
            rules: list[Iterator[bytes]] = []
            if before_ms is not None:
                rules.append(retention.older_than(reader, before_ms))
            if keep_newest is not None:
                rules.append(retention.beyond_newest(reader, keep_newest))
            if by_author is not None:
                rules.append(retention.written_by(reader, by_author))
            for batch in batches(chain.from_iterable(rules), len):
                outcomes = self.discard(batch)
                discarded += sum(outcome.verdict is Verdict.DISCARDED for outcome in outcomes)
                progress(len(batch))
        return discarded

    # --- following -----------------------------------------------------------------------------

    def subscribe(self, after: int = 0, *, timeout_s: float | None = None) -> Iterator[Event]:
        """Yield every event behind number `after`, old ones first, then new ones as they happen.

        Keep the number of the last event that you are done with: subscribing behind it, also after a restart, neither
        repeats nor loses one. Ends when nothing happens for `timeout_s`, or when the store is closed.
        """
        while found := self.next_events(after, timeout_s):
            yield from found
            after = found[-1].sequence

    def next_events(self, after: int, timeout_s: float | None = None) -> list[Event]:
        """Return the events behind number `after`, waiting for the first where there is none.

        Empty when time is up, or when the store is closed.
        """
        try:
            while True:
                latest = self.last_sequence
                found = self.events(after)
                # The log may end before the latest number where a part of it was lost.
                if found or not self._engine.wait(max(after, latest), timeout_s):
                    return found
        except StoreClosedError:
            return []

    def wait(self, after: int, timeout_s: float | None = None) -> bool:
        """Wait until there are events behind number `after`: False when time is up, or when the store is closed."""
        return self._engine.wait(after, timeout_s)

    @property
    def last_sequence(self) -> int:
        """The number of the latest event of the arrival log, 0 before the first."""
        return self._engine.next_sequence - 1

    # --- exports -------------------------------------------------------------------------------

    def export(
        self,
        out: Path | str,
        *,
        filters: Filters | None = None,
        segment_size_bytes: int = limits.SEGMENT_SIZE_BYTES,
        run_size_bytes: int = limits.MAX_RUN_SIZE_BYTES,
        progress: Progress = no_progress,
    ) -> Manifest:
        """Write the present state, without local-only posts, into a new or empty folder; `filters` choose a part of it.

        Interrupted, the same call goes on where it ended unless the store has changed. The store can be used meanwhile.
        `progress` counts each post twice: once when read, once when written. Raises ExportError for a folder that holds
        anything else, StorageError where the disk refuses.
        """
        engine = self._engine
        state, reader = engine.snapshot()
        with state:
            return export_store(
                state,
                reader,
                engine.catalog.versions,
                None if engine.folder is None else engine.folder.header.store_id,
                Path(out),
                filters=filters,
                segment_size_bytes=segment_size_bytes,
                run_size_bytes=run_size_bytes,
                progress=progress,
            )

    @classmethod
    def export_closed(
        cls,
        path: Path | str,
        out: Path | str,
        *,
        filters: Filters | None = None,
        catalog: Catalog = CATALOG,
        progress: Progress = no_progress,
    ) -> Manifest:
        """Export a store that is not open, also one whose views are outdated: posts and tombstones are read alone.

        With `filters`, which look into views, those must be up to date.
        """
        owner = Owner(None, Path(path))
        engine = Engine.open(
            Path(path),
            catalog,
            create=False,
            dialect=None,
            tuning=Tuning(),
            unseal=owner.unseal,
            any_views=filters is None,
        )
        with cls(engine, owner, system_clock_ms, 1) as store:
            return store.export(out, filters=filters, progress=progress)

    def import_exports(self, folders: Iterable[Path | str], *, progress: Progress = no_progress) -> ImportSummary:
        """Store what exports hold, verified like posts from peers, and what they know of deleted posts.

        A full export into a new store gives an equal `dump_digest`; several merge, in any order. Interrupted, it can be
        run again. Raises ExportError for what is no export, is damaged, or is of another dialect.
        """
        manifests = manifests_of(map(Path, folders), self.dialect)
        summary = ImportSummary(len(manifests))
        for outcomes in self.ingest_batches(posts_of(manifests), batch_posts=limits.MAX_BATCH_POSTS):
            summary.count(outcomes)
            progress(len(outcomes))
        for stones in chain(effective_tombstones(manifests), [[]]):
            # The last write, which may be empty, brings all before it to the disk too.
            laid, refused = self.lay_skeletons(stones, sync=not stones)
            summary.skeletons += laid
            summary.refused_skeletons += refused
        return summary

    def lay_skeletons(self, stones: Iterable[Tombstone], *, sync: bool = True) -> tuple[int, int]:
        """Take on trust what tombstones say of their targets, where the post/delete is here.

        Returns how many were new and how many were refused.
        """
        with self._engine.transaction() as transaction:
            plan = transaction.plan()
            found = lay_skeletons(plan, transaction.reader, stones)
            transaction.commit(plan.finish(), sync=sync)
        return found

    # --- looking after the store ---------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the present state, for reads that belong together."""
        return Snapshot(*self._engine.snapshot())

    @contextmanager
    def _reading(self) -> Iterator[Reader]:
        state, reader = self._engine.snapshot()
        with state:
            yield reader

    def check(self, *, signatures: bool = False, progress: Progress = no_progress) -> CheckReport:
        """Hold every row against what the posts say. With `signatures`, verify every post too."""
        engine = self._engine
        with self._reading() as reader, engine.folder.scratch() if engine.folder else nullcontext() as scratch:
            return check(reader, engine.catalog, scratch, signatures=signatures, progress=progress)

    def rebuild(self, *, progress: Progress = no_progress) -> RebuildReport:
        """Build every view anew from the posts and swap databases. Writers wait, snapshots and iterators end."""
        return self._engine.rebuild(progress)

    def compact(self) -> None:
        """Rewrite the database in the least space. Writers wait."""
        self._engine.compact()

    def stats(self) -> Stats:
        """Return the numbers of the store, from rows that are kept for it: no post is read."""
        engine = self._engine
        with self._reading() as reader:
            days = list(activity.days(reader))
            channels = sum(name not in RESERVED_CHANNELS for name, _ in activity.channels(reader))
            views = meta.decode_sizes(reader.get(meta.SIZES_KEY))
        disk_size_bytes = {
            view.name: sum(engine.approximate_size_bytes(prefix, after_prefix(prefix)) for prefix in view.prefixes)
            for view in engine.catalog.views
        }
        totals = [sum(counts) for counts in zip(*(counts for _, counts in days), strict=True)]
        return Stats(
            posts={TYPE_NAMES[post_type]: count for post_type, count in enumerate(totals) if count},
            channels=channels,
            views=views,
            disk_size_bytes=disk_size_bytes,
            last_sequence=self.last_sequence,
            days=[(day_ms, sum(counts)) for day_ms, counts in days],
        )
