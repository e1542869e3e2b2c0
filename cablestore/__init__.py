"""An indexed message store for peer-to-peer chat: signed Cable posts in, views out, nothing lost.

`CableStore` opens a store; its methods write, read, follow and mend. `cablestore.node` is a store among peers,
`cablestore.answers` what it answers them, `cablestore.limits` names every limit, `cablestore.views` has the views.

Names are loaded when they are first used, so that a Spark worker needs no plyvel and importing the views is no cycle.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

__version__: Final = "0.7.0"

if TYPE_CHECKING:
    from cablestore.arrival import Kind
    from cablestore.body import (
        Block,
        Body,
        Delete,
        Info,
        Join,
        Leave,
        Moderation,
        Role,
        Text,
        Topic,
        Unblock,
    )
    from cablestore.check import CheckReport, Problem
    from cablestore.crypto import Identity
    from cablestore.dialect import DRAFT8, LEGACY, Dialect
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
    from cablestore.export import Filters, Manifest, Segment, read_manifest
    from cablestore.export_import import ImportSummary
    from cablestore.export_verify import ExportProblem, ExportReport, verify_export
    from cablestore.kv import Tuning
    from cablestore.post import Post, decode_post, encode_post
    from cablestore.reads import Channel, Event, Message, Page, Snapshot, Stats, User
    from cablestore.rebuild import RebuildReport
    from cablestore.store import CableStore
    from cablestore.tombstone import Skeleton, Tombstone
    from cablestore.verdict import Outcome, Verdict

_MODULES: Final = {
    "arrival": ("Kind",),
    "body": ("Block", "Body", "Delete", "Info", "Join", "Leave", "Moderation", "Role", "Text", "Topic", "Unblock"),
    "check": ("CheckReport", "Problem"),
    "crypto": ("Identity",),
    "dialect": ("DRAFT8", "LEGACY", "Dialect"),
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
    "export": ("Filters", "Manifest", "Segment", "read_manifest"),
    "export_import": ("ImportSummary",),
    "export_verify": ("ExportProblem", "ExportReport", "verify_export"),
    "kv": ("Tuning",),
    "post": ("Post", "decode_post", "encode_post"),
    "reads": ("Channel", "Event", "Message", "Page", "Snapshot", "Stats", "User"),
    "rebuild": ("RebuildReport",),
    "store": ("CableStore",),
    "tombstone": ("Skeleton", "Tombstone"),
    "verdict": ("Outcome", "Verdict"),
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
