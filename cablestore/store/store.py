"""The store: posts in, indexed views out. Chat clients embed it, and peers are answered from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, Self, TypeVar

from cablestore import limits
from cablestore.arguments import (
    check,
    check_bytes,
    check_given,
    check_id,
    check_instance,
    check_iterable,
    checked_each,
)
from cablestore.closable import Closable
from cablestore.errors import ArgumentError, MissingViewError, OutdatedViewError
from cablestore.files import Location, check_location
from cablestore.forks import ProcessBound, bind
from cablestore.index.batches import Progress, batches, no_progress
from cablestore.index.check import CheckReport, check_evidence
from cablestore.index.check import check as check_rows
from cablestore.index.engine import Engine
from cablestore.index.evidence import find_evidence
from cablestore.index.folder import store_path
from cablestore.index.leveldb import Tuning
from cablestore.index.place import LogPlace
from cablestore.index.reader import Reader
from cablestore.index.rebuild import RebuildReport
from cablestore.index.signatures import SignatureVerifier
from cablestore.index.tombstone import Tombstone
from cablestore.index.verdict import Outcome, Verdict
from cablestore.index.view import Catalog
from cablestore.moderation.applied import AppliedModeration
from cablestore.protocol.body import Body, Info, Join, Leave, Text, Topic
from cablestore.protocol.crypto import Identity
from cablestore.protocol.dialect import LEGACY, Dialect
from cablestore.protocol.post import Post
from cablestore.store import answers, retention
from cablestore.store.authoring import Composer
from cablestore.store.clock_check import ClockDifference, clock_difference
from cablestore.store.following import Follower
from cablestore.store.hidden import HiddenMessages
from cablestore.store.intake import Intake, IntakeBatch
from cablestore.store.key_file import StoreIdentity
from cablestore.store.known_places import KnownPlaces, PlacesMemory
from cablestore.store.local_values import LocalValues
from cablestore.store.moderator import Moderator
from cablestore.store.present import Present
from cablestore.store.queries import Queries, Snapshot, stats_of
from cablestore.store.results import Event, Page, Stats
from cablestore.store.searching import Order, Searcher, SearchPage
from cablestore.store.writing import Writer
from cablestore.views import CATALOG

if TYPE_CHECKING:
    from cablestore.export.importer import ImportSummary
    from cablestore.export.manifest import Filters, Manifest
    from cablestore.store.changes import Change, Changes

P = ParamSpec("P")
T = TypeVar("T")


def system_clock_ms() -> int:
    """Return the present time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def own_key(store: CableStore) -> bytes:
    """Return the public key of a store's user. It is made if there is none, but not in another process."""
    return store.public_key or store.identity.public_key


