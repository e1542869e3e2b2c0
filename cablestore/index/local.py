"""Local rows: rows that follow from no post and concern this store alone.

    !local!<name>!<key> -> value

Each use has a name, defined below with the meaning of its keys and values. A row is written in the same write as what
it belongs to (`Plan.set_local`). A rebuild, a reindexing and `generations --back-to` carry it over. It is not in any
view, in a dump by which stores are compared, in an export, in an answer to a peer or in a set that is reconciled.
"""

from __future__ import annotations

from typing import Final

PREFIX: Final = b"!local!"

WITNESSED: Final = b"witnessed"
"""Posts that this store itself held together with their author's deletion: hash in hex digits -> author, 32 bytes.

What other stores say about such a post no longer counts, and the post is not requested again.
"""


def local_key(name: bytes, key: bytes = b"") -> bytes:
    """Return the key of a local row. Without `key`, return the prefix of all keys of this name."""
    return PREFIX + name + b"!" + key
