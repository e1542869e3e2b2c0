"""A node's metrics and health over HTTP, in a separate thread: for Prometheus and for supervisors.

    /metrics   the values of `Metrics`, the lag of the loop, and the resources of the process
    /healthz   200 while the loop runs and the store can be read and written, else 503; JSON with details

Requests are not authenticated: listen only on addresses that permitted clients can reach.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, make_wsgi_app
from prometheus_client.registry import Collector

from cablestore import limits
from cablestore.errors import CableStoreError, NodeError
from cablestore.forks import released_in_child
from cablestore.peers.address import Address
from cablestore.peers.node import Node
from cablestore.peers.parts import NodeParts

_LOG: Final = logging.getLogger("cablestore.node")
STUCK_S: Final = 10.0
"""A loop that has not run for this long counts as stuck. A lag of some hundredths of a second is normal."""
_BEAT_S: Final = 1.0
_POLL_EVERY_S: Final = 0.2
"""Interval at which the thread checks whether it must end."""


@contextmanager
def exporter(
    node: Node,
    address: Address,
    *,
    client_timeout_s: float = limits.METRICS_TIMEOUT_S,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Address]:
    """Serve a node's metrics and health while the block runs, inside of the node's own `async with`.

    Yields the address, with the assigned port for port 0. Raises NodeError if it cannot listen there.

    >>> async with Node(store) as node:
    ...     with exporter(node, Address("127.0.0.1", 9464)) as address:
    ...         ...
    """
    parts = node.parts
    heartbeat = Heartbeat(parts.context.loop, clock)
    try:
        server = (_Server6 if ":" in address.host else _Server)(address, client_timeout_s)
    except (OSError, ValueError, TypeError) as error:  # not a valid host name
        heartbeat.end()
        raise NodeError(f"cannot listen on {address}: {getattr(error, 'strerror', None) or error}") from None
    server.set_app(_App(parts, heartbeat))
    thread = threading.Thread(
        target=server.serve_forever, args=(_POLL_EVERY_S,), name="cablestore-exporter", daemon=True
    )
    thread.start()
    try:
        with released_in_child(server.socket.fileno()):
            yield Address(*server.socket.getsockname()[:2])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        heartbeat.end()


class Heartbeat:
    """Measures how late a loop runs a task that is due every second. Used from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._clock = clock
        self._is_over = False
        self._late_s = 0.0
        self._due_s = clock()
        loop.call_soon_threadsafe(self._beat)

    @property
    def lag_s(self) -> float:
        """The lateness of the last beat, or of the next one if that is already later."""
        return max(self._late_s, self._clock() - self._due_s, 0.0)

    def end(self) -> None:
        """Stop."""
        self._is_over = True

    def _beat(self) -> None:
        if not self._is_over:
            now_s = self._clock()
            self._late_s = now_s - self._due_s
            self._due_s = now_s + _BEAT_S
            self._loop.call_later(_BEAT_S, self._beat)


