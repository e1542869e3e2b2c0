"""HTTP features of the content endpoint that aiohttp lacks: duplicate headers, a quiet log, host names.

Codex' Python client sends two Content-Type headers, one from its caller and one from the client. aiohttp's C parser
rejects such a request with status 400, and has no option to accept it. Therefore this module uses aiohttp's Python
parser, and removes the second header first.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from ipaddress import ip_address
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParserPy, RawRequestMessage

from cablestore.errors import NodeError

_LOG: Final = logging.getLogger("cablestore.content")
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[0-9a-z._-]+)(?::([0-9]{1,5}))?")
_LOCALHOST: Final = ("localhost", "127.0.0.1", "::1")
_HTTP_PORT: Final = 80
_NAME: Final = b"content-type"
_MAX_MESSAGES_WAITING: Final = 16
"""Maximum number of requests that a client may send before the first of them is answered."""
_WINDOW_SIZE_BYTES: Final = 524_288
"""Maximum number of received bytes that wait for the disk. Up to twice as many are held in memory."""


class _Parser(HttpRequestParserPy):
    """Request parser that keeps only the first of several Content-Type headers."""

    def parse_message(self, lines: list[bytes]) -> RawRequestMessage:
        """Parse the head of a request from its lines."""
        seen, kept = 0, []
        for line in lines:
            is_type = line.partition(b":")[0].lower() == _NAME
            seen += is_type
            if not is_type or seen == 1:
                kept.append(line)
        return super().parse_message(kept)


def one_content_type(connection: web.RequestHandler) -> web.RequestHandler:
    """Make an unused connection accept requests with several Content-Type headers, and use the first header."""
    connection._parser = _Parser(  # noqa: SLF001 - no other way to choose the parser; a test sends such a request
        connection,
        connection._loop,  # noqa: SLF001 - the same
        _WINDOW_SIZE_BYTES,
        max_line_size=connection.max_line_size,
        max_field_size=connection.max_field_size,
        max_headers=connection.max_headers,
        payload_exception=web.RequestPayloadError,
        auto_decompress=False,
        max_msg_queue_size=_MAX_MESSAGES_WAITING,
    )
    return connection


def _log_client_fault_in_a_line(record: logging.LogRecord) -> bool:
    """Logging filter that replaces the traceback of a client's error by one line.

    Returns False for such a record, and True for all others.
    """
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, ConnectionError | HttpProcessingError):
        return True
    _LOG.info("connection closed: not HTTP, or aborted by the client", extra={"reason": " ".join(str(error).split())})
    return False


def error_log() -> logging.Logger:
    """Return the log for aiohttp's errors, with tracebacks only for errors of the server."""
    log = _LOG.getChild("http")
    log.addFilter(_log_client_fault_in_a_line)
    return log


def check_name(text: str) -> str:
    """Return a host name for clients, NAME or NAME:PORT, in lower case. Raises NodeError for other strings."""
    if _HOST.fullmatch(text.lower()) is None:
        raise NodeError(f"invalid name {text[:80]!r}: expected NAME or NAME:PORT, such as archives.example.org")
    return text.lower()


def is_own_host(request: web.Request, names: Collection[str]) -> bool:
    """Return True if the Host header of a request is the address and port of its connection, or is in `names`.

    On a connection within this machine, localhost is also accepted. A name without a port is valid for all ports.
    This detects DNS rebinding: if a web page's name is changed to our address, the page still sends its own name.
    """
    hosts = request.headers.getall("Host", [])
    found = _HOST.fullmatch(hosts[0].lower()) if len(hosts) == 1 else None
    if found is None or request.transport is None:
        return False
    if found[0] in names or found[1] in names:
        return True
    address, port = request.transport.get_extra_info("sockname")[:2]
    own = _LOCALHOST if ip_address(address).is_loopback else (address,)
    return int(found[2] or _HTTP_PORT) == port and found[1].strip("[]") in {address, *own}
