"""Local rows of late texts and mentions: each write updates them, and searches complete them later.

The store has no such rows until the user has marked a channel as read or requested mentions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Self

from cablestore import limits
from cablestore.index import arrival_log
from cablestore.index.arrival_log import EventKind
from cablestore.index.local import LATE, MENTION_RULES, MENTION_SEARCH, MENTIONING, READ, UNSEEN, local_key, number_in
from cablestore.index.plan import Plan
from cablestore.index.reader import Reader
from cablestore.protocol.body import INFO, TEXT
from cablestore.protocol.keys import unescape
from cablestore.protocol.post import Post
from cablestore.store.mentions import RULES, Naming, require_search, search_linking, search_some, set_mention
from cablestore.store.read_marks import ReadMark, encode_mark, named_value, stored_marks
from cablestore.views import links, messages


@dataclass(frozen=True, slots=True)
class UserMarks:
    """Read marks and names of the store's user in one state of the store. Immutable: methods return new objects."""

    own_key: bytes | None
    """Public key of the user, or None if the store does not have an identity."""
    naming: Naming | None
    """Key and names of the user, None until mentions are requested."""
    marks: dict[bytes, ReadMark]
    """Read marks by escaped channel name."""
    late: dict[bytes, int]
    """Approximate number of late texts, by escaped channel name, of channels that received late texts since `read`."""

    @classmethod
    def read(cls, reader: Reader, own_key: bytes | None) -> Self:
        """Read marks and names from the local rows of a store."""
        return cls(own_key, Naming.stored(reader), stored_marks(reader), {})

    # --- with each write -----------------------------------------------------------------------

    def after(self, plan: Plan) -> Self:
        """Add the local rows that the added and removed posts of `plan` require. Return the marks after the plan."""
        if self.naming is None and not self.marks:
            return self
        naming, late = self.names_after(plan), dict(self.late)
        removed = {post.hash for post in plan.removed}
        for post in chain(plan.added, plan.removed) if removed else plan.added:
            if post.type == TEXT and post.hash in removed and not plan.reader.has(post.hash_hex):
                self._note_removed(plan, post, naming)
            elif post.type == TEXT:
                self._note_added(plan, post, naming, late)
            # Earlier texts may link to a new post. Then `links.is_missing` is still True here, because the heads are
            # updated later in the write. The search includes texts of this plan that link to the post.
            may_differ = naming is not None and naming.may_differ_for_links(post)
            if naming and may_differ and (post.hash in removed or links.is_missing(plan.reader, post)):
                search_linking(plan, naming, post)
        return replace(self, naming=naming, late=late)

    def marked(self, plan: Plan, channel_key: bytes, place: bytes | None) -> Self:
        """Mark a channel as read up to the <mono-ts> `place` in a plan. If it is None, mark up to the latest text."""
        searched, _ = self.searched(plan)
        if place is None:
            latest = messages.texts(plan.reader, unescape(channel_key), newest_first=True)
            place = next((at for at, _ in latest), b"")
        prefix = local_key(LATE)
        late = [key[len(prefix) :] for key, _ in plan.reader.prefix(prefix + channel_key + b"!")]
        known = self.marks.get(channel_key)
        if known is not None and known.place == place and not late:
            return searched  # no notification: a client that marks the channel on each change would loop
        return searched.with_mark(plan, channel_key, place, late)

    def seen(self, plan: Plan, channel_key: bytes, seen: set[bytes], upto: bytes | None) -> Self:
        """Mark as read in a plan the texts at the <mono-ts> in `seen`, and all texts from the read mark up to `upto`.

        The mark moves to the last text in `seen`, and the unread texts before it become late texts. If these would be
        more than `limits.MAX_UNREAD_COUNTED`, the mark moves only to `upto`.
        """
        searched, _ = self.searched(plan)
        known = self.marks.get(channel_key)
        before = b"" if known is None else known.place
        late = [
            key for at in seen if at <= before and plan.reader.local(LATE, key := channel_key + b"!" + at) is not None
        ]
        place = max(before, upto or b"")
        found = max(filter(partial(_is_text, plan.reader, channel_key), (at for at in seen if at > place)), default=b"")
        skipped = self._unseen(plan.reader, channel_key, place, found, seen)
        if found and len(skipped) <= limits.MAX_UNREAD_COUNTED:
            place = found
            for post in skipped:
                plan.set_local(LATE, channel_key + b"!" + post.sort_time, named_value(post))
        return searched.with_mark(plan, channel_key, place, late) if late or place != before else searched

    def _unseen(self, reader: Reader, channel_key: bytes, after: bytes, before: bytes, seen: set[bytes]) -> list[Post]:
        """Return texts of others between the <mono-ts> `after` and `before`, except those whose <mono-ts> is in `seen`.

        At most MAX_UNREAD_COUNTED + 1 texts are returned.
        """
        if before <= after:
            return []
        rows = messages.texts(reader, unescape(channel_key), after or None, before, newest_first=False)
        posts = (reader.post(digest) for at, digest in rows if at not in seen)
        others = (post for post in posts if post is not None and post.author != self.own_key)
        return list(islice(others, limits.MAX_UNREAD_COUNTED + 1))

    def with_mark(self, plan: Plan, channel_key: bytes, place: bytes, late: list[bytes]) -> Self:
        """Set the read mark of a channel to the <mono-ts> `place` in a plan. Delete the late texts' rows in `late`."""
        mark = ReadMark(place, arrival_log.next_sequence(plan.reader) - 1)
        plan.set_local(READ, channel_key, encode_mark(mark), noted=True)
        for key in late:
            plan.set_local(LATE, key, None)
        counted = {channel: number for channel, number in self.late.items() if channel != channel_key}
        return replace(self, marks=self.marks | {channel_key: mark}, late=counted)

    def _note_added(
        self, plan: Plan, post: Post, naming: Naming | None, late: dict[bytes, int], sequence: int | None = None
    ) -> None:
        """Add the rows of the text `post` if it is late or a mention. Update the number of late texts in `late`.

        `sequence` is the number of its log entry if it was stored before this plan, None for a new text.
        """
        mark = self.marks.get(post.channel_key)
        if mark is not None and post.sort_time <= mark.place and (sequence is None or sequence > mark.sequence):
            plan.set_local(LATE, post.channel_key + b"!" + post.sort_time, named_value(post))
            late[post.channel_key] = _bound(plan, post.channel_key, late.get(post.channel_key))
        if naming is not None and naming.is_mentioned_by(post, plan.reader):
            set_mention(plan, post, is_mentioned=True)

    def _note_removed(self, plan: Plan, post: Post, naming: Naming | None) -> None:
        mark = self.marks.get(post.channel_key)
        if mark is not None and post.sort_time <= mark.place:
            plan.set_local(LATE, post.channel_key + b"!" + post.sort_time, None)
        if naming is not None:
            set_mention(plan, post, is_mentioned=False)

    # --- mentions ------------------------------------------------------------------------------

    def has_searched(self, reader: Reader) -> bool:
        """Return True if all stored texts were searched for the current names of the user."""
        is_over = reader.local(MENTION_SEARCH, b"") is None and reader.local(MENTION_RULES, b"") == RULES
        return self.naming is not None and self.naming.own_key == (self.own_key or b"") and is_over

    def searched(self, plan: Plan) -> tuple[Self, int]:
        """Add the next batch of the search for mentions to a plan. Also returns the number of searched posts."""
        naming = self._begun(plan).names_after(plan)
        return replace(self, naming=naming), 0 if naming is None else search_some(plan, naming, limits.MAX_BATCH_POSTS)

    def _begun(self, plan: Plan) -> Self:
        """Add a request to a plan to search all stored texts, unless the current rules were requested before."""
        naming = self.naming
        if naming is None:
            naming = Naming.read(plan.reader, self.own_key)
            plan.set_local(MENTIONING, b"", naming.encode())
        elif plan.reader.local(MENTION_RULES, b"") == RULES:
            return self
        plan.set_local(MENTION_RULES, b"", RULES)
        require_search(plan, b"", b"")
        return replace(self, naming=naming)

    def names_after(self, plan: Plan, *, is_unsure: bool = False) -> Naming | None:
        """Return the user's key and names after a plan. If they changed, search the first texts that this concerns.

        With `is_unsure`, the names are read even if no post of the plan can change them. Returns None until mentions
        are requested.
        """
        known, own_key = self.naming, self.own_key or b""
        posts = chain(plan.added, plan.removed)
        if known is None or not (
            is_unsure or known.own_key != own_key or any(p.type == INFO and p.author == own_key for p in posts)
        ):
            return known
        naming = Naming.read(plan.reader, own_key)
        changed = naming.difference(known)
        if naming != known:
            plan.set_local(MENTIONING, b"", naming.encode())
        if changed is not None:
            require_search(plan, *changed)
            search_some(plan, naming, limits.MAX_BATCH_POSTS)
        return naming

    # --- after a reindexing --------------------------------------------------------------------

    def completed(self, plan: Plan) -> Self:
        """Add the rows that a rebuild, a reindexing or another key file requires, for at most one batch of posts.

        Return the marks and names after the plan.
        """
        naming = self.names_after(plan, is_unsure=True)
        late = dict(self.late)
        if plan.reader.local(UNSEEN, b"") is not None:
            self._note_unseen(plan, naming, late)
        return replace(self, naming=naming, late=late)

    def is_complete(self, reader: Reader) -> bool:
        """Return True if `completed` would not add rows to a plan."""
        has_names = self.naming is None or Naming.read(reader, self.own_key) == self.naming
        return has_names and reader.local(UNSEEN, b"") is None

    def _note_unseen(self, plan: Plan, naming: Naming | None, late: dict[bytes, int]) -> None:
        """Add the rows of texts in the next batch of log entries, after the entry whose number is in the row UNSEEN.

        Update the row, or delete it after the last batch.
        """
        after = number_in(plan.reader.local(UNSEEN, b""))
        entries = list(islice(arrival_log.entries(plan.reader, after), limits.MAX_BATCH_POSTS))
        for entry in entries:
            post = plan.reader.post(entry.hash) if entry.kind is EventKind.ACCEPTED else None
            if post is not None and post.type == TEXT:
                self._note_added(plan, post, naming, late, entry.sequence)
            if post is not None and naming is not None and naming.may_differ_for_links(post):
                search_linking(plan, naming, post)
        is_more = len(entries) == limits.MAX_BATCH_POSTS
        plan.set_local(UNSEEN, b"", b"%d" % entries[-1].sequence if is_more else None)


def _bound(plan: Plan, channel_key: bytes, number: int | None) -> int:
    """Return the number of late texts of a channel after a text was added. `number` is the number before, if known.

    Above `limits.MAX_LATE_TEXTS`, the rows of the oldest late texts are deleted: they become read.
    """
    if number is not None and number < limits.MAX_LATE_TEXTS:
        return number + 1
    prefix = local_key(LATE)
    keys = [key[len(prefix) :] for key, _ in plan.reader.prefix(prefix + channel_key + b"!")]
    surplus = keys[: -limits.MAX_LATE_TEXTS // 2] if len(keys) > limits.MAX_LATE_TEXTS else []
    for key in surplus:
        plan.set_local(LATE, key, None)
    return len(keys) - len(surplus)


def _is_text(reader: Reader, channel_key: bytes, place: bytes) -> bool:
    """Return True if a channel contains a text at a <mono-ts>. A displayed text may have been deleted meanwhile."""
    return reader.get(b"%b%b!%b" % (messages.PREFIX, channel_key, place)) is not None
