"""A connection of aiohttp that takes what Codex' Python client sends: two headers Content-Type, its caller's and its own.

aiohttp answers 400 to that before a handler is asked, in C code that has no switch for it. Its Python parser, which tests
without compiler run on, is the same in everything else; only the copies are taken out of what it gets.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web
from aiohttp.http_parser import HttpRequestParserPy, RawRequestMessage

_NAME: Final = b"content-type"
_MAX_MESSAGES_WAITING: Final = 16
"""Requests that a client may send before the first is answered."""
_WINDOW_SIZE_BYTES: Final = 524_288
"""What an upload may be ahead of the disk; twice that is held."""


class _Parser(HttpRequestParserPy):
    """Reads requests, and of several headers Content-Type the first."""

    def parse_message(self, lines: list[bytes]) -> RawRequestMessage:
        """Read a request's head, given as lines."""
        seen, kept = 0, []
        for line in lines:
            is_type = line.partition(b":")[0].lower() == _NAME
            seen += is_type
            if not is_type or seen == 1:
                kept.append(line)
        return super().parse_message(kept)


def one_content_type(connection: web.RequestHandler) -> web.RequestHandler:
    """Make a connection that is not in use yet take requests with several headers Content-Type: the first counts."""
    connection._parser = _Parser(  # noqa: SLF001 - there is no other way to choose the parser; a test sends such a request
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