class CableStore(Queries, Closable, ProcessBound):
    """Open store. Thread-safe within its process; one process at a time has it open.

    Read methods (`messages`, `channels`, `members`, ...) come from `Queries` and read the present state; `snapshot`
    returns one that does not change.
    """

    def __init__(
        self,
        engine: Engine | None = None,
        store_identity: StoreIdentity | None = None,
        clock: Callable[[], int] = system_clock_ms,
        threads: int | None = None,
        *,
        moderated: bool = True,
    ) -> None:
        """Use `open` or `in_memory`."""
        if not isinstance(engine, Engine) or not isinstance(store_identity, StoreIdentity):
            raise ArgumentError(
                f"{type(self).__name__} cannot be called directly. Use {type(self).__name__}.open(path) or "
                f"{type(self).__name__}.in_memory()"
            )
        self._engine = engine
        self._identity = store_identity
        self._verifier = SignatureVerifier(threads)
        self._intake = Intake(engine.dialect, self._verifier, clock, store_identity)
        composer = Composer(store_identity, clock)
        engine.when_reloaded(composer.forget)
        self._present = Present(engine, store_identity, moderated=moderated)
        self._writer = Writer(engine, self._present, self._intake, composer)
        self._follower = Follower(engine, self._present)
        self._places = PlacesMemory()
        self._searcher = Searcher(engine, self._present)
        self.moderation: Final = Moderator(engine, self._present, composer, clock)
        """Roles, what is hidden, dropped and blocked, and the acts of moderation of the store's user."""
        self.local: Final = LocalValues(engine)
        """What is the user's alone: drafts, muted channels, values of clients. It never leaves the machine."""
        bind(self)

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
        catalog: Catalog = CATALOG,
        allow_missing_views: bool = False,
        tuning: Tuning | None = None,
        verify_threads: int | None = None,
        clock: Callable[[], int] = system_clock_ms,
        moderated: bool = True,
        read_only: bool = False,
    ) -> Self:
        """Open the store in a folder. `create` makes it if it is missing.

        `dialect` is that of a new store (legacy by default), and must match an existing one. `identity` is used instead
        of the key file in the folder. With `upgrade`, a store whose views another version built is rebuilt first, and
        `progress` counts its posts; interrupted, the store is as it was, and the next call does it again.
        `catalog` has the views to keep: `cablestore.views.CATALOG`, or
        `CATALOG.extended([...])` with views of your own. A store that has views which `catalog` lacks is refused
        (MissingViewError). With `allow_missing_views` it is opened to be read, and what would write raises. `clock`
        returns milliseconds since 1970. A store that is not `moderated` keeps and shows everything, whatever the acts
        of moderation that it holds say. `is_read_only` says what can be done with a `read_only` store.

        Raises LocationError for a path that no store can have, OpenError (its subclasses say why), StorageError if an I/O error occurs or files are damaged: an upgrade
        that would lose a post changes nothing and raises CorruptStoreError, and MissingDatabaseError if the header or
        the database that it names is lost: nothing is made in its place. Raises IdentityError for a key file that
        cannot be read, is malformed, empty or readable by others, and if local-only posts need a key that is missing.
        """
        check(create=create, upgrade=upgrade, progress=progress)
        check(allow_missing_views=allow_missing_views, read_only=read_only)
        check_instance("tuning", tuning, (Tuning, NoneType))
        _check_parts(dialect, identity, catalog, verify_threads, clock, moderated=moderated)
        path = store_path(path)
        store_identity = StoreIdentity(identity, path, read_only=read_only)
        open_engine = partial(
            Engine.open,
            path,
            catalog,
            dialect=dialect,
            tuning=tuning or Tuning(),
            unseal=store_identity.unseal,
            allow_missing_views=allow_missing_views or read_only,
            read_only=read_only,
        )
        try:
            engine = open_engine(create=create)
        except OutdatedViewError as error:
            if isinstance(error, MissingViewError) or read_only or not upgrade:
                raise
            from cablestore.store.closed import ClosedStore  # noqa: PLC0415 - opening a store does without it

            ClosedStore(path, identity=identity, catalog=catalog).rebuild(only_whole=True, progress=progress)
            engine = open_engine(create=False)
        return cls._made_of(engine, store_identity, clock, verify_threads, moderated=moderated)

    @classmethod
    def _made_of(
        cls, engine: Engine, identity: StoreIdentity, clock: Callable[[], int], threads: int | None, *, moderated: bool
    ) -> Self:
        """Make the store of an open engine, and write what follows from changes that no write of a store made."""
        try:
            identity.load()
            store = cls(engine, identity, clock, threads, moderated=moderated)
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
        catalog: Catalog = CATALOG,
        verify_threads: int | None = None,
        clock: Callable[[], int] = system_clock_ms,
        moderated: bool = True,
    ) -> Self:
        """Make a store that keeps nothing after it is closed: for tests and throwaway clients."""
        check_instance("dialect", dialect, Dialect)
        _check_parts(dialect, identity, catalog, verify_threads, clock, moderated=moderated)
        store_identity = StoreIdentity(identity or Identity.generate(), None)
        engine = Engine.in_memory(dialect, catalog, store_identity.unseal)
        return cls._made_of(engine, store_identity, clock, verify_threads, moderated=moderated)

    def close(self) -> None:
        """Close the store. Iterators and snapshots that are still open raise StoreClosedError."""
        self._searcher.close()
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
    def is_read_only(self) -> bool:
        """True if the store was opened with `read_only`: nothing is written into its folder.

        So it may be on a read-only or full disk, or belong to another user; temporary files are where TMPDIR says.
        Reads, exports, backups, `check`, and `search` if its index is complete, work; what would write raises
        StorageError. Several processes can open a store in this way while none has it open to write.
        """
        return self._engine.is_read_only

    @property
    def identity(self) -> Identity:
        """The identity that signs own posts. Its key file is made on first use, unless `open` was given an identity."""
        identity = self._identity.identity
        self._present.follow_identity()
        return identity

    @property
    def known_identity(self) -> Identity | None:
        """The same, but None if there is none yet: no key file is made."""
        return self._identity.load()

    @property
    def public_key(self) -> bytes | None:
        """The public key of the identity, None if there is none yet. A program of another process can read it too."""
        return self._identity.known_key

    def import_identity(self, identity: Identity) -> None:
        """Write as `identity` from now on. Raises IdentityError if the store has another one."""
        check_instance("identity", identity, Identity)
        self._identity.become(identity)
        self._present.follow_identity()

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
        check(sync=sync, batch_posts=batch_posts, verify=verify)
        check_iterable("posts", posts)
        return self._writer.ingest(posts, sync=sync, batch_posts=batch_posts, verify=verify)

    def appraise(self, posts: list[bytes], dialect: Dialect) -> list[Outcome]:
        """Judge posts of this dialect that peers pass to each other: ACCEPTED ones may pass. None is stored."""
        check_instance("dialect", dialect, Dialect)
        posts = checked_each("posts", posts, check_bytes)
        intake = replace(self._intake, dialect=dialect)
        batch = intake.decode(posts)
        intake.verify(batch)
        with self._engine.reading() as reader:
            moderation = self._present.state.moderation
            verdicts = [
                answers.appraised(reader, moderation, post) if is_signed else Verdict.BAD_SIGNATURE
                for post, is_signed in zip(batch.posts, batch.signed(), strict=True)
            ]
        return batch.settle(verdicts)

    def admit(self, posts: Iterable[Post]) -> IntakeBatch:
        """Begin to verify decoded posts for `replace`, while further ones are still read. Writes nothing."""
        check_iterable("posts", posts)
        return self._intake.admit(posts)

    def replace(
        self, admitted: IntakeBatch, surplus: Callable[[Reader], Iterable[bytes]], *, sync: bool = True
    ) -> tuple[list[Outcome], list[Outcome]]:
        """Store what `admit` returned and discard others, in one atomic write. Returns the outcomes of both.

        `surplus` is given the state and returns the hashes of the posts to discard. All is in memory at once. Raises
        InvalidPostError, and changes nothing, if one of the posts must be refused.
        """
        check(surplus=surplus, sync=sync)
        check_instance("admitted", admitted, IntakeBatch, "what `admit` returned")
        return self._writer.replace(admitted, surplus, sync=sync)

    # --- own posts -----------------------------------------------------------------------------

    def write(self, body: Body, *, sync: bool = True) -> Post:
        """Sign and store a post, linked to the heads of its channel, dated now or just after the last own post.

        If the author of a text or a topic is not a member of the channel, a post/join comes first, in the same write
        (wire.md 5.4.3). With `sync` the post is on the disk on return.
        """
        return self._writer.write(body, sync=sync)

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
        check_given(name=name, accept_role=accept_role, others=others)
        known = Info.of(name=name, accept_role=accept_role)
        return self.write(Info((*known.pairs, *(others or {}).items())), sync=sync)

    def set_name(self, name: str, *, sync: bool = True) -> Post | None:
        """Change the own name, and keep all else that one tells about oneself; "" removes the name.

        Returns the post, None if one has this name already: then nothing is written.
        """
        check(name=name)
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
        check(sync=sync)
        check_given(name=name, accept_role=accept_role, others=others)
        return self._writer.update_info(name=name, accept_role=accept_role, others=others or {}, sync=sync)

    def delete(self, hashes: bytes | Iterable[bytes], *, sync: bool = True, force: bool = False) -> list[Post]:
        """Delete own posts, here and on peers that get the deletion. Returns the post/delete, several for many hashes.

        Local-only posts are discarded instead, because a post/delete would reveal their hash. Raises InvalidPostError
        for posts of others, for deletions and for unknown hashes; then nothing is deleted. With `force` a hash may be
        unknown: the deletion waits for its post, which another device of the user may have.
        """
        check(sync=sync, force=force)
        targets = checked_each("hashes", [hashes] if isinstance(hashes, bytes) else hashes, check_id)
        return self._writer.delete(list(dict.fromkeys(targets)), sync=sync, force=force)

    # --- removing without a trace --------------------------------------------------------------

    def discard(self, hashes: Iterable[bytes], *, sync: bool = False) -> list[Outcome]:
        """Remove posts from this store only: DISCARDED, UNKNOWN, or KEPT for a post/delete.

        Peers may send them again.
        """
        check(sync=sync)
        check_iterable("hashes", hashes)
        return self._writer.discard(hashes, sync=sync)

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
        check(progress=progress)
        check_given(before_ms=before_ms, keep_newest=keep_newest, by_author=by_author)
        discarded = 0
        with self._engine.reading() as reader:
            for batch in batches(retention.chosen(reader, before_ms, keep_newest, by_author), len):
                outcomes = self.discard(batch)
                discarded += sum(outcome.verdict is Verdict.DISCARDED for outcome in outcomes)
                progress(len(batch))
        return discarded

    # --- events and changes --------------------------------------------------------------------

    @property
    def cursor(self) -> str:
        """The cursor of the changes that follow the present state: pass it to `changes` or `next_changes`."""
        return self._follower.cursor()

    def subscribe(self, after: int = 0, *, timeout_s: float | None = None) -> Iterator[Event]:
        """Yield every event after number `after`: stored ones first, then new ones as they happen.

        Remember the number of the last event that you have handled: subscribing after it, also after a restart, neither
        repeats nor loses an event. Ends when nothing happens for `timeout_s`, or when the store is closed.
        """
        return self._follower.subscribe(after, timeout_s)

    def next_events(self, after: int, timeout_s: float | None = None) -> list[Event]:
        """Return the events after number `after`. If there is none, wait for the first.

        The list is empty when time is up, or when the store is closed.
        """
        return self._follower.next_events(after, timeout_s)

    def changes(
        self,
        channel: str | None = None,
        after: str | None = None,
        *,
        timeout_s: float | None = None,
        local: bool = False,
    ) -> Iterator[Change]:
        """Yield what a client draws again: what changed after a cursor, and then what changes.

        `after` is the cursor of a page, a snapshot, or of `next_changes`; None is the present state. With a `channel`,
        only its changes and those that concern all channels are told. Ends when nothing happens for `timeout_s`, or when
        the store is closed. Raises ChangesCursorError if the store is rebuilt: fetch a new page then.

        `LocalChanged` is reported with `local` only. So a program that puts its cursor into `store.local` after each
        change does not wake itself.
        """
        return self._follower.changes(channel, after, timeout_s, local=local)

    def next_changes(
        self, after: str, channel: str | None = None, *, timeout_s: float | None = None, local: bool = False
    ) -> Changes:
        """Return what changed after a cursor, and the cursor that follows. If nothing did, wait for the first change.

        Each thing that was touched is told once, as it is now. So it does no harm to apply a change twice, or to begin
        at an older cursor. There are no changes when time is up. Raises ChangesCursorError for a cursor that does not
        fit the database, StoreClosedError when the store is closed. `local` is that of `changes`.
        """
        return self._follower.next_changes(after, channel, timeout_s, local=local)

    def wait(self, after: int, timeout_s: float | None = None, *, local: bool = False) -> bool:
        """Wait for events after number `after`. Returns False when time is up, or when the store is closed.

        Events are those that `events` returns. With `local`, entries of local changes count too.
        """
        return self._follower.wait(after, timeout_s, local=local)

    def watch(self, call: Callable[[], None], *, local: bool = False) -> Callable[[], None]:
        """Call a function after each write, also a failed one, and when the store is closed.

        Writes that change values of `store.local` alone do not count, unless `local` is True. Returns the function
        that ends this.

        It is called in the thread that wrote, which goes on when it returns: it must be short and must not raise. An
        event loop is woken so, and no thread waits.
        """
        check(call=call, local=local)
        return self._engine.watch(call, local=local)

    @property
    def write_failure(self) -> str:
        """Why the store accepts no writes: the last one failed. "" if all is well. Each further write tries again."""
        return self._engine.write_failure

    @property
    def failed_writes(self) -> int:
        """Times that the disk refused a write since the store was opened."""
        return self._engine.failed_writes

    def retry_writes(self) -> None:
        """Accept writes again after a failed one, if the disk has space by now."""
        self._engine.retry_writes()

    @property
    def is_closed(self) -> bool:
        """Whether the store is closed."""
        return self._engine.is_closed

    @property
    def place(self) -> LogPlace:
        """The place of the present state in the history of this database: another one after each change of the posts.

        A program that stores a place beside what it made from the posts can tell later whether this store still has
        those posts: see `LogPlace.holds_in`.
        """
        return self._engine.place

    def continues(self, place: LogPlace) -> bool:
        """Return True if the present state continues the history of a place, so no post of then is lost."""
        check_instance("place", place, LogPlace)
        with self._engine.reading() as reader:
            return place.holds_in(reader)

    def sync(self) -> None:
        """Return when all that was written before is on the disk. Raises StorageError."""
        self._engine.sync()

    @property
    def last_sequence(self) -> int:
        """The number of the latest event of the arrival log, 0 before the first."""
        return self._engine.next_sequence - 1

    def now_ms(self) -> int:
        """Return the time of the store's clock, in milliseconds since 1970."""
        return self._intake.clock()

    def clock_difference(self) -> ClockDifference | None:
        """Return how far the clock differs from those of most users who wrote lately, None if no texts prove it.

        `cablestore.store.clock_check` says what proves it.
        """
        with self._engine.reading() as reader:
            return clock_difference(reader, self._identity.known_key, self.now_ms())

    # --- what the user has read, and is looking for --------------------------------------------

    def mark_read(self, channel: str, upto: str | None = None, *, sync: bool = False) -> None:
        """Mark a channel as read, up to a message and with it, or up to its latest one.

        `upto` is the `cursor` of a message. An earlier one than at the last time marks what follows as unread again.
        The mark is the user's own: it never leaves this store. Raises CursorError for an invalid cursor.
        """
        self._writer.mark_read(channel, upto, sync=sync)

    def mark_seen(self, channel: str, seen: Iterable[str], *, upto: str | None = None, sync: bool = False) -> None:
        """Mark single messages of a channel as read, such as those on a screen. `seen` has their cursors.

        With `upto`, the cursor of a message, all messages from the read mark up to there are read too, as for a screen
        that follows the end of the channel. Of the messages before the mark, only those in `seen` become read: late
        messages that the user has not scrolled to stay unread. Nothing becomes unread. Raises CursorError for a text
        that is not a cursor.
        """
        self._writer.mark_seen(channel, seen, upto, sync=sync)

    def mentions(self, limit: int = 50, *, cursor: str | None = None, channel: str | None = None) -> Page:
        """Return up to `limit` messages of others that name the user, newest first: of all channels, or of one.

        See `Queries.mentions`. All texts are searched at the first call, see `find_mentions`. A read-only store returns
        the mentions that were found when it was last open to write.
        """
        check(limit=limit)
        check_given(channel=channel)
        if self._engine.is_writable:
            self.find_mentions()
        return super().mentions(limit, cursor=cursor, channel=channel)

    def find_mentions(self, progress: Progress = no_progress) -> None:
        """Search the stored texts that were not searched for mentions yet. `progress` counts texts.

        Mentions are looked for in a store from the first call of this, `mentions` or `mark_read` on. The first search
        reads all texts, in many writes; it can be interrupted and goes on where it was. From then on each text is
        searched when it is stored.
        """
        check(progress=progress)
        self._writer.find_mentions(progress)

    def search(
        self,
        text: str,
        *,
        channel: str | None = None,
        author: bytes | None = None,
        after: int | None = None,
        before: int | None = None,
        limit: int = 50,
        cursor: str | None = None,
        order: Order = "newest",
        catch_up_s: float = limits.SEARCH_CATCH_UP_S,
    ) -> SearchPage:
        """Return up to `limit` messages (at most `limits.MAX_PAGE_MESSAGES`) with all words of `text`.

        `"two words"` in quotes must follow each other, and `word*` is the beginning of a word. Case and accents do not
        matter. In Chinese, Japanese and Korean each character is a word. `channel`, `author` and after <= time < before
        choose among the messages. Messages that moderation hides or drops are left out.

        The index is made by the first search. Each search reads what is new in the store, for about `catch_up_s`
        seconds at most, then answers from what was read: `SearchPage.pending` says what is left. It does not wait until
        the words of removed messages are overwritten in a large index: later searches and `update_search_index` go on.

        Raises SearchError for a text without a word, a limit, or a wrong cursor; StorageError if the index cannot be
        written; MissingExtraError without the extra `search`.
        """
        return self._searcher.search(
            text,
            channel=channel,
            author=author,
            after=after,
            before=before,
            limit=limit,
            cursor=cursor,
            order=order,
            catch_up_s=catch_up_s,
        )

    def update_search_index(self, *, progress: Progress = no_progress, timeout_s: float | None = None) -> int:
        """Make the search index, or read what is new in the store, until it is complete or time is up.

        Without `timeout_s` no word of a removed message is left in its file afterwards.
        `progress` counts posts and events. Returns about how many are left. If interrupted, it can be run again.
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

    def import_exports(self, folders: Iterable[Location], *, progress: Progress = no_progress) -> ImportSummary:
        """Store the posts of exports, verified like posts from peers, and what the exports know of deleted posts.

        `folders` are paths or URIs.
        A new store that imports a full export has an equal `dump_digest`; several exports merge, in any order. If
        interrupted, it can be run again. Raises ExportError for a folder that is not an export, is damaged, or has
        another dialect.
        """
        check(progress=progress)
        folders = checked_each("folders", folders, check_location)
        from cablestore.export import importer  # noqa: PLC0415 - opening a store does without it

        manifests = importer.manifests_of(folders, self.dialect)
        summary = importer.ImportSummary(len(manifests))
        for outcomes in self.ingest_batches(importer.posts_of(manifests), batch_posts=limits.MAX_BATCH_POSTS):
            summary.count(outcomes)
            progress(len(outcomes))
        for claims in importer.consents_of(manifests):
            summary.consents += self._writer.lay_claims(claims)
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
        check(sync=sync)
        stones = checked_each("stones", stones, _check_tombstone)
        return self._writer.lay_skeletons(stones, sync=sync)

    # --- maintenance ---------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the present state, for reads that belong together.

        Its decisions on moderation are those of that state, or newer ones.
        """
        state, reader = self._engine.snapshot()
        return Snapshot(state, reader, self._present.state.moderation, self._identity.known_key, self._places)

    def run(self, function: Callable[Concatenate[CableStore, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function on the store returns.

        On a store of another process it runs there. It must be one of `cablestore.remote.methods.FUNCTIONS` then.
        """
        return function(self, *args, **kwargs)

    def check(self, *, signatures: bool = False, progress: Progress = no_progress) -> CheckReport:
        """Compare every row with what the posts say. With `signatures`, verify every post too."""
        check(signatures=signatures, progress=progress)
        engine = self._engine
        engine.require_views()
        with engine.reading() as reader, engine.folder.scratch() if engine.folder else nullcontext() as scratch:
            report = check_rows(reader, engine.catalog, scratch, signatures=signatures, progress=progress)
        if engine.folder is not None:
            check_evidence(find_evidence(engine.folder.database_path, is_open=True), report)
        return report

    def rebuild(self, *, progress: Progress = no_progress) -> RebuildReport:
        """Build every view again from the posts and swap databases. Writers wait, snapshots and iterators end.

        Interrupted or failed, it leaves the store as it was. If that happens during the swap, all further writes raise
        StorageError until the store is opened again.
        """
        check(progress=progress)
        return self._engine.rebuild(progress)

    def compact(self) -> None:
        """Rewrite the database in the least space. Other threads read and write meanwhile; `close` waits for it."""
        self._engine.compact()

    def stats(self) -> Stats:
        """Return the numbers of the store. They are kept in rows: no post is read."""
        with self._engine.reading() as reader:
            return stats_of(self._engine, reader)

    # --- what `Queries` reads -------------------------------------------------------------------

    def _reading(self) -> AbstractContextManager[Reader]:
        return self._engine.reading()

    def _known_places(self, reader: Reader) -> KnownPlaces:
        return self._places.of(reader)

    def _moderation(self) -> AppliedModeration | None:
        return self._present.state.moderation

    def _own_key(self) -> bytes | None:
        return self._identity.known_key


def _check_parts(
    dialect: Dialect | None,
    identity: Identity | None,
    catalog: Catalog,
    threads: int | None,
    clock: Callable[[], int],
    *,
    moderated: bool,
) -> None:
    check(clock=clock, moderated=moderated)
    check_given(verify_threads=threads)
    check_instance("catalog", catalog, Catalog)
    check_instance("dialect", dialect, (Dialect, NoneType))
    check_instance("identity", identity, (Identity, NoneType))


def _check_tombstone(name: str, value: object) -> None:
    check_instance(name, value, Tombstone)
