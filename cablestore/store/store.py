"""The store: posts in, indexed views out. Chat clients embed it, and peers are answered from it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from cablestore import limits
from cablestore.closable import Closable
from cablestore.errors import MissingViewError, OutdatedViewError
from cablestore.files import Location
from cablestore.index.batches import Progress, batches, no_progress
from cablestore.index.check import CheckReport, check
from cablestore.index.engine import Engine
from cablestore.index.leveldb import Tuning
from cablestore.index.reader import Reader
from cablestore.index.rebuild import RebuildReport
from cablestore.index.signatures import SignatureVerifier
from cablestore.index.tombstone import Tombstone
from cablestore.index.verdict import Outcome, Verdict
from cablestore.index.view import Catalog
from cablestore.protocol.body import Body, Delete, Info, Join, Leave, Text, Topic
from cablestore.protocol.crypto import Identity
from cablestore.protocol.dialect import LEGACY, Dialect
from cablestore.protocol.post import Post
from cablestore.search.index import SearchIndex
from cablestore.store import answers, retention
from cablestore.store.attending import Attending
from cablestore.store.attention import Attention
from cablestore.store.authoring import Composer, changed_info, require_deletable
from cablestore.store.following import Following
from cablestore.store.hidden import HiddenMessages
from cablestore.store.intake import Intake, IntakeBatch
from cablestore.store.judge import Judge
from cablestore.store.judgement import Judgement
from cablestore.store.key_file import StoreIdentity
from cablestore.store.local_values import LocalValues
from cablestore.store.moderator import Moderator
from cablestore.store.queries import Snapshot, Stats, stats_of
from cablestore.store.searching import Searching
from cablestore.views import CATALOG, user_info

if TYPE_CHECKING:
    from cablestore.export.importer import ImportSummary
    from cablestore.export.manifest import Filters, Manifest
    from cablestore.store.closed import ClosedStore


def system_clock_ms() -> int:
    """Return the present time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class CableStore(Attending, Following, Searching, Closable):
    """Open store. Thread-safe within its process; one process at a time has it open.

    Read methods (`messages`, `channels`, `members`, ...) come from `Queries` and read the present state; `snapshot`
    returns one that does not change. `Following` adds those that wait for events, `Attending` what the user has read,
    `Searching` full-text search.
    """

    def __init__(
        self,
        engine: Engine,
        store_identity: StoreIdentity,
        clock: Callable[[], int],
        threads: int | None,
        *,
        moderated: bool = True,
    ) -> None:
        """Use `open` or `in_memory`."""
        self._engine = engine
        self._clock = clock
        self._identity = store_identity
        self._verifier = SignatureVerifier(threads)
        self._intake = Intake(engine.dialect, self._verifier, clock, self._identity.known)
        self._composer = Composer(self._identity, clock)
        engine.when_reloaded(self._composer.forget)
        self._identity.known()
        self._attention = Attention(engine, store_identity)
        self._judge = Judge(engine, store_identity, self._attention, is_active=moderated)
        self._search = SearchIndex(self.path, engine.dialect, engine.snapshot)
        self.moderation: Final = Moderator(engine, self._judge, self._composer, clock)
        """Roles, what is hidden, dropped and blocked, and the acts of moderation of the store's user."""
        self.local: Final = LocalValues(engine)
        """What is the user's alone: drafts, muted channels, values of clients. It never leaves the machine."""

    # --- opening and closing -------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        create: bool = True,
        dialect: Dialect | None = None,
        identity: Identity | None = None,
        upgrade: bool = False,
        progress: Progress = no_progress,
        rebuild_outdated: bool = False,
        catalog: Catalog = CATALOG,
        allow_missing_views: bool = False,
        tuning: Tuning | None = None,
        verify_threads: int | None = None,
        clock: Callable[[], int] = system_clock_ms,
        moderated: bool = True,
    ) -> Self:
        """Open the store in a folder. `create` makes it if it is missing.

        `dialect` is that of a new store (legacy by default), and must match an existing one. `identity` is used instead
        of the key file in the folder. With `upgrade`, a store whose views another version built is rebuilt first, and
        `progress` counts its posts; interrupted, the store is as it was, and the next call does it again.
        `rebuild_outdated` is the old name of `upgrade`. `catalog` has the views to keep: `cablestore.views.CATALOG`, or
        `CATALOG.extended([...])` with views of your own. A store that has views which `catalog` lacks is refused
        (MissingViewError). With `allow_missing_views` it is opened to be read, and what would write raises. `clock`
        returns milliseconds since 1970. A store that is not `moderated` keeps and shows everything, whatever the acts
        of moderation that it holds say.

        Raises OpenError (its subclasses say why), StorageError if an I/O error occurs or files are damaged: an upgrade
        that would lose a post changes nothing and raises CorruptStoreError, and MissingDatabaseError if the header or
        the database that it names is lost: nothing is made in its place. Raises IdentityError for a key file that
        cannot be read, is malformed, empty or readable by others, and if local-only posts need a key that is missing.
        """
        path = Path(path)
        store_identity = StoreIdentity(identity, path)
        open_engine = partial(
            Engine.open,
            path,
            catalog,
            dialect=dialect,
            tuning=tuning or Tuning(),
            unseal=store_identity.unseal,
            allow_missing_views=allow_missing_views,
        )
        if rebuild_outdated:
            warnings.warn("rebuild_outdated is now upgrade; the old name goes in 1.0", DeprecationWarning, stacklevel=2)
        try:
            engine = open_engine(create=create)
        except MissingViewError:
            raise
        except OutdatedViewError:
            if not (upgrade or rebuild_outdated):
                raise
            _closed(path, identity=identity, catalog=catalog).rebuild(only_whole=True, progress=progress)
            engine = open_engine(create=False)
        try:
            return cls(engine, store_identity, clock, verify_threads, moderated=moderated)
        except BaseException:
            engine.close()
            raise

    @classmethod
    def in_memory(
        cls,
        *,
        dialect: Dialect = LEGACY,
        identity: Identity | None = None,
        catalog: Catalog = CATALOG,
        verify_threads: int | None = None,
        clock: Callable[[], int] = system_clock_ms,
        moderated: bool = True,
    ) -> Self:
        """Make a store that keeps nothing after it is closed: for tests and throwaway clients."""
        store_identity = StoreIdentity(identity or Identity.generate(), None)
        engine = Engine.in_memory(dialect, catalog, store_identity.unseal)
        return cls(engine, store_identity, clock, verify_threads, moderated=moderated)

    @classmethod
    def rebuild_closed(
        cls,
        path: Path | str,
        *,
        identity: Identity | None = None,
        catalog: Catalog = CATALOG,
        drop_views: frozenset[str] = frozenset(),
        processes: int | None = None,
        progress: Progress = no_progress,
    ) -> RebuildReport:
        """Rebuild a store that is not open: see `ClosedStore.rebuild`."""
        closed = _closed(path, identity=identity, catalog=catalog)
        return closed.rebuild(drop_views=drop_views, processes=processes, progress=progress)

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
        """Check a store that is not open: see `ClosedStore.check`."""
        closed = _closed(path, identity=identity, catalog=catalog)
        return closed.check(signatures=signatures, processes=processes, progress=progress)

    def close(self) -> None:
        """Close the store. Iterators and snapshots that are still open raise StoreClosedError."""
        self._search.close()
        self._engine.close()
        self._verifier.close()

    @property
    def dialect(self) -> Dialect:
        """The dialect that the store was made for."""
        return self._engine.dialect

    @property
    def path(self) -> Path | None:
        """The store's folder, None for a store in memory."""
        return None if self._engine.folder is None else self._engine.folder.path

    @property
    def identity(self) -> Identity:
        """The identity that signs own posts. Its key file is made on first use, unless `open` was given an identity."""
        identity = self._identity.identity
        self._judge.follow_identity()
        return identity

    @property
    def known_identity(self) -> Identity | None:
        """The same, but None if there is none yet: no key file is made."""
        return self._identity.known()

    def import_identity(self, identity: Identity) -> None:
        """Write as `identity` from now on. Raises IdentityError if the store has another one."""
        self._identity.become(identity)
        self._judge.follow_identity()

    # --- posts from others ---------------------------------------------------------------------

    def ingest(
        self, posts: Iterable[bytes], *, sync: bool = False, batch_posts: int = 100, verify: bool = True
    ) -> list[Outcome]:
        """Store posts that came from peers. Returns the outcome of each, in order; no post makes it raise.

        Each batch is one atomic write. With `sync` it is on the disk before the next begins and before this returns;
        without, a crash of the machine (not of the process) may lose the last seconds. `verify=False` trusts
        signatures: use it only for posts that this program just signed or verified.
        """
        return list(chain.from_iterable(self.ingest_batches(posts, sync=sync, batch_posts=batch_posts, verify=verify)))

    def ingest_batches(
        self, posts: Iterable[bytes], *, sync: bool = False, batch_posts: int = 100, verify: bool = True
    ) -> Iterator[list[Outcome]]:
        """Store posts as `ingest` does, but yield the outcomes of each batch when it is written.

        Memory does not grow with `posts`. The signatures of the next batch are verified while this one is written.
        """
        previous: IntakeBatch | None = None
        for raws in batches(posts, len, min(max(batch_posts, 1), limits.MAX_BATCH_POSTS)):
            batch = self._intake.decode(raws)
            if previous is not None:
                yield self._store(previous, batch if verify else None, sync=sync)
            elif verify:
                self._intake.verify(batch)
            previous = batch
        if previous is not None:
            yield self._store(previous, None, sync=sync)

    def _store(self, batch: IntakeBatch, following: IntakeBatch | None, *, sync: bool) -> list[Outcome]:
        """Plan and write a batch while the next one is verified."""
        if not batch.is_planned_ahead:
            batch.signed()
        if following is not None:
            self._intake.verify(following)
        with self._engine.transaction() as transaction:
            verdicts, finished = batch.planned(partial(self._judge.finish_all, transaction, batch.posts))
            self._composer.came(batch.posts, verdicts)
            self._judge.write(transaction, finished, sync=sync)
        if Verdict.BAD_SIGNATURE in verdicts:
            self._intake.beware()
        return batch.settle(verdicts)

    def appraise(self, posts: list[bytes], dialect: Dialect) -> list[Outcome]:
        """Judge posts of this dialect that peers pass to each other: ACCEPTED ones may pass. None is stored."""
        with self._reading() as reader:
            judgement = self._judge.judgement

            def refusal(post: Post) -> Verdict | None:
                if answers.is_deleted_here(reader, post.hash):
                    return Verdict.DELETED
                found = None if judgement is None else judgement.refusal(post)
                return None if found is None else found[0]

            return replace(self._intake, dialect=dialect).appraise(posts, refusal)

    def admit(self, posts: Iterable[Post]) -> IntakeBatch:
        """Begin to verify decoded posts for `replace`, while further ones are still read. Writes nothing."""
        return self._intake.admit(posts)

    def replace(
        self, admitted: IntakeBatch, surplus: Callable[[Reader], Iterable[bytes]], *, sync: bool = True
    ) -> tuple[list[Outcome], list[Outcome]]:
        """Store what `admit` returned and discard others, in one atomic write. Returns the outcomes of both.

        `surplus` is given the state and returns the hashes of the posts to discard. All is in memory at once. Raises
        InvalidPostError, and changes nothing, if one of the posts must be refused.
        """
        signed = admitted.signed()
        admitted.check(signed)
        with self._engine.transaction() as transaction:
            plan = self._judge.plan(transaction)
            discarded = [Outcome(digest, plan.discard(digest)) for digest in surplus(transaction.reader)]
            verdicts = self._judge.add_all(plan, admitted.posts, signed)
            self._composer.came(admitted.posts, verdicts)
            self._judge.commit(transaction, plan, sync=sync)
        return admitted.settle(verdicts), discarded

    # --- own posts -----------------------------------------------------------------------------

    def write(self, body: Body, *, sync: bool = True) -> Post:
        """Sign and store a post, linked to the heads of its channel, dated now or just after the last own post.

        If the author of a text or a topic is not a member of the channel, a post/join comes first, in the same write
        (wire.md 5.4.3). With `sync` the post is on the disk on return.
        """
        with self._engine.transaction() as transaction:
            posts = self._composer.compose(transaction, body)
            plan = self._judge.plan(transaction)  # after the post: a store without an identity has made one
            self._judge.require_welcome(posts)
            for post in posts:
                plan.add(post)
            self._judge.commit(transaction, plan, sync=sync)
            self._composer.written(posts[-1])
        return posts[-1]

    def text(self, channel: str, text: str, *, sync: bool = True) -> Post:
        """Write a message of at most 4096 bytes to a channel."""
        return self.write(Text(channel, text), sync=sync)

    def topic(self, channel: str, topic: str, *, sync: bool = True) -> Post:
        """Set a channel's topic; "" clears it."""
        return self.write(Topic(channel, topic), sync=sync)

    def join(self, channel: str, *, sync: bool = True) -> Post:
        """Become a member of a channel."""
        return self.write(Join(channel), sync=sync)

    def leave(self, channel: str, *, sync: bool = True) -> Post:
        """Leave a channel."""
        return self.write(Leave(channel), sync=sync)

    def info(
        self,
        *,
        name: str | None = None,
        accept_role: bool | None = None,
        others: Mapping[str, bytes] | None = None,
        sync: bool = True,
    ) -> Post:
        """Publish all information on oneself: what is left out returns to its default (wire.md 6.2.4).

        `set_name` and `update_info` change a part and keep the rest.
        """
        known = Info.of(name=name, accept_role=accept_role)
        return self.write(Info((*known.pairs, *(others or {}).items())), sync=sync)

    def set_name(self, name: str, *, sync: bool = True) -> Post | None:
        """Change the own name, and keep all else that one tells about oneself; "" removes the name.

        Returns the post, None if one has this name already: then nothing is written.
        """
        return self.update_info(name=name, sync=sync)

    def update_info(
        self,
        *,
        name: str | None = None,
        accept_role: bool | None = None,
        others: Mapping[str, bytes | None] | None = None,
        sync: bool = True,
    ) -> Post | None:
        """Change a part of the information on oneself. What is left out, or is None, stays as it is.

        The name "" removes the name, and None as the value of a key in `others` removes the key. Threads that change
        different parts at the same time lose none. Returns the post, None if nothing changes: then nothing is written.
        """
        with self._engine.transaction() as transaction:
            known = user_info.latest(transaction.reader, self.identity.public_key)
            before = known[0] if known else Info(())
            after = changed_info(before, name=name, accept_role=accept_role, others=others or {})
            return None if after == before else self.write(after, sync=sync)

    def delete(self, hashes: bytes | Iterable[bytes], *, sync: bool = True) -> list[Post]:
        """Delete own posts, here and on peers that get the deletion. Returns the post/delete, several for many hashes.

        The post of a hash may be missing: the deletion waits for it. Local-only posts are discarded instead, because a
        post/delete would reveal their hash. Raises InvalidPostError for posts of others and for deletions; then nothing
        is deleted.
        """
        targets = list(dict.fromkeys([hashes] if isinstance(hashes, bytes) else hashes))
        with self._engine.transaction() as transaction:
            private = dict.fromkeys(digest for digest in targets if self._is_private(transaction.reader, digest))
            public = [digest for digest in targets if digest not in private]
            self.discard(private, sync=sync)
            parts = batches(public, len, limits.MAX_DELETIONS_WRITTEN)
            return [self.write(Delete(tuple(part)), sync=sync) for part in parts]

    def _is_private(self, reader: Reader, digest: bytes) -> bool:
        """Check that a post may be deleted. Tell whether it is local-only."""
        post = reader.post(digest)
        if post is None:
            return False
        require_deletable(post, self.identity.public_key)
        return post.is_local_only

    # --- removing without a trace --------------------------------------------------------------

    def discard(self, hashes: Iterable[bytes], *, sync: bool = False) -> list[Outcome]:
        """Remove posts from this store only: DISCARDED, UNKNOWN, or KEPT for a post/delete.

        Peers may send them again.
        """
        outcomes: list[Outcome] = []
        for batch in batches(hashes, len):
            with self._engine.transaction() as transaction:
                plan = self._judge.plan(transaction)
                outcomes += [Outcome(digest, plan.discard(digest)) for digest in batch]
                self._judge.commit(transaction, plan, sync=sync)
        return outcomes

    def prune(
        self,
        *,
        before_ms: int | None = None,
        keep_newest: int | None = None,
        by_author: bytes | None = None,
        progress: Progress = no_progress,
    ) -> int:
        """Discard posts by the given rules (`cablestore.store.retention`). Returns how many were discarded.

        `before_ms` chooses texts and superseded state posts dated before it, `keep_newest` all but this many texts of
        each channel, `by_author` all posts of one author. If interrupted, it can be run again.
        """
        discarded = 0
        with self._reading() as reader:
            for batch in batches(retention.chosen(reader, before_ms, keep_newest, by_author), len):
                outcomes = self.discard(batch)
                discarded += sum(outcome.verdict is Verdict.DISCARDED for outcome in outcomes)
                progress(len(batch))
        return discarded

    # --- exports -------------------------------------------------------------------------------

    def export(
        self,
        out: Location,
        *,
        filters: Filters | None = None,
        segment_size_bytes: int = limits.SEGMENT_SIZE_BYTES,
        run_size_bytes: int = limits.MAX_RUN_SIZE_BYTES,
        progress: Progress = no_progress,
    ) -> Manifest:
        """Write the present state, without local-only posts, into a new or empty folder; `filters` choose a part of it.

        `out` is a path, or a URI such as `s3://BUCKET/FOLDER`, whose credentials are in the environment.
        After an interruption the same call continues, unless the store has changed. The store can be used meanwhile.
        `progress` counts each post twice: once when read, once when written. Raises ExportError for a folder that holds
        anything else, StorageError if writing fails.
        """
        from cablestore.export.exporter import export_store  # noqa: PLC0415 - opening a store does without it

        return export_store(
            self._engine,
            out,
            filters=filters,
            hidden_of=lambda reader: HiddenMessages(reader, self._identity.known_key).has,
            segment_size_bytes=segment_size_bytes,
            run_size_bytes=run_size_bytes,
            progress=progress,
        )

    @classmethod
    def export_closed(
        cls,
        path: Path | str,
        out: Location,
        *,
        filters: Filters | None = None,
        catalog: Catalog = CATALOG,
        progress: Progress = no_progress,
    ) -> Manifest:
        """Export a store that is not open: see `ClosedStore.export`."""
        return _closed(path, catalog=catalog).export(out, filters=filters, progress=progress)

    def import_exports(self, folders: Iterable[Location], *, progress: Progress = no_progress) -> ImportSummary:
        """Store the posts of exports, verified like posts from peers, and what the exports know of deleted posts.

        `folders` are paths or URIs.
        A new store that imports a full export has an equal `dump_digest`; several exports merge, in any order. If
        interrupted, it can be run again. Raises ExportError for a folder that is not an export, is damaged, or has
        another dialect.
        """
        from cablestore.export import importer  # noqa: PLC0415 - opening a store does without it

        manifests = importer.manifests_of(folders, self.dialect)
        summary = importer.ImportSummary(len(manifests))
        for outcomes in self.ingest_batches(importer.posts_of(manifests), batch_posts=limits.MAX_BATCH_POSTS):
            summary.count(outcomes)
            progress(len(outcomes))
        for stones in chain(importer.effective_tombstones(manifests), [[]]):
            # The last write, which may be empty, also brings all writes before it to the disk.
            laid, refused = self.lay_skeletons(stones, sync=not stones)
            summary.skeletons += laid
            summary.refused_skeletons += refused
        return summary

    def lay_skeletons(self, stones: Iterable[Tombstone], *, sync: bool = True) -> tuple[int, int]:
        """Store what tombstones say of their targets, without proof, if the post/delete is stored.

        Returns how many were new and how many were refused.
        """
        from cablestore.export.importer import lay_skeletons  # noqa: PLC0415 - opening a store does without it

        with self._engine.transaction() as transaction:
            plan = self._judge.plan(transaction)
            found = lay_skeletons(plan, transaction.reader, stones)
            self._judge.commit(transaction, plan, sync=sync)
        return found

    # --- maintenance ---------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the present state, for reads that belong together.

        Its decisions on moderation are those of that state, or newer ones.
        """
        state, reader = self._engine.snapshot()
        return Snapshot(state, reader, self._judge.judgement, self._identity.known_key)

    @contextmanager
    def _reading(self) -> Iterator[Reader]:
        state, reader = self._engine.snapshot()
        with state:
            yield reader

    def _judgement(self) -> Judgement | None:
        return self._judge.judgement

    def check(self, *, signatures: bool = False, progress: Progress = no_progress) -> CheckReport:
        """Compare every row with what the posts say. With `signatures`, verify every post too."""
        engine = self._engine
        engine.require_views()
        with self._reading() as reader, engine.folder.scratch() if engine.folder else nullcontext() as scratch:
            return check(reader, engine.catalog, scratch, signatures=signatures, progress=progress)

    def rebuild(self, *, progress: Progress = no_progress) -> RebuildReport:
        """Build every view again from the posts and swap databases. Writers wait, snapshots and iterators end.

        Interrupted or failed, it leaves the store as it was. If that happens during the swap, all further writes raise
        StorageError until the store is opened again.
        """
        return self._engine.rebuild(progress)

    def compact(self) -> None:
        """Rewrite the database in the least space. Other threads read and write meanwhile; `close` waits for it."""
        self._engine.compact()

    def stats(self) -> Stats:
        """Return the numbers of the store. They are kept in rows: no post is read."""
        with self._reading() as reader:
            return stats_of(self._engine, reader)


def _closed(path: Path | str, *, identity: Identity | None = None, catalog: Catalog) -> ClosedStore:
    from cablestore.store.closed import ClosedStore  # noqa: PLC0415 - opening a store does without it

    return ClosedStore(path, identity=identity, catalog=catalog)
