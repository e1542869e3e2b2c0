"""Indexed message store for peer-to-peer chat. It stores signed Cable posts and keeps views of them.

`CableStore` opens a store; its methods write, read, follow and repair it. Other packages: `cablestore.store` for a
store that is not open, `cablestore.export` for exports, `cablestore.peers` for nodes, `cablestore.errors` for all
errors, `cablestore.limits` for all limits, and `cablestore.views` for the views.

Names are loaded lazily: a Spark worker does not need plyvel, and a view can be imported without a circular import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cablestore import lazy

__version__: Final = "1.0.0rc3"

if TYPE_CHECKING:  # the names of `_MODULES` for type checkers; a test compares both
    from cablestore.errors import CableStoreError as CableStoreError
    from cablestore.index.arrival_log import EventKind as EventKind
    from cablestore.index.tombstone import Tombstone as Tombstone
    from cablestore.index.verdict import Outcome as Outcome
    from cablestore.index.verdict import Verdict as Verdict
    from cablestore.index.view import Catalog as Catalog
    from cablestore.index.view import Fold as Fold
    from cablestore.index.view import Tally as Tally
    from cablestore.index.view import View as View
    from cablestore.protocol.body import Block as Block
    from cablestore.protocol.body import Body as Body
    from cablestore.protocol.body import Delete as Delete
    from cablestore.protocol.body import Info as Info
    from cablestore.protocol.body import Join as Join
    from cablestore.protocol.body import Leave as Leave
    from cablestore.protocol.body import Moderation as Moderation
    from cablestore.protocol.body import Role as Role
    from cablestore.protocol.body import Text as Text
    from cablestore.protocol.body import Topic as Topic
    from cablestore.protocol.body import Unblock as Unblock
    from cablestore.protocol.crypto import Identity as Identity
    from cablestore.protocol.dialect import DRAFT8 as DRAFT8
    from cablestore.protocol.dialect import LEGACY as LEGACY
    from cablestore.protocol.dialect import Dialect as Dialect
    from cablestore.protocol.post import Post as Post
    from cablestore.protocol.post import decode_post as decode_post
    from cablestore.protocol.post import encode_post as encode_post
    from cablestore.remote.store import connect as connect
    from cablestore.serving.server import offer as offer
    from cablestore.store.display import Message as Message
    from cablestore.store.display import User as User
    from cablestore.store.options import StoreOptions as StoreOptions
    from cablestore.store.queries import Snapshot as Snapshot
    from cablestore.store.results import Channel as Channel
    from cablestore.store.results import Event as Event
    from cablestore.store.results import Page as Page
    from cablestore.store.results import ReadState as ReadState
    from cablestore.store.results import Stats as Stats
    from cablestore.store.store import CableStore as CableStore

_MODULES: Final = {
    "errors": "CableStoreError",
    "index.arrival_log": "EventKind",
    "index.tombstone": "Tombstone",
    "index.verdict": "Outcome Verdict",
    "index.view": "Catalog Fold Tally View",
    "protocol.body": "Block Body Delete Info Join Leave Moderation Role Text Topic Unblock",
    "protocol.crypto": "Identity",
    "protocol.dialect": "DRAFT8 LEGACY Dialect",
    "protocol.post": "Post decode_post encode_post",
    "remote.store": "connect",
    "serving.server": "offer",
    "store.display": "Message User",
    "store.options": "StoreOptions",
    "store.queries": "Snapshot",
    "store.results": "Channel Event Page ReadState Stats",
    "store.store": "CableStore",
}
__all__ = [name for names in _MODULES.values() for name in names.split()]
__all__ += ["__version__"]

__getattr__ = lazy.loader(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
