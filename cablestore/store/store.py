"""The store: accepts posts and maintains indexed views. Chat clients embed it, and nodes answer peers from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Final, Self

from cablestore import limits
from cablestore.arguments import (
    Time,
    check,
    check_given,
    check_instance,
    check_iterable,
    checked_each,
    checked_ids,
    checked_window,
)
from cablestore.closable import Closable
from cablestore.errors import ArgumentError, OutdatedViewError
from cablestore.files import Location, check_location
from cablestore.forks import ProcessBound, bind
from cablestore.index.batches import Progress, batches, no_progress
from cablestore.index.check import CheckReport, check_evidence
from cablestore.index.check import check as check_rows
from cablestore.index.engine import Engine
from cablestore.index.evidence import find_evidence
from cablestore.index.folder import store_path
from cablestore.index.last_check import note_check
from cablestore.index.reader import Reader
from cablestore.index.rebuild import RebuildReport
from cablestore.index.signatures import SignatureVerifier
from cablestore.index.verdict import Outcome, Verdict
from cablestore.moderation.applied import AppliedModeration
from cablestore.protocol.body import Body, Join, Leave, Text, Topic
from cablestore.protocol.crypto import Identity
from cablestore.protocol.dialect import LEGACY, Dialect
from cablestore.protocol.post import Post
from cablestore.store import retention
from cablestore.store.authoring import Composer
from cablestore.store.clock_check import ClockDifference, clock_difference
from cablestore.store.cursor import ChangesCursor, MessageCursor, SearchCursor
from cablestore.store.following import Follower
from cablestore.store.hidden import HiddenMessages
from cablestore.store.intake import Intake
from cablestore.store.key_file import StoreIdentity
from cablestore.store.known_positions import KnownPositions, PositionCache
from cablestore.store.local_values import LocalValues
from cablestore.store.moderator import Moderator
from cablestore.store.options import StoreOptions, system_clock_ms
from cablestore.store.parts import StoreParts
from cablestore.store.present import Present
from cablestore.store.queries import Queries, Snapshot, stats_of
from cablestore.store.results import Event, Page, Stats, WriteState
from cablestore.store.searching import Order, Searcher, SearchPage
from cablestore.store.writing import Writer

if TYPE_CHECKING:
    from cablestore.export.importer import ImportSummary
    from cablestore.export.manifest import Filters, Manifest
    from cablestore.store.changes import Change, Changes

_DEFAULTS: Final = StoreOptions()


def own_key(store: CableStore) -> bytes:
    """Return the public key of a store's user. Create the key if it is missing.

    Raises IdentityError if the store is read-only and has no key, and CableStoreError if another process has it open.
    """
    return store.public_key or store.identity.public_key


class CableStore(Queries, Closable, ProcessBound):
    """Open store. It is thread-safe. Only one process at a time can open a store, except with `read_only`.

    Read methods (`messages`, `channels`, `members`, ...) are defined by `Queries` and read the current state;
    `snapshot` returns a fixed state. The attribute `moderation` provides the moderation actions (`Moderator`), and
    `local` contains drafts and other values that stay on this machine (`LocalValues`).
    """

    def __init__(
        self,
        engine: Engine | None = None,
        store_identity: StoreIdentity | None = None,
        options: StoreOptions = _DEFAULTS,
    ) -> None:
        """Use `open` or `in_memory`."""
        if not isinstance(engine, Engine) or not isinstance(store_identity, StoreIdentity):
            raise ArgumentError(
                f"{type(self).__name__} cannot be called directly. Use {type(self).__name__}.open(path) or "
                f"{type(self).__name__}.in_memory()"
            )
        self._engine = engine
        self._identity = store_identity
        self._verifier = SignatureVerifier(options.verify_threads)
        intake = Intake(engine.dialect, self._verifier, options.clock, store_identity)
        composer = Composer(store_identity, options.clock)
        engine.when_reloaded(composer.forget)
        self._present = Present(engine, store_identity, moderated=options.moderated)
        self._writer = Writer(engine, self._present, intake, composer)
        self.parts: Final = StoreParts(engine, self._present, intake, self._writer)
        """Parts for other packages of cablestore. They are not part of the public API."""
        self._follower = Follower(engine, self._present)
        self._places = PositionCache()
        self._searcher = Searcher(engine, self._present)
        self.moderation: Final = Moderator(engine, self._present, composer, options.clock)
        """Moderation: roles, hidden and dropped posts, users and channels, blocked users, and the user's actions."""
        self.local: Final = LocalValues(engine)
        """Local values of the user: drafts, muted channels, values of clients. They never leave the machine."""
        bind(self)

    # --- opening and closing -------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        create: bool = True,
        read_only: bool = False,
        dialect: Dialect | None = None,
        identity: Identity | None = None,
        upgrade: bool = False,
        progress: Progress = no_progress,
        options: StoreOptions = _DEFAULTS,
    ) -> Self:
        """Open the store in a folder. With `create`, a missing store is created.

        `is_read_only` describes `read_only` stores. `dialect` applies to a new store (default: legacy) and must match
        the dialect of an existing store. `identity` replaces the key file in the folder. With `upgrade`, a store whose
        views another version built is rebuilt first, and `progress` counts its posts. An interrupted upgrade leaves the
        store unchanged; the next call repeats it. A store with views that `options.catalog` lacks raises OpenError.

        Raises ArgumentError for an unusable path, and OpenError if the store cannot be opened. Its subclass
        StoreLockedError means that the store is already open; OutdatedViewError means that it needs an upgrade. Raises
        StorageError for I/O errors. Its subclass CorruptStoreError means that the header or the database is lost, or
        that an upgrade would lose a post; then nothing is changed. Raises IdentityError if the key file is unreadable,
        malformed, empty or readable by others, or if the key of local-only posts is missing.
        """
        check(create=create, upgrade=upgrade, progress=progress, read_only=read_only)
        _check_parts(dialect, identity, options)
        path = store_path(path)
        store_identity = StoreIdentity(identity, path, read_only=read_only)
        open_engine = partial(
            Engine.open,
            path,
            options.catalog,
            dialect=dialect,
            tuning=options.tuning,
            unseal=store_identity.unseal,
            allow_missing_views=options.allow_missing_views or read_only,
            read_only=read_only,
        )
        try:
            engine = open_engine(create=create)
        except OutdatedViewError:
            if read_only or not upgrade:
                raise
            from cablestore.store.closed import ClosedStore  # noqa: PLC0415 - opening a store does without it

            ClosedStore(path, identity=identity, catalog=options.catalog).rebuild(only_whole=True, progress=progress)
            engine = open_engine(create=False)
        return cls._made_of(engine, store_identity, options)

    @classmethod
    def _made_of(cls, engine: Engine, identity: StoreIdentity, options: StoreOptions) -> Self:
        """Return the store of an open engine. Write the rows that changes outside the store require."""
        try:
            identity.load()
            store = cls(engine, identity, options)
            if engine.is_writable:
                store._present.catch_up()
        except BaseException:
            engine.close()
            raise
        return store

    @classmethod
    def in_memory(
        cls,
        *,
        dialect: Dialect = LEGACY,
        identity: Identity | None = None,
        options: StoreOptions = _DEFAULTS,
    ) -> Self:
        """Create a store in memory, for tests and throwaway clients. Closing it discards its content."""
        check_instance("dialect", dialect, Dialect)
        _check_parts(dialect, identity, options)
        store_identity = StoreIdentity(identity or Identity.generate(), None)
        engine = Engine.in_memory(dialect, options.catalog, store_identity.unseal)
        return cls._made_of(engine, store_identity, options)

    def close(self) -> None:
        """Close the store. Iterators and snapshots that are still open then raise StoreClosedError."""
        self._searcher.close()
        self._engine.close()
        self._verifier.close()

    @property
    def dialect(self) -> Dialect:
        """Dialect with which the store was created."""
        return self._engine.dialect

    @property
    def path(self) -> Path | None:
        """Folder of the store, None for a store in memory."""
        return None if self._engine.folder is None else self._engine.folder.path

    @property
    def is_read_only(self) -> bool:
        """True if the store was opened with `read_only`: nothing is written into its folder.

        The folder may be on a read-only or full disk, or belong to another user. Temporary files are in TMPDIR. Reads,
        exports, backups and `check` work, and so does `search` if its index is complete; writes raise StorageError.
        Several processes can open a store with `read_only` while no process has it open for writing.
        """
        return self._engine.is_read_only

    @property
    def identity(self) -> Identity:
        """Identity that signs the user's posts.

        The first use creates its key file, unless `open` received an identity.
        """
        identity = self._identity.identity
        self._present.follow_identity()
        return identity

    @property
    def public_key(self) -> bytes | None:
        """Public key of the identity, None if the store has none yet. Never creates a key file."""
        return self._identity.known_key

    def import_identity(self, identity: Identity) -> None:
        """Sign the user's new posts with `identity`. Raises IdentityError if the store has another identity."""
        check_instance("identity", identity, Identity)
        self._identity.become(identity)
        self._present.follow_identity()

    # --- posts from others ---------------------------------------------------------------------

    def ingest(
        self, posts: Iterable[bytes], *, sync: bool = False, batch_posts: int = 100, verify: bool = True
    ) -> list[Outcome]:
        """Store encoded posts from peers. Return one outcome per post, in order, also for invalid posts.

        `posts` may be an iterator: at most two batches of posts are in memory. The next batch is verified during a write.
        Each batch of `batch_posts` is one atomic write. With `sync`, a batch is on disk before the next batch begins
        and before the call returns. Without it, a crash of the machine (not of the process) may lose the last seconds.
        `verify=False` skips signature checks: use it only for posts that this program just signed or verified.
        """
        check(sync=sync, batch_posts=batch_posts, verify=verify)
        check_iterable("posts", posts)
        outcomes = self._writer.ingest(posts, sync=sync, batch_posts=batch_posts, verify=verify)
        return list(chain.from_iterable(outcomes))

    # --- posts of the user ---------------------------------------------------------------------

    def write(self, body: Body, *, sync: bool = True) -> Post:
        """Sign and store a post that links to the heads of its channel, dated now or just after the user's last post.

        If the author of a text or topic is not a member of the channel, the same write first adds a post/join
        (wire.md 5.4.3). With `sync`, the post is on disk when the call returns. Raises ArgumentError if the post is
        invalid or cannot take effect.
        """
        return self._writer.write(body, sync=sync)

    def post(self, channel: str, text: str, *, sync: bool = True) -> Post:
        """Write a message of at most 4,096 bytes (UTF-8) to a channel. See `write`."""
        return self.write(Text(channel, text), sync=sync)

    def set_topic(self, channel: str, topic: str, *, sync: bool = True) -> Post:
        """Set a channel's topic, at most 512 code points; "" clears it. See `write`."""
        return self.write(Topic(channel, topic), sync=sync)

    def join(self, channel: str, *, sync: bool = True) -> Post:
        """Join a channel with a post/join. See `write`."""
        return self.write(Join(channel), sync=sync)

    def leave(self, channel: str, *, sync: bool = True) -> Post:
        """Leave a channel with a post/leave. See `write`."""
        return self.write(Leave(channel), sync=sync)

    def set_name(self, name: str, *, sync: bool = True) -> Post | None:
        """Change the user's name; "" removes it. See `set_info`."""
        check(name=name)
        return self.set_info(name=name, sync=sync)

    def set_info(
        self,
        *,
        name: str | None = None,
        accept_role: bool | None = None,
        others: Mapping[str, bytes | None] | None = None,
        sync: bool = True,
    ) -> Post | None:
        """Change values of the user's post/info. Values that are omitted or None stay unchanged.

        The name "" removes the name, and None as the value of a key in `others` removes the key. `others` cannot
        contain the keys `name` and `accept-role`, which have arguments of their own. Concurrent changes of different
        values do not overwrite each other. Returns the post, or None if nothing changes and nothing is written. `write`
        with an `Info` replaces all values.
        """
        check(sync=sync)
        check_given(name=name, accept_role=accept_role, others=others)
        return self._writer.set_info(name=name, accept_role=accept_role, others=others or {}, sync=sync)

    def delete(self, hashes: bytes | Iterable[bytes], *, sync: bool = True, force: bool = False) -> list[Post]:
        """Delete posts of the user from this store, and from peers that receive the deletion.

        Returns the written posts: one post/delete for up to `limits.MAX_DELETIONS_WRITTEN` posts.

        Local-only posts are discarded instead, because a post/delete would reveal their hash. Raises ArgumentError,
        and deletes nothing, for posts of others, for deletions and for unknown hashes. With `force`, hashes may be
        unknown: the deletion waits for the post, which another device of the user may have.
        """
        check(sync=sync, force=force)
        targets = checked_ids("hashes", hashes)
        return self._writer.delete(list(dict.fromkeys(targets)), sync=sync, force=force)

    # --- removing without a trace --------------------------------------------------------------

    def discard(self, hashes: Iterable[bytes], *, sync: bool = False) -> list[Outcome]:
        """Remove posts from this store only. The verdict is DISCARDED, UNKNOWN, or KEPT for a post/delete.

        Peers may send discarded posts again.
        """
        check(sync=sync)
        check_iterable("hashes", hashes)
        return self._writer.discard(hashes, sync=sync)

    def prune(
        self,
        *,
        before_ms: Time | None = None,
        keep_newest: int | None = None,
        by_author: bytes | None = None,
        progress: Progress = no_progress,
    ) -> int:
        """Discard posts by the given rules (`cablestore.store.retention`). Return the number of discarded posts.

        `before_ms` chooses texts and superseded state posts dated before it. `keep_newest` chooses the texts of each
        channel except this number of the newest. `by_author` chooses all posts of one author except deletions. An
        interrupted call can be repeated.
        """
        check(progress=progress)
        check_given(keep_newest=keep_newest, by_author=by_author)
        _, end_ms = checked_window(None, before_ms)
        discarded = 0
        with self._engine.reading() as reader:
            chosen = retention.chosen(reader, end_ms, keep_newest, by_author)
            for batch in batches(chosen, len, limits.RETENTION_STEP_POSTS):
                outcomes = self.discard(batch)
                discarded += sum(outcome.verdict is Verdict.DISCARDED for outcome in outcomes)
                progress(len(batch))
        return discarded

    # --- events and changes --------------------------------------------------------------------

    @property
    def cursor(self) -> ChangesCursor:
        """Cursor of the current state. `changes` and `next_changes` return the changes after it.

        A program can save it with data derived from the posts. If the store has lost posts of that state since, or was
        rebuilt, these methods raise CursorError.
        """
        return self._follower.cursor()

    def events(self, after: int = 0, *, timeout_s: float | None = None) -> Iterator[Event]:
        """Yield every event after number `after`: first the stored events, then new events as they happen.

        Save the number of the last handled event. Following after that number, even after a restart, neither repeats
        nor loses an event. Ends after `timeout_s` without an event, or when the store is closed. Local changes are not
        events: `changes` reports them.
        """
        return self._follower.events(after, timeout_s)

    def changes(
        self,
        channel: str | None = None,
        after: ChangesCursor | None = None,
        *,
        timeout_s: float | None = None,
        local: bool = False,
    ) -> Iterator[Change]:
        """Yield the changes that a client must display: first the changes after a cursor, then new changes.

        `after` is the cursor of a page, a snapshot or `next_changes`; None means the current state. With a `channel`,
        only changes that concern this channel or all channels are yielded. Ends after `timeout_s` without a change, or
        when the store is closed. Raises CursorError if the store is rebuilt: fetch a new page then.

        `LocalChanged` is reported only with `local`. A program that saves its cursor in `store.local` after each change
        therefore does not wake itself.
        """
        return self._follower.changes(channel, after, timeout_s, local=local)

    def next_changes(
        self, after: ChangesCursor, channel: str | None = None, *, timeout_s: float | None = None, local: bool = False
    ) -> Changes:
        """Return the changes after a cursor and the next cursor, or wait for the first change.

        Each changed object is reported once, in its current state. Changes are idempotent: a client may apply a change
        twice or start at an older cursor. After `timeout_s`, the list of changes is empty. Raises CursorError for a
        cursor of another database, and StoreClosedError when the store is closed. `changes` explains `local`.
        """
        return self._follower.next_changes(after, channel, timeout_s, local=local)

    def watch(self, call: Callable[[], None], *, local: bool = False) -> Callable[[], None]:
        """Call a function after each successful or failed write, and when the store is closed.

        After writes that change only values of `store.local`, it is called only with `local`. Returns a function that
        stops these calls.

        The function runs in the writing thread and blocks it. It must be short and must not raise. Use it to wake an
        event loop without a waiting thread.
        """
        check(call=call, local=local)
        return self._engine.watch(call, local=local)

    @property
    def write_state(self) -> WriteState:
        """State of writes: the reason of a failure, and the number of failed writes."""
        return WriteState(self._engine.write_failure, self._engine.failed_writes)

    def retry_writes(self) -> None:
        """Accept writes again after a failed write, if the disk now accepts them."""
        self._engine.retry_writes()

    @property
    def is_closed(self) -> bool:
        """True if the store is closed."""
        return self._engine.is_closed

    def sync(self) -> None:
        """Wait until all earlier writes are on disk. Raises StorageError if that fails."""
        self._engine.sync()

    @property
    def last_sequence(self) -> int:
        """Number of the latest event of the arrival log, 0 before the first event."""
        return self._engine.next_sequence - 1

    def clock_difference(self) -> ClockDifference | None:
        """Compare this machine's clock with the clocks of users who wrote recently.

        Returns None if too few of these users show a difference. `cablestore.store.clock_check` describes the evidence.
        """
        with self._engine.reading() as reader:
            return clock_difference(reader, self._identity.known_key, self.parts.intake.clock())

    # --- read marks, mentions and search -------------------------------------------------------

    def mark_read(self, channel: str, upto: MessageCursor | None = None, *, sync: bool = False) -> None:
        """Mark a channel as read up to and including a message, by default the latest message.

        `upto` is the `cursor` of a message. If it is earlier than the present mark, later messages become unread again.
        The mark never leaves this store. Raises CursorError for an invalid cursor.
        """
        self._writer.mark_read(channel, upto, sync=sync)

    def mark_seen(
        self, channel: str, seen: Iterable[MessageCursor], *, upto: MessageCursor | None = None, sync: bool = False
    ) -> None:
        """Mark single messages of a channel as read, such as the messages on a screen. `seen` contains their cursors.

        With `upto`, the cursor of a message, all messages from the read mark up to it become read too. Use it for a
        screen that follows the end of the channel. Before the mark, only messages in `seen` become read: late messages
        that the user has not scrolled to stay unread. Read messages stay read. Raises CursorError for an invalid cursor.
        """
        self._writer.mark_seen(channel, seen, upto, sync=sync)

    def mentions(self, limit: int = 50, *, cursor: MessageCursor | None = None, channel: str | None = None) -> Page:
        """Return up to `limit` messages of others that mention the user, newest first, of all channels or one channel.

        See `Queries.mentions`. The first call searches all texts, see `find_mentions`. A read-only store returns the
        mentions that were found when it was last open for writing.
        """
        check(limit=limit)
        check_given(channel=channel)
        if self._engine.is_writable:
            self.find_mentions()
        return super().mentions(limit, cursor=cursor, channel=channel)

    def find_mentions(self, progress: Progress = no_progress) -> None:
        """Search all stored texts for mentions, except those already searched. `progress` counts texts.

        The first call of `find_mentions`, `mentions` or `mark_read` turns the search for mentions on. The search writes
        its results in batches, and resumes after an interruption. Later texts are searched when they are stored.
        """
        check(progress=progress)
        self._writer.find_mentions(progress)

    def search(
        self,
        text: str,
        *,
        channel: str | None = None,
        author: bytes | None = None,
        after_ms: Time | None = None,
        before_ms: Time | None = None,
        limit: int = 50,
        cursor: SearchCursor | None = None,
        order: Order = "newest",
        catch_up_s: float = limits.SEARCH_CATCH_UP_S,
    ) -> SearchPage:
        """Return up to `limit` messages (at most `limits.MAX_PAGE_MESSAGES`) that contain all words of `text`.

        Words in quotes, as in `"two words"`, must be adjacent, and `word*` matches the beginning of a word. Case and
        accents do not matter. In Chinese, Japanese and Korean each character is a word. `channel`, `author` and
        `after_ms` <= time < `before_ms` filter the messages. Hidden and dropped messages are left out.

        The first search creates the index. Each search first indexes new posts for at most about `catch_up_s` seconds;
        `SearchPage.pending` is the approximate number of posts left. In a large index, a search does not wait until the
        words of removed messages are overwritten: later searches and `update_search_index` continue with that.

        Raises ArgumentError for a text without words, an exceeded limit or an invalid cursor. Raises StorageError if the
        index cannot be written, and MissingExtraError without the extra `search`.
        """
        return self._searcher.search(
            text,
            channel=channel,
            author=author,
            after_ms=after_ms,
            before_ms=before_ms,
            limit=limit,
            cursor=cursor,
            order=order,
            catch_up_s=catch_up_s,
        )

    def update_search_index(self, *, progress: Progress = no_progress, timeout_s: float | None = None) -> int:
        """Create or update the search index, until it is complete or `timeout_s` is over.

        Without `timeout_s`, it also deletes all words of removed messages from the index file. `progress` counts posts
        and events. Returns the approximate number of posts and events left. An interrupted call can be repeated.
        """
        check(progress=progress)
        check_given(timeout_s=timeout_s)
        return self._searcher.catch_up(timeout_s, progress)

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
        """Export the current state, without local-only posts, to a new or empty folder. `filters` select a part of it.

        `out` is a path, or a URI such as `s3://BUCKET/FOLDER` with credentials in the environment. After an
        interruption the same call resumes, unless the store has changed. The store can be used during the export.
        `progress` counts each post twice: when it is read and when it is written. Raises ExportError if the folder
        contains other files, and StorageError if a write fails.
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

    def import_exports(self, folders: Iterable[Location], *, progress: Progress = no_progress) -> ImportSummary:
        """Store the posts and tombstones of exports. Posts are verified like posts from peers.

        `folders` are paths or URIs. A new store that imports a full export has an equal `dump_digest`; several exports
        merge in any order. An interrupted call can be repeated. Raises ExportError for a folder that is not an export,
        is damaged, or has another dialect.
        """
        check(progress=progress)
        folders = checked_each("folders", folders, check_location)
        from cablestore.store.importing import import_exports  # noqa: PLC0415 - opening a store does without it

        return import_exports(self.parts, folders, progress)

    # --- maintenance ---------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the current state, for several consistent reads. Close the snapshot after use.

        Its moderation decisions belong to that state or are newer.
        """
        reader = self._engine.reading()
        return Snapshot(reader.source, reader, self._present.state.moderation, self._identity.known_key, self._places)

    def check(self, *, signatures: bool = False, progress: Progress = no_progress) -> CheckReport:
        """Compare every row with the posts that it comes from. With `signatures`, verify every post too.

        The result is recorded in the store's folder, unless the store is read-only.
        """
        check(signatures=signatures, progress=progress)
        engine = self._engine
        engine.require_views()
        with engine.reading() as reader, engine.folder.scratch() if engine.folder else nullcontext() as scratch:
            report = check_rows(reader, engine.catalog, scratch, signatures=signatures, progress=progress)
        if engine.folder is not None:
            check_evidence(find_evidence(engine.folder.database_path, is_open=True), report)
            if not engine.folder.is_read_only:
                note_check(engine.folder.path, system_clock_ms(), report, signatures=signatures)
        return report

    def rebuild(self, *, progress: Progress = no_progress) -> RebuildReport:
        """Rebuild every view from the posts and swap databases. Writers wait; snapshots and iterators end.

        An interrupted or failed rebuild leaves the store unchanged. If the swap itself fails, all further writes raise
        StorageError until the store is reopened.
        """
        check(progress=progress)
        return self._engine.rebuild(progress)

    def compact(self) -> None:
        """Rewrite the database to reduce its size. Other threads can read and write meanwhile; `close` waits."""
        self._engine.compact()

    def stats(self) -> Stats:
        """Return statistics of the store. They are stored in rows, so posts are not read."""
        with self._engine.reading() as reader:
            return stats_of(self._engine, reader)

    # --- methods that `Queries` requires --------------------------------------------------------

    def _reading(self) -> AbstractContextManager[Reader]:
        return self._engine.reading()

    def _known_positions(self, reader: Reader) -> KnownPositions:
        return self._places.of(reader)

    def _moderation(self) -> AppliedModeration | None:
        return self._present.state.moderation

    def _own_key(self) -> bytes | None:
        return self._identity.known_key


def _check_parts(dialect: Dialect | None, identity: Identity | None, options: StoreOptions) -> None:
    check_instance("dialect", dialect, (Dialect, NoneType))
    check_instance("identity", identity, (Identity, NoneType))
    check_instance("options", options, StoreOptions)
