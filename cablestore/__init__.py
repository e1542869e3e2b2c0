"""An indexed message store for peer-to-peer chat: signed Cable posts in, views out, nothing lost.

`CableStore` opens a store; its methods write, read, follow and mend. `cablestore.peers` is a store among peers,
`cablestore.store.answers` what it answers them, `cablestore.limits` names every limit, `cablestore.views` has the views.

Names are loaded when they are first used, so that a Spark worker needs no plyvel and importing the views is no cycle.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

__version__: Final = "0.7.0"

if TYPE_CHECKING:
    from cablestore.errors import (
        ArchiveError,
        CableStoreError,
        CorruptExportError,
        CorruptStoreError,
        DecodeError,
        ExportError,
        FormatError,
        HandshakeError,
        IdentityError,
        InvalidPostError,
        LogFormatError,
        MissingDatabaseError,
        NodeError,
        NotAStoreError,
        OpenError,
        OutdatedViewError,
        StorageError,
        StoreClosedError,
        StoreLockedError,
        UnknownPostTypeError,
    )
    from cablestore.export.importer import ImportSummary
    from cablestore.export.manifest import Filters, Manifest, Segment, read_manifest
    from cablestore.export.verify import ExportProblem, ExportReport, verify_export
    from cablestore.index.arrival_log import EventKind, Kind
    from cablestore.index.check import CheckReport, Problem
    from cablestore.index.leveldb import Tuning
    from cablestore.index.rebuild import RebuildReport
    from cablestore.index.tombstone import Skeleton, Tombstone
    from cablestore.index.verdict import Outcome, Verdict
    from cablestore.protocol.body import Block, Body, Delete, Info, Join, Leave, Moderation, Role, Text, Topic, Unblock
    from cablestore.protocol.crypto import Identity
    from cablestore.protocol.dialect import DRAFT8, LEGACY, Dialect
    from cablestore.protocol.post import Post, decode_post, encode_post
    from cablestore.store.queries import Channel, Event, Message, Page, Snapshot, Stats, User
    from cablestore.store.store import CableStore

_MODULES: Final = {
    "index.arrival_log": ("EventKind", "Kind"),
    "protocol.body": (
        "Block",
        "Body",
        "Delete",
        "Info",
        "Join",
        "Leave",
        "Moderation",
        "Role",
        "Text",
        "Topic",
        "Unblock",
    ),
    "index.check": ("CheckReport", "Problem"),
    "protocol.crypto": ("Identity",),
    "protocol.dialect": ("DRAFT8", "LEGACY", "Dialect"),
    "errors": (
        "ArchiveError",
        "CableStoreError",
        "CorruptExportError",
        "CorruptStoreError",
        "DecodeError",
        "ExportError",
        "FormatError",
        "HandshakeError",
        "IdentityError",
        "InvalidPostError",
        "LogFormatError",
        "MissingDatabaseError",
        "NodeError",
        "NotAStoreError",
        "OpenError",
        "OutdatedViewError",
        "StorageError",
        "StoreClosedError",
        "StoreLockedError",
        "UnknownPostTypeError",
    ),
    "export.manifest": ("Filters", "Manifest", "Segment", "read_manifest"),
    "export.importer": ("ImportSummary",),
    "export.verify": ("ExportProblem", "ExportReport", "verify_export"),
    "index.leveldb": ("Tuning",),
    "protocol.post": ("Post", "decode_post", "encode_post"),
    "store.queries": ("Channel", "Event", "Message", "Page", "Snapshot", "Stats", "User"),
    "index.rebuild": ("RebuildReport",),
    "store.store": ("CableStore",),
    "index.tombstone": ("Skeleton", "Tombstone"),
    "index.verdict": ("Outcome", "Verdict"),
}
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "DRAFT8",
    "LEGACY",
    "ArchiveError",
    "Block",
    "Body",
    "CableStore",
    "CableStoreError",
    "Channel",
    "CheckReport",
    "CorruptExportError",
    "CorruptStoreError",
    "DecodeError",
    "Delete",
    "Dialect",
    "Event",
    "EventKind",
    "ExportError",
    "ExportProblem",
    "ExportReport",
    "Filters",
    "FormatError",
    "HandshakeError",
    "Identity",
    "IdentityError",
    "ImportSummary",
    "Info",
    "InvalidPostError",
    "Join",
    "Kind",
    "Leave",
    "LogFormatError",
    "Manifest",
    "Message",
    "MissingDatabaseError",
    "Moderation",
    "NodeError",
    "NotAStoreError",
    "OpenError",
    "Outcome",
    "OutdatedViewError",
    "Page",
    "Post",
    "Problem",
    "RebuildReport",
    "Role",
    "Segment",
    "Skeleton",
    "Snapshot",
    "Stats",
    "StorageError",
    "StoreClosedError",
    "StoreLockedError",
    "Text",
    "Tombstone",
    "Topic",
    "Tuning",
    "Unblock",
    "UnknownPostTypeError",
    "User",
    "Verdict",
    "__version__",
    "decode_post",
    "encode_post",
    "read_manifest",
    "verify_export",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
