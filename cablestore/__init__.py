"""Indexed message store for peer-to-peer chat: signed Cable posts in, views out, nothing lost.

`CableStore` opens a store; its methods write, read, follow and repair it. The packages below have the rest:
`cablestore.store` a store that is not open, `cablestore.export` exports, `cablestore.peers` a store among peers,
`cablestore.errors` every error, `cablestore.limits` every limit, `cablestore.views` the views.

A name is loaded when it is first used, so a Spark worker needs no plyvel, and importing a view makes no circle.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from cablestore import lazy

__version__: Final = "0.13.2"

if TYPE_CHECKING:  # the same names for type checkers; a test compares the two
    from cablestore.errors import CableStoreError as CableStoreError
    from cablestore.index.arrival_log import EventKind as EventKind
    from cablestore.index.tombstone import Skeleton as Skeleton
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
    from cablestore.store.display import Message as Message
    from cablestore.store.display import User as User
    from cablestore.store.queries import Channel as Channel
    from cablestore.store.queries import Event as Event
    from cablestore.store.queries import Page as Page
    from cablestore.store.queries import Snapshot as Snapshot
    from cablestore.store.queries import Stats as Stats
    from cablestore.store.store import CableStore as CableStore

_MODULES: Final = {
    "errors": "CableStoreError",
    "index.arrival_log": "EventKind",
    "index.tombstone": "Skeleton Tombstone",
    "index.verdict": "Outcome Verdict",
    "index.view": "Catalog Fold Tally View",
    "protocol.body": "Block Body Delete Info Join Leave Moderation Role Text Topic Unblock",
    "protocol.crypto": "Identity",
    "protocol.dialect": "DRAFT8 LEGACY Dialect",
    "protocol.post": "Post decode_post encode_post",
    "store.display": "Message User",
    "store.queries": "Channel Event Page Snapshot Stats",
    "store.store": "CableStore",
}
_load: Final = lazy.loader(__name__, _MODULES)

__all__ = [name for names in _MODULES.values() for name in names.split()]
__all__ += ["__version__"]

_MOVED: Final = {
    "errors": (
        "ArchiveError CorruptExportError CorruptStoreError DecodeError ExportError FormatError HandshakeError "
        "IdentityError InvalidPostError LogFormatError MissingDatabaseError NodeError NotAStoreError OpenError "
        "OutdatedViewError StorageError StoreClosedError StoreLockedError UnknownPostTypeError"
    ),
    "export": "ExportProblem ExportReport Filters ImportSummary Manifest Segment read_manifest verify_export",
    "store": "CheckReport Problem RebuildReport Tuning",
}
"""Names that were here up to 0.7."""
_MOVED_TO: Final = {name: f"{__name__}.{module}" for module, names in _MOVED.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "Kind":
        return _moved(name, __name__, "EventKind")
    if name in _MOVED_TO:
        return _moved(name, _MOVED_TO[name], name)
    return _load(name)


def _moved(old: str, module: str, name: str) -> Any:
    """Return what an old name means now, with a warning."""
    warnings.warn(
        f"{__name__}.{old} is {module}.{name} now; the old name goes in 1.0", DeprecationWarning, stacklevel=3
    )
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
