"""Local rows: what follows from no post and concerns this store alone.

    !local!<name>!<key> -> value

Each use has a name of its own, here below, and says what its keys and values are. A row is written in the same write as
what it belongs to (`Plan.set_local`); a rebuild, a reindexing and `generations --back-to` carry it. It is in no view,
no dump by which stores are compared, no export, no answer to a peer and no set that is reconciled.
"""

from __future__ import annotations

from typing import Final

PREFIX: Final = b"!local!"

WITNESSED: Final = b"witnessed"
"""By the hash, in hex digits, of each post that this store held together with its author's deletion: the author, 32 bytes.

What others tell of such a post counts no more, and it is not requested again.
"""


def local_key(name: bytes, key: bytes = b"") -> bytes:
    """Return the key of a local row, or what all keys of a name begin with."""
    return PREFIX + name + b"!" + key
