"""Status pages over HTTP, in a separate thread: for Prometheus, supervisors and operators.

    /metrics   the metrics of the process
    /healthz   503 if a restart of the process may help, otherwise 200; JSON with details
    /readyz    200 if everything works, otherwise 503; the same JSON

The pages exist before the store is open. `StatusPages.show` changes their content. Requests are not authenticated: the
address must be reachable only for permitted clients.
"""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app

from cablestore import limits
from cablestore.closable import Closable
from cablestore.errors import CableStoreError
from cablestore.forks import released_in_child
from cablestore.peers.address import Address, listen_error
from cablestore.peers.health import Health, PhaseStatus, State, Status

_LOG: Final = logging.getLogger("cablestore.node")
_POLL_EVERY_S: Final = 0.2
"""Interval at which the thread checks whether it must end."""
_PAGES: Final = ("/metrics", "/healthz", "/readyz")


class StatusPages(Closable):
    """Server of the status pages. Thread-safe."""

    def __init__(self, address: Address, *, client_timeout_s: float = limits.METRICS_TIMEOUT_S) -> None:
        """Serve the pages of a starting process. Raises NodeError if it cannot listen on the address."""
        self._app = _App()
        self.show_phase(State.STARTING)
        try:
            server = (_Server6 if ":" in address.host else _Server)(address, client_timeout_s)
        except (OSError, ValueError, TypeError) as error:  # not a valid host name
            raise listen_error(address, error) from None
        server.set_app(self._app)
        self._server = server
        self._thread = threading.Thread(
            target=server.serve_forever, args=(_POLL_EVERY_S,), name="cablestore-exporter", daemon=True
        )
        self._thread.start()
        self._released = ExitStack()
        self._released.enter_context(released_in_child(server.socket.fileno()))

    @property
    def address(self) -> Address:
        """The address, with the assigned port for port 0."""
        return Address(*self._server.socket.getsockname()[:2])

    def show(self, status: Status) -> None:
        """Replace the status that the pages show."""
        self._app.show(status)

    def show_phase(self, state: State, reason: str = "") -> None:
        """Show a state of a process whose node does not run."""
        self.show(PhaseStatus(lambda: Health(state, reason)))

    def close(self) -> None:
        """End the server."""
        self._released.close()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _App:
    """The WSGI application that answers requests."""

    def show(self, status: Status) -> None:
        """Replace the status that the pages show."""
        self._shown = status, make_wsgi_app(status.registry)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        headers = [("Content-Type", "text/plain; charset=utf-8")]
        shown, metrics = self._shown
        body: Iterable[bytes]
        if path not in _PAGES:
            status, body = "404 Not Found", [f"not found: use {', '.join(_PAGES)}\n".encode()]
        elif method not in ("GET", "HEAD"):
            status, body = "405 Method Not Allowed", [b"method not allowed: use GET or HEAD\n"]
            headers.append(("Allow", "GET, HEAD"))
        elif path == "/metrics":
            found: list[Any] = []
            try:
                body = metrics({**environ, "REQUEST_METHOD": "GET"}, lambda *given: found.extend(given))
                status, headers = found
            except CableStoreError as error:
                status, body = "503 Service Unavailable", [f"cannot read the store: {error}\n".encode()]
        else:
            health = shown.health()
            is_good = health.is_alive if path == "/healthz" else health.is_ready
            status, body = "200 OK" if is_good else "503 Service Unavailable", [_json(health)]
            headers = [("Content-Type", "application/json")]
        whole = b"".join(body)
        start_response(status, [*headers, ("Content-Length", str(len(whole)))])
        return [b"" if method == "HEAD" else whole]


def _json(health: Health) -> bytes:
    return json.dumps(health.fields).encode() + b"\n"


class _Server(ThreadingMixIn, WSGIServer):
    """Server with a thread for each client, so that a silent client does not block others.

    The number and the time of clients are limited: slow clients would use up descriptors.
    """

    daemon_threads = True
    request_queue_size = limits.MAX_METRICS_CLIENTS

    def __init__(self, address: Address, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._clients: dict[socket.socket, float] = {}
        """The deadline of each connected client. Changed in the threads of the server and the clients."""
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a client. If the system has no descriptor left, wait briefly before the next attempt."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_POLL_EVERY_S)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - signature of the base class
        """Register a client, which gets a thread. Return False if there are too many clients."""
        is_room = len(self._clients) < limits.MAX_METRICS_CLIENTS
        if is_room:
            self._clients[request] = time.monotonic() + self._timeout_s
        return is_room

    def service_actions(self) -> None:
        """Disconnect clients that exceed their time limit. The server calls this between clients."""
        now_s = time.monotonic()
        for client, until_s in list(self._clients.items()):
            if now_s > until_s:
                with suppress(OSError):  # the client is gone
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