class _App:
    """The WSGI application that answers requests."""

    def __init__(self, parts: NodeParts, heartbeat: Heartbeat) -> None:
        self._parts = parts
        self._heartbeat = heartbeat
        registry = CollectorRegistry()  # a separate registry, so that the node's does not change
        registry.register(cast(Collector, parts.context.metrics.registry))  # it has the interface of a collector
        lag = Gauge("cablestore_loop_lag_seconds", "Seconds by which the event loop is late", registry=registry)
        lag.set_function(lambda: heartbeat.lag_s)
        ProcessCollector(registry=registry)
        self._metrics = make_wsgi_app(registry)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        headers = [("Content-Type", "text/plain; charset=utf-8")]
        body: Iterable[bytes]
        if path not in ("/metrics", "/healthz"):
            status, body = "404 Not Found", [b"not found: use /metrics or /healthz\n"]
        elif method not in ("GET", "HEAD"):
            status, body = "405 Method Not Allowed", [b"method not allowed: use GET or HEAD\n"]
            headers.append(("Allow", "GET, HEAD"))
        elif path == "/healthz":
            status, body = self._health()
            headers = [("Content-Type", "application/json")]
        else:
            found: list[Any] = []
            try:
                body = self._metrics({**environ, "REQUEST_METHOD": "GET"}, lambda *given: found.extend(given))
                status, headers = found
            except CableStoreError as error:
                status, body = "503 Service Unavailable", [f"the store cannot be read: {error}\n".encode()]
        whole = b"".join(body)
        start_response(status, [*headers, ("Content-Length", str(len(whole)))])
        return [b"" if method == "HEAD" else whole]

    def _health(self) -> tuple[str, list[bytes]]:
        reason = self._what_is_wrong()
        health: dict[str, Any] = {"status": "failing" if reason else "ok"}
        if reason:
            health["reason"] = reason
        load = self._parts.load()
        health |= {
            "peers": load.peers,
            "live_requests": load.live_requests,
            "queued_bytes": load.queued_size_bytes,
            "reads_waiting": load.reads_waiting,
            "ingest_queued_bytes": load.ingest_queued_size_bytes,
            "wanted_hashes": load.wanted_hashes,
            "early_posts": load.early_posts,
            "loop_lag_s": round(self._heartbeat.lag_s, 3),
        }
        return "503 Service Unavailable" if reason else "200 OK", [json.dumps(health).encode() + b"\n"]

    def _what_is_wrong(self) -> str:
        lag_s = self._heartbeat.lag_s
        if lag_s > STUCK_S:
            return f"the event loop has been stuck for {lag_s:.0f} s"
        failure = self._parts.context.store.write_state.failure or self._parts.context.writes.failure
        if failure:
            return f"posts cannot be stored. Writes are retried every second: {failure}"
        try:
            self._parts.context.store.stats()
        except CableStoreError as error:
            return f"the store cannot be read: {error}"
        if self._parts.context.restrictions.failure:
            return f"the moderation state cannot be read: {self._parts.context.restrictions.failure}"
        if self._parts.serving.feed_failure:
            return f"peers miss updates until they reconnect: {self._parts.serving.feed_failure}"
        return ""


class _Server(ThreadingMixIn, WSGIServer):
    """Server with a thread for each client, so that a silent client does not block others.

    The number and the time of clients are limited: slow clients would use up descriptors.
    """

    daemon_threads = True
    request_queue_size = limits.MAX_METRICS_CLIENTS

    def __init__(self, address: Address, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._clients: dict[socket.socket, float] = {}
        """The deadline of each connected client. Changed in the server's thread and in those of clients."""
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a client. If the system has no descriptor left, wait a little before the next attempt."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_POLL_EVERY_S)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - signature of the base class
        """Return False if there are too many clients, each of which has a thread."""
        is_room = len(self._clients) < limits.MAX_METRICS_CLIENTS
        if is_room:
            self._clients[request] = time.monotonic() + self._timeout_s
        return is_room

    def service_actions(self) -> None:
        """Disconnect clients that exceed their time. The server calls this between clients."""
        now_s = time.monotonic()
        for client, until_s in list(self._clients.items()):
            if now_s > until_s:
                with suppress(OSError):  # it is gone
                    client.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """Close the connection with a client."""
        self._clients.pop(request, None)
        super().shutdown_request(request)

    def server_bind(self) -> None:
        """Bind without looking up the host name of this machine, which may take long."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]  # with a port
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - signature of the base class
        """Log an error of a request instead of printing it."""
        _LOG.warning("a request for metrics failed", extra={"reason": repr(sys.exception())})


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    def handle(self) -> None:
        """Answer the client. Ignore clients that vanish or send nothing."""
        with suppress(TimeoutError, ConnectionError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - name in the base class
        """Suppress the access log: a scrape every few seconds is not an event."""
