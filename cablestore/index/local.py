"""Local rows: rows that do not follow from posts and only concern this store.

    !local!<name>!<key> -> value

Each use has a name, defined below with the meaning of its keys and values. A row is written together with the change
that it belongs to (`Plan.set_local`). A rebuild, a reindexing, `generations --back-to` and backups preserve it. It is
not part of views, of dumps that compare stores, of exports, of answers to peers or of reconciled sets.
"""

from __future__ import annotations

from typing import Final

PREFIX: Final = b"!local!"
_MAX_DIGITS: Final = 16

CONFIRMED: Final = b"witnessed"
"""Posts that this store itself had together with their author's deletion: hash in hex digits -> author, 32 bytes.

Statements of other stores about such a post no longer count, and the post is not requested again.
"""

DROP: Final = b"drop"
"""Drops that apply: target -> its action, and the progress of the removal (`cablestore.index.drops`)."""

SWEPT: Final = b"swept"
"""Exists if the posts of all drops are removed, or nothing is dropped. Otherwise the drops must be read."""

UNDROP: Final = b"undrop"
"""The position at which the comparison of the remembered posts with the drops continues, if it is in progress."""

DROPPED: Final = b"dropped"
"""Posts that were dropped, or rejected because of a drop: hash in hex digits -> the remembered part of the post."""

DROPPED_LINK: Final = b"dropped-link"
"""Links of the remembered posts: channel, linked hash and hash -> empty."""

DROPPED_HEAD: Final = b"dropped-head"
"""The remembered posts that were heads when they were removed: channel and hash -> empty."""

REFUSED: Final = b"refused"
"""The number of remembered posts that were never stored; at most `limits.MAX_REJECTED_REMEMBERED`."""

CONSENT: Final = b"consent"
"""Statements about roles in post/infos that were rejected, dropped or discarded: public key and <mono-ts> -> hash of
the post/info, and whether the user accepts roles and whether the statement is a claim of another store.
"""

ACT: Final = b"act"
"""Actions and roles of dropped users without their reasons: public key and <mono-ts> -> record, as in the view acts."""

SEED: Final = b"seed"
"""The moderation seed with which the store joined its cabal: its bytes, when it was set, when it was revoked
(moderation.md 4.7).
"""

DECIDED: Final = b"judged"
"""The local user's public key for which the drops in local rows are derived. Without this row, they are derived again
when the store is opened.
"""

RULES: Final = b"rules"
"""The version of the rules by which the drops in local rows were derived. If the current version differs, they are
derived again.
"""

READ: Final = b"read"
"""Read marks: channel -> the position up to which the user has read it (`cablestore.store.read_marks`)."""

LATE: Final = b"late"
"""Texts that arrived after their channel was marked and are dated before the mark: channel and <mono-ts> -> hash
and author of the text.
"""

MENTION: Final = b"mention"
"""Texts that name the user: <mono-ts> -> hash and author of the text (`cablestore.store.mentions`)."""

MENTION_IN: Final = b"mention-in"
"""Texts that name the user, by channel: channel and <mono-ts> -> hash and author of the text."""

MENTIONING: Final = b"mentioning"
"""The key and the names of the user that count as mentions. Without this row, the store does not look for mentions."""

MENTION_SEARCH: Final = b"mention-search"
"""The stored texts that must still be searched for mentions, and the position at which the search continues."""

MENTION_RULES: Final = b"mention-rules"
"""Version of the rules by which mentions were found. Without this row, all texts are searched again."""

UNSEEN: Final = b"unseen"
"""Number in the arrival log after which a reindexing added texts. When the store opens, it checks whether these texts
name the user, and whether they are dated before a read mark.
"""

VALUE: Final = b"value"
"""Values of the store's user, under names that its clients choose: name and key, both escaped -> bytes."""

DRAFT: Final = b"draft"
"""Drafts of the store's user: channel -> text in UTF-8."""

MUTED: Final = b"muted"
"""Channels that the store's user muted: channel -> empty."""

NOTED: Final = b"noted"
"""Keys of changed local rows, by their hashes in the arrival log (`cablestore.index.notes`)."""

TOUCHED: Final = b"touched"
"""Keys of rows that discarded posts changed, by numbers of the arrival log (`cablestore.index.notes`)."""


def number_in(value: bytes | None) -> int:
    """Return the decimal number in a local row, 0 if the row is missing or damaged."""
    return int(value) if value is not None and value.isdigit() and len(value) <= _MAX_DIGITS else 0


def local_key(name: bytes, key: bytes = b"") -> bytes:
    """Return the key of a local row. Without `key`, return the prefix of all keys of this name."""
    return PREFIX + name + b"!" + key
