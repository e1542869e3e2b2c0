"""Attention: what each write adds to the rows of late texts and of mentions, and what is looked at later.

Nothing is done in a store without a read mark in which nobody asked for mentions.
"""

from __future__ import annotations

from itertools import chain, islice

from cablestore import limits
from cablestore.index import arrival_log
from cablestore.index.arrival_log import EventKind
from cablestore.index.engine import Engine
from cablestore.index.local import LATE, MENTION_SEARCH, MENTIONING, READ, UNSEEN, local_key, number_in
from cablestore.index.plan import Plan
from cablestore.protocol.body import INFO, TEXT
from cablestore.protocol.keys import unescape
from cablestore.protocol.post import Post
from cablestore.store.key_file import StoreIdentity
from cablestore.store.mentions import Naming, require_search, search_some, set_mention
from cablestore.store.read_marks import ReadMark, encode_mark, named_value, stored_marks
from cablestore.views import messages


class Attention:
    """Attention of one open store to what concerns its user. Only the writer uses it."""

    def __init__(self, engine: Engine, identity: StoreIdentity) -> None:
        self._engine = engine
        self._identity = identity
        self._read()
        engine.when_reloaded(self._read)
        if engine.is_writable:
            self._catch_up()

    def _read(self) -> None:
        reader = self._engine.live_readers()[0]
        self._marks = stored_marks(reader)
        self.naming = Naming.stored(reader)
        """The user's key and names, if anybody asked for mentions."""

    # --- with each write -----------------------------------------------------------------------

    def note(self, plan: Plan) -> Naming | None:
        """Add to a plan the local rows that follow from the posts that it stores and removes.

        Returns the user's names after the plan. They are `naming` when it is written.
        """
        if self.naming is None and not self._marks:
            return None
        naming = self._names_after(plan)
        removed = {post.hash for post in plan.removed}
        for post in chain(plan.added, plan.removed) if removed else plan.added:
            if post.type == TEXT and post.hash in removed and not plan.reader.has(post.hash_hex):
                self._note_removed(plan, post, naming)
            elif post.type == TEXT:
                self._note_added(plan, post, naming)
        return naming

    def mark(self, plan: Plan, channel_key: bytes, place: bytes | None) -> None:
        """Add to a plan that a channel is read up to a <mono-ts>, None for its latest text."""
        self.search(plan)
        if place is None:
            latest = messages.texts(plan.reader, unescape(channel_key), newest_first=True)
            place = next((at for at, _ in latest), b"")
        prefix = local_key(LATE)
        late = [key[len(prefix) :] for key, _ in plan.reader.prefix(prefix + channel_key + b"!")]
        known = self._marks.get(channel_key)
        if known is not None and known.place == place and not late:
            return  # nothing changes, so nobody is told: a client that marks whenever it is told would never end
        mark = ReadMark(place, self._engine.next_sequence - 1)
        self._marks[channel_key] = mark
        plan.set_local(READ, channel_key, encode_mark(mark), noted=True)
        for key in late:
            plan.set_local(LATE, key, None)

    def _note_added(self, plan: Plan, post: Post, naming: Naming | None, sequence: int | None = None) -> None:
        """Note a text. `sequence` is its number in the arrival log if it came before."""
        mark = self._marks.get(post.channel_key)
        if mark is not None and post.sort_time <= mark.place and (sequence is None or sequence > mark.sequence):
            plan.set_local(LATE, post.channel_key + b"!" + post.sort_time, named_value(post))
        if naming is not None and naming.is_mentioned_by(post):
            set_mention(plan, post, is_mentioned=True)

    def _note_removed(self, plan: Plan, post: Post, naming: Naming | None) -> None:
        mark = self._marks.get(post.channel_key)
        if mark is not None and post.sort_time <= mark.place:
            plan.set_local(LATE, post.channel_key + b"!" + post.sort_time, None)
        if naming is not None:
            set_mention(plan, post, is_mentioned=False)

    # --- mentions ------------------------------------------------------------------------------

    def begin(self, plan: Plan) -> None:
        """Add to a plan that mentions are looked for from now on, and in all texts that are stored."""
        if self.naming is None:
            self.naming = Naming.read(plan.reader, self._identity.known_key)
            plan.set_local(MENTIONING, b"", self.naming.encode())
            require_search(plan, b"", b"")

    def has_searched(self) -> bool:
        """Tell whether all stored texts were searched for the user's present names."""
        known, own_key = self.naming, self._identity.known_key or b""
        search = self._engine.live_readers()[0].local(MENTION_SEARCH, b"")
        return known is not None and known.own_key == own_key and search is None

    def search(self, plan: Plan) -> int:
        """Add to a plan a batch of the search of stored texts. Returns how many texts were searched."""
        self.begin(plan)
        self.naming = self._names_after(plan)
        return 0 if self.naming is None else search_some(plan, self.naming, limits.MAX_BATCH_POSTS)

    def _names_after(self, plan: Plan, *, is_unsure: bool = False) -> Naming | None:
        """Return the user's key and names after a plan. The texts of the time that a change concerns are searched."""
        known, own_key = self.naming, self._identity.known_key or b""
        posts = chain(plan.added, plan.removed)
        if known is None or not (
            is_unsure or known.own_key != own_key or any(p.type == INFO and p.author == own_key for p in posts)
        ):
            return known
        naming = Naming.read(plan.reader, own_key)
        stretch = naming.difference(known)
        if naming != known:
            plan.set_local(MENTIONING, b"", naming.encode())
        if stretch is not None:
            require_search(plan, *stretch)
            search_some(plan, naming, limits.MAX_BATCH_POSTS)
        return naming

    # --- after a reindexing --------------------------------------------------------------------

    def _catch_up(self) -> None:
        """Look at what came otherwise than by a write of this store: a rebuild, a reindexing, another key file."""
        reader = self._engine.live_readers()[0]
        if self.naming is not None and Naming.read(reader, self._identity.known_key) != self.naming:
            with self._engine.transaction() as transaction:
                plan = transaction.plan()
                self.naming = self._names_after(plan, is_unsure=True)
                transaction.commit(plan.finish(), sync=False)
        while self._engine.live_readers()[0].local(UNSEEN, b"") is not None:
            with self._engine.transaction() as transaction:
                plan = transaction.plan()
                self._look_at_some(plan)
                transaction.commit(plan.finish(), sync=False)

    def _look_at_some(self, plan: Plan) -> None:
        """Note a batch of the texts that the arrival log has after the number in the row UNSEEN."""
        after = number_in(plan.reader.local(UNSEEN, b""))
        entries = list(islice(arrival_log.entries(plan.reader, after), limits.MAX_BATCH_POSTS))
        for entry in entries:
            post = plan.reader.post(entry.hash) if entry.kind is EventKind.ACCEPTED else None
            if post is not None and post.type == TEXT:
                self._note_added(plan, post, self.naming, entry.sequence)
        is_more = len(entries) == limits.MAX_BATCH_POSTS
        plan.set_local(UNSEEN, b"", b"%d" % entries[-1].sequence if is_more else None)
