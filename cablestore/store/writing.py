"""Writing to a store: each thing that a store is asked to keep, change or remove, as a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from cablestore import limits
from cablestore.index.batches import Progress, batches
from cablestore.index.engine import Engine
from cablestore.index.reader import Reader
from cablestore.index.tombstone import Tombstone
from cablestore.index.verdict import Outcome, Verdict
from cablestore.protocol.acts import Consent
from cablestore.protocol.body import Body, Delete, Info
from cablestore.protocol.keys import escape
from cablestore.protocol.post import Post
from cablestore.store.allowed import require_allowed
from cablestore.store.attention import Attention
from cablestore.store.authoring import Composer, changed_info, require_deletable
from cablestore.store.consents import lay_claims
from cablestore.store.intake import Intake, IntakeBatch
from cablestore.store.judge import Judge
from cablestore.store.queries import place_of
from cablestore.views import user_info


class Writer:
    """Writer of an open store: posts of others, own posts, removals, and what the user has read.

    `CableStore` has methods of the same names, which say more.
    """

    def __init__(self, engine: Engine, judge: Judge, attention: Attention, intake: Intake, composer: Composer) -> None:
        self._engine = engine
        self._judge = judge
        self._attention = attention
        self._intake = intake
        self._composer = composer

    # --- posts of others -----------------------------------------------------------------------

    def ingest(self, posts: Iterable[bytes], *, sync: bool, batch_posts: int, verify: bool) -> Iterator[list[Outcome]]:
        """Store posts, and yield the outcomes of each batch when it is written."""
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

    def replace(
        self, admitted: IntakeBatch, surplus: Callable[[Reader], Iterable[bytes]], *, sync: bool
    ) -> tuple[list[Outcome], list[Outcome]]:
        """Store an admitted batch and discard other posts, in one write. Returns the outcomes of both."""
        signed = admitted.signed()
        admitted.check(signed)
        with self._engine.transaction() as transaction:
            plan = self._judge.plan(transaction)
            discarded = [Outcome(digest, plan.discard(digest)) for digest in surplus(transaction.reader)]
            verdicts = self._judge.add_all(plan, admitted.posts, signed)
            self._composer.came(admitted.posts, verdicts)
            self._judge.commit(transaction, plan, sync=sync)
        return admitted.settle(verdicts), discarded

    def lay_skeletons(self, stones: Iterable[Tombstone], *, sync: bool) -> tuple[int, int]:
        """Store what tombstones say of their targets. Returns how many were new and how many were refused."""
        from cablestore.export.importer import lay_skeletons  # noqa: PLC0415 - opening a store does without it

        with self._engine.transaction() as transaction:
            plan = self._judge.plan(transaction)
            found = lay_skeletons(plan, transaction.reader, stones)
            self._judge.commit(transaction, plan, sync=sync)
        return found

    def lay_claims(self, claims: Iterable[Consent]) -> int:
        """Store what an export claims of who declines roles. Returns how many claims were new."""
        with self._engine.transaction() as transaction:
            plan = self._judge.plan(transaction)
            latest_ms = self._intake.clock() + limits.MAX_FUTURE_MS
            laid = lay_claims(plan, claims, self._composer.own_key, latest_ms)
            self._judge.write(transaction, self._judge.finish(plan, laid), sync=False)
        return len(laid)

    # --- own posts -----------------------------------------------------------------------------

    def write(self, body: Body, *, sync: bool) -> Post:
        """Sign and store a post, after a post/join if its author is not a member of its channel."""
        with self._engine.transaction() as transaction:
            require_allowed(transaction.reader, body, self._composer.own_key)
            posts = self._composer.compose(transaction, body)
            plan = self._judge.plan(transaction)  # after the post: a store without an identity has made one
            self._judge.require_welcome(posts)
            for post in posts:
                plan.add(post)
            self._judge.commit(transaction, plan, sync=sync)
            self._composer.written(posts[-1])
        return posts[-1]

    def update_info(
        self, *, name: str | None, accept_role: bool | None, others: Mapping[str, bytes | None], sync: bool
    ) -> Post | None:
        """Change a part of the information on oneself. Returns None if nothing changes."""
        with self._engine.transaction() as transaction:
            known = user_info.latest(transaction.reader, self._composer.public_key)
            before = known[0] if known else Info(())
            after = changed_info(before, name=name, accept_role=accept_role, others=others)
            return None if after == before else self.write(after, sync=sync)

    def delete(self, targets: list[bytes], *, sync: bool) -> list[Post]:
        """Delete own posts. Local-only ones are discarded: a post/delete would reveal their hash."""
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
        require_deletable(post, self._composer.public_key)
        return post.is_local_only

    # --- removing without a trace --------------------------------------------------------------

    def discard(self, hashes: Iterable[bytes], *, sync: bool) -> list[Outcome]:
        """Remove posts from this store only."""
        outcomes: list[Outcome] = []
        for batch in batches(hashes, len):
            with self._engine.transaction() as transaction:
                plan = self._judge.plan(transaction)
                outcomes += [Outcome(digest, plan.discard(digest)) for digest in batch]
                self._judge.commit(transaction, plan, sync=sync)
        return outcomes

    # --- what the user has read ----------------------------------------------------------------

    def mark_read(self, channel: str, upto: str | None, *, sync: bool) -> None:
        """Mark a channel as read, up to a message and with it, or up to its latest one."""
        place = None if upto is None else place_of(upto)
        with self._engine.transaction() as transaction:
            plan = self._judge.plan(transaction)
            self._attention.mark(plan, escape(self._engine.dialect.channel_id(channel)), place)
            self._judge.commit(transaction, plan, sync=sync)

    def find_mentions(self, progress: Progress) -> None:
        """Search the stored texts that were not searched for mentions yet. `progress` counts texts."""
        while True:
            with self._engine.transaction() as transaction:
                if self._attention.has_searched():
                    return
                plan = self._judge.plan(transaction)
                done = self._attention.search(plan)
                self._judge.commit(transaction, plan, sync=False)
            progress(done)
