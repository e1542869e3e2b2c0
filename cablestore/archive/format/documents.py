"""Small protobuf documents, read and written by the protobuf library. `protocol.protobuf` reads large ones. Pure."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError as ProtobufDecodeError
from google.protobuf.message import Message

from cablestore.errors import ArchiveError

M = TypeVar("M", bound=Message)


def parsed(document: type[M], data: bytes) -> M:
    """Return the document that `data` encodes, or raise ArchiveError."""
    try:
        return document.FromString(data)
    except ProtobufDecodeError as error:
        raise ArchiveError(f"{len(data)} bytes are no {document.DESCRIPTOR.name}: {error}. Fetch them again") from None


def written(document: Message) -> bytes:
    """Return the bytes of a document, the same for the same content."""
    return document.SerializeToString(deterministic=True)
