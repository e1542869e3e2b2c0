"""Responses to requests: their types, and how an answer is split into responses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from cablestore import limits
from cablestore.protocol.exchange import Fault
from cablestore.protocol.message import (
    HashResponse,
    ListRequest,
    ListResponse,
    Message,
    ModerationRequest,
    PostRequest,
    PostResponse,
    Request,
    Response,
)

_ANSWERED_BY: Final[dict[type[Message], type[Response]]] = {PostRequest: PostResponse, ListRequest: ListResponse}


def response_type(request: Request) -> type[Response]:
    """Return the type of the responses to a request."""
    return _ANSWERED_BY.get(type(request), HashResponse)


def conclusion(request: Request) -> Response:
    """Return the empty response that concludes a request (wire.md 6.3.3)."""
    return response_type(request)(request.request_id, ())


def fault_of(request: Request) -> Fault | None:
    """Return the fault of a request with too many hashes or channels, or None."""
    named: Sequence[object] = ()
    if isinstance(request, PostRequest):
        named = request.hashes
    elif isinstance(request, ModerationRequest):
        named = request.channels
    return Fault.TOO_MANY_HASHES if len(named) > limits.MAX_HASHES_PER_REQUEST else None


def hash_responses(request_id: bytes, hashes: Sequence[bytes]) -> Iterator[HashResponse]:
    """Yield the responses for hashes."""
    for at in range(0, len(hashes), limits.MAX_HASHES_PER_RESPONSE):
        yield HashResponse(request_id, tuple(hashes[at : at + limits.MAX_HASHES_PER_RESPONSE]))


def list_response(request_id: bytes, names: Iterable[str]) -> ListResponse:
    """Return the single response for names of channels, with as many of them as fit."""
    room_bytes = limits.MAX_MESSAGE_SIZE_BYTES // 2
    fitting: list[str] = []
    for name in names:
        room_bytes -= len(name.encode()) + 2
        if room_bytes < 0 or len(fitting) == limits.MAX_NAMES_PER_MESSAGE:
            break
        fitting.append(name)
    return ListResponse(request_id, tuple(fitting))
