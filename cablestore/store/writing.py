"""Writes to a store: each stores, changes or removes data in a transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from cablestore import limits
from cablestore.arguments import check, check_bytes, check_id, check_iterable
from cablestore.errors import ArgumentError
from cablestore.index.batches import Progress, batches
from cablestore.index.drops import dropped_post
from cablestore.index.engine import Engine
from cablestore.index.reader import Reader
from cablestore.index.tombstone import Tombstone
from cablestore.index.verdict import Outcome, Verdict
from cablestore.moderation.admission import add_all, require_admitted
from cablestore.moderation.changing import changed
from cablestore.moderation.consents import remember_claims
from cablestore.protocol.acts import Consent
from cablestore.protocol.body import Body, Delete, Info, check_body
from cablestore.protocol.keys import escape
from cablestore.protocol.post import Post
from cablestore.store.allowed import require_allowed
from cablestore.store.authoring import Composer, changed_info, require_deletable
from cablestore.store.cursor import MessageCursor
from cablestore.store.intake import Intake, IntakeBatch
from cablestore.store.present import Present, finish
from cablestore.store.queries import place_of
from cablestore.views import user_info


class Writer:
    """Writer of an open store: posts of other users, posts of the user, removals, and read marks.

    `CableStore` documents its methods of the same names in more detail.
    """

    def __init__(self, engine: Engine, present: Present, intake: Intake, composer: Composer) -> None:
        self._engine = engine
        self._present = present
        self._intake = intake
        self._composer = composer

    # --- posts of other users ------------------------------------------------------------------

    def ingest(self, posts: Iterable[bytes], *, sync: bool, batch_posts: int, verify: bool) -> Iterator[list[Outcome]]:
        """Store posts in batches. Yield the outcomes of each batch after its write."""
        previous: IntakeBatch | None = None
        for raws in batches(posts, size_bytes, min(batch_posts, limits.MAX_BATCH_POSTS)):
            batch = self._intake.decode(raws)
            if previous is not None:
                yield self._store(previous, batch if verify else None, sync=sync)
            elif verify:
                self._intake.verify(batch)
            previous = batch
        if previous is not None:
            yield self._store(previous, None, sync=sync)

    def _store(self, batch: IntakeBatch, following: IntakeBatch | None, *, sync: bool) -> list[Outcome]:
        """Plan and write a batch while the next batch is verified.

        If posts are forged, plan again without these posts.
        """
        if not batch.is_planned_ahead:
            batch.signed()
        if following is not None:
            self._intake.verify(following)
        with self._engine.transaction() as transaction:
            state = self._present.follow_identity()
            for signed in batch.attempts():
                plan = transaction.plan()
                try:
                    verdicts = add_all(plan, state.moderation, batch.posts, signed)
                    planned = finish(plan, state)
                except Exception:  # a forged post may cause any error
                    if signed == batch.signed():
                        raise
            self._composer.note_ingested(batch.posts, verdicts)
            self._present.commit(transaction, planned, sync=sync)
        if Verdict.BAD_SIGNATURE in verdicts:
            self._intake.verify_ahead()
        return batch.settle(verdicts)

    def replace(
        self, admitted: IntakeBatch, surplus: Callable[[Reader], Iterable[bytes]], *, sync: bool
    ) -> tuple[list[Outcome], list[Outcome]]:
        """Store the batch `admitted` and discard the posts whose hashes `surplus` returns, in one write.

        Return the outcomes of the batch and of the discarded posts. Raises ArgumentError, and writes nothing, if a post
        of the batch is rejected (`admitted.rejection`).
        """
        if problem := admitted.rejection():
            raise ArgumentError(problem)
        signed = admitted.signed()
        with self._engine.transaction() as transaction:
            state = self._present.follow_identity()
            plan = transaction.plan()
            discarded = [Outcome(digest, plan.discard(digest)) for digest in surplus(transaction.reader)]
            verdicts = add_all(plan, state.moderation, admitted.posts, signed)
            self._composer.note_ingested(admitted.posts, verdicts)
            self._present.commit(transaction, finish(plan, state), sync=sync)
        return admitted.settle(verdicts), discarded

    def store_skeletons(self, stones: Iterable[Tombstone], *, sync: bool) -> tuple[int, int]:
        """Store the skeletons of tombstones. Return the number of new and of rejected skeletons."""
        from cablestore.export.importer import add_skeletons  # noqa: PLC0415 - not needed to open a store

        with self._engine.transaction() as transaction:
            state = self._present.follow_identity()
            plan = transaction.plan()
            found = add_skeletons(plan, transaction.reader, stones)
            self._present.commit(transaction, finish(plan, state), sync=sync)
        return found

    def store_claims(self, claims: Iterable[Consent]) -> int:
        """Store the claims of an export about users who decline roles. Return the number of new claims."""
        with self._engine.transaction() as transaction:
            state = self._present.follow_identity()
            plan = transaction.plan()
            latest_ms = self._intake.clock() + limits.MAX_FUTURE_MS
            laid = remember_claims(plan, claims, self._composer.own_key, latest_ms)
            state = state._replace(moderation=changed(plan, state.moderation, laid))
            self._present.commit(transaction, finish(plan, state), sync=False)
        return len(laid)

    # --- posts of the user ---------------------------------------------------------------------

    def write(self, body: Body, *, sync: bool) -> Post:
        """Sign and store a post. If its author is not a member of its channel, a post/join precedes it."""
        check(sync=sync)
        check_body(body)
        with self._engine.transaction() as transaction:
            require_allowed(transaction.reader, body, self._composer.own_key)
            posts = self._composer.compose(transaction, body, self._present.state.moderation)
            state = self._present.follow_identity()  # composing the post may have created the identity
            require_admitted(state.moderation, posts)
            plan = transaction.plan()
            for post in posts:
                plan.add(post)
            self._present.commit(transaction, finish(plan, state), sync=sync)
            self._composer.written(posts[-1])
        return posts[-1]

    def set_info(
        self, *, name: str | None, accept_role: bool | None, others: Mapping[str, bytes | None], sync: bool
    ) -> Post | None:
        """Change some pairs of the user's info. Return None if nothing changes."""
        with self._engine.transaction() as transaction:
            known = user_info.latest(transaction.reader, self._composer.public_key)
            before = known[0] if known else Info(())
            after = changed_info(before, name=name, accept_role=accept_role, others=others)
            return None if after == before else self.write(after, sync=sync)

    def delete(self, targets: list[bytes], *, sync: bool, force: bool) -> list[Post]:
        """Delete posts of the user. Local-only posts are discarded: a post/delete would reveal their hashes."""
        with self._engine.transaction() as transaction:
            unknown = [digest for digest in targets if not (force or _is_known(transaction.reader, digest))]
            if unknown:
                more = f" and {len(unknown) - 1} more" if unknown[1:] else ""
                raise ArgumentError(
                    f"post {unknown[0].hex()}{more} not found. Nothing was deleted. Force the deletion if another "
                    "device has the post: `--force`, or `force=True`"
                )
            private = dict.fromkeys(digest for digest in targets if self._is_private(transaction.reader, digest))
            public = [digest for digest in targets if digest not in private]
            self.discard(private, sync=sync)
            parts = batches(public, len, limits.MAX_DELETIONS_WRITTEN)
            return [self.write(Delete(tuple(part)), sync=sync) for part in parts]

    def _is_private(self, reader: Reader, digest: bytes) -> bool:
        """Return True if a stored post is local-only. Raises ArgumentError if it is stored and cannot be deleted."""
        post = reader.post(digest)
        if post is None:
            return False
        require_deletable(post, self._composer.public_key)
        return post.is_local_only

    # --- discarding ----------------------------------------------------------------------------

    def discard(self, hashes: Iterable[bytes], *, sync: bool) -> list[Outcome]:
        """Remove posts from this store only. Leave no tombstones."""
        outcomes: list[Outcome] = []
        for batch in batches(hashes, _hash_size_bytes):
            with self._engine.transaction() as transaction:
                state = self._present.follow_identity()
                plan = transaction.plan()
                outcomes += [Outcome(digest, plan.discard(digest)) for digest in batch]
                self._present.commit(transaction, finish(plan, state), sync=sync)
        return outcomes

    # --- read marks and mentions ---------------------------------------------------------------

    def mark_read(self, channel: str, upto: MessageCursor | None, *, sync: bool) -> None:
        """Mark a channel as read up to and including a message, or up to its latest message."""
        check(channel=channel, sync=sync)
        place = None if upto is None else place_of(upto)
        with self._engine.transaction() as transaction:
            state = self._present.follow_identity()
            plan = transaction.plan()
            key = escape(self._engine.dialect.channel_id(channel))
            state = state._replace(user_marks=state.user_marks.marked(plan, key, place))
            self._present.commit(transaction, finish(plan, state), sync=sync)

    def mark_seen(self, channel: str, seen: Iterable[MessageCursor], upto: MessageCursor | None, *, sync: bool) -> None:
        """Mark single messages as read, and with `upto` also all messages from the read mark up to it."""
        check(channel=channel, sync=sync)
        check_iterable("seen", seen)
        places, place = set(map(place_of, seen)), None if upto is None else place_of(upto)
        with self._engine.transaction() as transaction:
            state = self._present.follow_identity()
            plan = transaction.plan()
            key = escape(self._engine.dialect.channel_id(channel))
            state = state._replace(user_marks=state.user_marks.seen(plan, key, places, place))
            self._present.commit(transaction, finish(plan, state), sync=sync)

    def find_mentions(self, progress: Progress) -> None:
        """Search the remaining stored texts for mentions. `progress` receives the number of posts in each batch."""
        while True:
            with self._engine.transaction() as transaction:
                state = self._present.follow_identity()
                if state.user_marks.has_searched(transaction.reader):
                    return
                plan = transaction.plan()
                user_marks, done = state.user_marks.searched(plan)
                self._present.commit(transaction, finish(plan, state._replace(user_marks=user_marks)), sync=False)
            progress(done)


def _is_known(reader: Reader, digest: bytes) -> bool:
    """Return True if a post is stored, deleted or dropped."""
    return (
        reader.post(digest) is not None or reader.burial(digest) is not None or dropped_post(reader, digest) is not None
    )


def size_bytes(raw: bytes) -> int:
    """Return the size of a post that is passed to `ingest`. Raises ArgumentError if it is not bytes."""
    check_bytes("posts (one of them)", raw)
    return len(raw)


def _hash_size_bytes(digest: bytes) -> int:
    check_id("hashes (one of them)", digest)
    return len(digest)
