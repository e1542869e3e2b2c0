"""An HTTP proxy before a server with chosen faults: it rejects requests, cuts connections, or waits."""

from __future__ import annotations

import http.client
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Literal

Fault = Literal["none", "refuse", "cut", "cut answer"]
"""Result of a request: forwarded, answered with 503, cut before forwarding, or cut within its answer."""

_HOP_BY_HOP: Final = {"connection", "transfer-encoding", "keep-alive", "content-length", "expect"}


class FaultyProxy:
    """A running proxy. `fault` is called for each request with its method, its path and the number of earlier ones."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.fault: Callable[[str, str, int], Fault] = lambda method, path, number: "none"
        self.requests: list[tuple[str, str]] = []
        self.connections: set[socket.socket] = set()
        self._lock = threading.Lock()

    def next_fault(self, method: str, path: str) -> Fault:
        with self._lock:
            self.requests.append((method, path))
            return self.fault(method, path, len(self.requests) - 1)


def times(fault: Fault, left: dict[str, int]) -> Callable[[str, str, int], Fault]:
    """Return a function for `FaultyProxy.fault`: the next requests fail whose method and path match a pattern.

    `left` is the number of failures of each pattern.
    """

    def next_one(method: str, path: str, _: int) -> Fault:
        for pattern, count in left.items():
            if count and re.search(pattern, f"{method} {path}"):
                left[pattern] -= 1
                return fault
        return "none"

    return next_one


class _Handler(BaseHTTPRequestHandler):
    """Forwards a request, or fails. Subclasses have the proxy and the port of the server."""

    protocol_version = "HTTP/1.1"
    proxy: FaultyProxy
    target_port: int

    def setup(self) -> None:
        super().setup()
        self.proxy.connections.add(self.connection)

    def finish(self) -> None:
        self.proxy.connections.discard(self.connection)
        super().finish()

    def handle_one_request(self) -> None:
        with suppress(ConnectionError):
            super().handle_one_request()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in http.server
        pass

    def pass_on(self) -> None:
        body = self.body()
        fault = self.proxy.next_fault(self.command, self.path)
        if fault == "cut":
            self.close_connection = True
        elif fault == "refuse":
            self.answer(503, [], b"<Error><Code>SlowDown</Code><Message>later</Message></Error>")
        else:
            self.answer(*self.answer_of_server(body), is_cut=fault == "cut answer")

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = pass_on  # noqa: N815 - the names that http.server requires

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(chunks)

    def answer_of_server(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.target_port)) as server:
            server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    server.putheader(name, value)
            server.putheader("Content-Length", str(len(body)))
            server.endheaders(body)
            found = server.getresponse()
            return found.status, found.getheaders(), found.read()

    def answer(self, status: int, headers: list[tuple[str, str]], data: bytes, *, is_cut: bool = False) -> None:
        self.send_response_only(status)
        length = str(len(data))
        for name, value in headers:
            if self.command == "HEAD" and name.lower() == "content-length":
                length = value
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if is_cut else data)
        self.close_connection |= is_cut


@contextmanager
def faulty_proxy(port: int) -> Iterator[FaultyProxy]:
    """Run a proxy of a server on a port of this machine."""

    class Handler(_Handler):
        target_port = port

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False  # `server_close` waits for its threads
    Handler.proxy = FaultyProxy(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield Handler.proxy
    finally:
        server.shutdown()
        for connection in list(Handler.proxy.connections):  # idle ones of clients that are not collected yet
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        server.server_close()
        thread.join()
