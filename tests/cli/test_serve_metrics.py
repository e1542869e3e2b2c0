"""Metrics and health of a node over HTTP: their values, unhealthy states, and their end with the node."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import pytest
from folders import ROOT
from prometheus_client.parser import text_string_to_metric_families
from serving import fetch
from waiting import LIMIT_S, wait_until

from cablestore import CableStore, limits
from cablestore.errors import NodeError
from cablestore.maintenance import BackupState, MaintenanceMetrics
from cablestore.peers import Address, Node
from cablestore.peers.metrics_http import exporter, shown
from cablestore.peers.node_health import STUCK_S
from cablestore.peers.status_pages import StatusPages

T = TypeVar("T")
METRICS = (ROOT / "docs" / "reference" / "metrics.md").read_text()


def in_thread(work: Callable[[], T]) -> Callable[[], T]:
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()

    def result() -> T:
        thread.join()
        return found[0]

    return result


def exported(store: CableStore, work: Callable[[Node, str], Any]) -> Any:
    """Run `work` in a thread beside a node with an exporter."""

    async def main() -> Any:
        async with Node(store) as node:
            with exporter(node, Address("127.0.0.1", 0)) as address:
                registry = node.parts.context.metrics.registry
                registry.register(MaintenanceMetrics(lambda: BackupState("a folder"), lambda: 0))  # as `serve` does
                return await asyncio.to_thread(work, node, f"http://{address}")

    return asyncio.run(main())


def test_the_table_of_the_documents_lists_all_metrics(chat: CableStore) -> None:
    def work(_: Node, url: str) -> None:
        status, text = fetch(f"{url}/metrics")
        assert status == 200
        families = {family.name: family for family in text_string_to_metric_families(text)}
        totals = {f"{name}_total" if of.type == "counter" else name for name, of in families.items()}
        ours = {name for name in totals if name.startswith("cablestore_") and not name.endswith("_created")}
        documented = dict(re.findall(r"^\| `(cablestore_\w+)`(?: by)? ([^|]*)\|", METRICS, flags=re.MULTILINE))
        assert set(documented) == ours
        for name, by in documented.items():
            samples = families[name.removesuffix("_total")].samples
            labels = {key for sample in samples for key in sample.labels} - {"le"}
            assert labels == set(re.findall(r"`(\w+)`", by)), name
        assert "process_resident_memory_bytes" in families

    exported(chat, work)


class LogCall(NamedTuple):
    """Call that logs an event, parsed from the code, with the fields that it names directly."""

    event: str
    level: str
    fields: frozenset[str]


def log_calls(source: str) -> Iterator[LogCall]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(ast.Attribute(log, "debug" | "info" | "warning" | "error" as level), [text, *_], keywords):
                if ast.unparse(log).lower().endswith("log"):
                    event = ast.literal_eval(text)
                    extras = [each.value for each in keywords if each.arg == "extra"]
                    keys = [key for extra in extras if isinstance(extra, ast.Dict) for key in extra.keys]
                    names = (key.value for key in keys if isinstance(key, ast.Constant))
                    yield LogCall(event, level, frozenset(map(str, names)))


def quoted(cell: str) -> list[str]:
    return [text for _, text in re.findall(r"(`+)(.+?)\1(?!`)", cell)]


def test_the_table_of_logs_lists_every_event_of_a_node() -> None:
    documented: dict[str, tuple[str, set[str]]] = {}
    for line in METRICS.partition("## Logs")[2].splitlines():
        if line.startswith("| `"):
            events, level, fields = line.strip("| ").split(" | ")
            documented |= dict.fromkeys(quoted(events), (level, set(quoted(fields))))
    command = ("serve.py", "serve_plan.py", "serve_start.py", "service.py", "stores.py")
    packages = (*(ROOT / "cablestore/peers").glob("*.py"), *(ROOT / "cablestore/maintenance").glob("*.py"))
    sources = [*packages, *(ROOT / "cablestore/cli" / name for name in command)]
    calls = [call for path in sources for call in log_calls(path.read_text())]
    assert {call.event for call in calls} == set(documented)
    for call in calls:
        told_level, told_fields = documented[call.event]
        assert call.level == told_level, call
        assert call.fields <= told_fields, call


def test_the_server_has_only_three_pages_and_two_methods(chat: CableStore) -> None:
    def work(_: Node, url: str) -> None:
        assert fetch(f"{url}/metrics", "HEAD") == (200, "")
        for page in ("healthz", "readyz"):
            assert fetch(f"{url}/{page}", "HEAD") == (200, "")
        assert fetch(f"{url}/metrics?name[]=process_open_fds")[0] == 200
        for page in ("/", "/favicon.ico", "/metrics/", "/healthz/x", "/../metrics", "/%6detrics/.."):
            assert fetch(url + page)[0] == 404, page
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert fetch(f"{url}/metrics", method)[0] == 405
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as silent:  # does not block other clients
            assert fetch(f"{url}/healthz")[0] == 200
            silent.sendall(b"\x00\xff nonsense\r\n\r\n")
            assert b"400" in silent.recv(4096)

    exported(chat, work)


def test_health_reports_waiting_work(chat: CableStore) -> None:
    def work(node: Node, url: str) -> None:
        wait_until(lambda: not json.loads(fetch(f"{url}/healthz")[1])["reads_waiting"])  # it reads at the start
        status, text = fetch(f"{url}/healthz")
        health = json.loads(text)
        assert (status, health["status"], health["peers"]) == (200, "ok", 0)
        assert health["loop_lag_s"] >= 0
        assert node._parts is not None
        context = node._parts.context
        context.metrics.failed_writes, context.writes.failure = 1, "the disk refused"
        for page, expected in (("readyz", 503), ("healthz", 200)):  # a restart does not help
            status, text = fetch(f"{url}/{page}")
            assert (status, json.loads(text)["status"]) == (expected, "degraded")
            assert "the disk refused" in json.loads(text)["reason"]
        assert "cablestore_ready 0.0" in fetch(f"{url}/metrics")[1]

    exported(chat, work)


def test_a_stopped_node_is_not_ready(chat: CableStore) -> None:
    async def main() -> list[int]:
        with StatusPages(Address("127.0.0.1", 0)) as pages:
            url = f"http://{pages.address}/readyz"
            async with Node(chat) as node:
                with shown(pages, node):
                    ready = await asyncio.to_thread(fetch, url)
                stopping = await asyncio.to_thread(fetch, url)
        return [ready[0], stopping[0]]

    assert asyncio.run(main()) == [200, 503]


def test_a_node_with_an_unreadable_store_is_not_healthy() -> None:
    def work(node: Node, url: str) -> None:
        node.store.close()
        for page in ("healthz", "readyz"):
            status, text = fetch(f"{url}/{page}")
            assert (status, json.loads(text)["status"]) == (503, "failing")
            assert "cannot read the store" in json.loads(text)["reason"]
        assert fetch(f"{url}/metrics")[0] == 503

    with CableStore.in_memory() as store:
        exported(store, work)


@pytest.mark.parametrize("host", ["a..b", "x" * 64, "\udcff", "a\0b"])
def test_impossible_hosts_raise_a_node_error(host: str) -> None:
    async def main(store: CableStore) -> None:
        async with Node(store) as node:
            for work in (node.listen, node.connect):
                with pytest.raises(NodeError, match=r"cannot (listen on|connect to)"):
                    await work(Address(host, 1))
            with pytest.raises(NodeError, match="cannot listen on"), exporter(node, Address(host, 1)):
                pass

    with CableStore.in_memory() as store:
        asyncio.run(main(store))


def test_a_node_with_a_blocked_loop_is_not_healthy(chat: CableStore) -> None:
    """Time passes while the loop is blocked."""
    now_s = 0.0

    async def main() -> tuple[int, str]:
        nonlocal now_s
        async with Node(chat) as node:
            with exporter(node, Address("127.0.0.1", 0), clock=lambda: now_s) as address:
                assert (await asyncio.to_thread(fetch, f"http://{address}/healthz"))[0] == 200
                now_s += 2 * STUCK_S
                return in_thread(lambda: fetch(f"http://{address}/healthz"))()  # the loop is blocked during the request

    status, text = asyncio.run(main())
    assert status == 503
    assert "the event loop has been stuck for" in json.loads(text)["reason"]


def test_an_exporter_ends_with_its_with_block(chat: CableStore) -> None:
    async def main() -> None:
        async with Node(chat) as node:
            for _ in range(2):  # the node can have another exporter after it
                with exporter(node, Address("127.0.0.1", 0)) as address:
                    assert (await asyncio.to_thread(fetch, f"http://{address}/healthz"))[0] == 200
                with pytest.raises(urllib.error.URLError):
                    await asyncio.to_thread(fetch, f"http://{address}/healthz")

    asyncio.run(main())
    assert not [thread for thread in threading.enumerate() if thread.name == "cablestore-exporter"]


def is_answered(address: Address) -> bool:
    """Send a request. Return False if the connection is closed without an answer."""
    with socket.create_connection(address, LIMIT_S) as client:
        client.send(b"GET /healthz HTTP/1.0\r\n\r\n")
        with suppress(ConnectionResetError):
            return client.recv(1) == b"H"
    return False


async def with_exporter(chat: CableStore, work: Callable[[Address], None], client_timeout_s: float) -> None:
    """Do work in a thread beside a node with metrics."""
    async with Node(chat) as node:
        with exporter(node, Address("127.0.0.1", 0), client_timeout_s=client_timeout_s) as address:
            await asyncio.to_thread(work, address)


def test_too_many_clients_are_disconnected(chat: CableStore) -> None:
    """limits.MAX_METRICS_CLIENTS."""

    def crowd(address: Address) -> None:
        clients = [socket.create_connection(address, LIMIT_S) for _ in range(limits.MAX_METRICS_CLIENTS)]
        wait_until(lambda: not is_answered(address))
        for client in clients:
            client.close()
        wait_until(lambda: is_answered(address))

    asyncio.run(with_exporter(chat, crowd, LIMIT_S))


def test_slow_clients_are_disconnected(chat: CableStore) -> None:
    """limits.METRICS_TIMEOUT_S, also for a client that sends single bytes."""

    def drip(address: Address) -> None:
        clients = [socket.create_connection(address, LIMIT_S) for _ in range(3)]
        left = set(clients)
        while left:
            for client in list(left):
                client.settimeout(0.01)
                with suppress(TimeoutError):
                    try:
                        client.send(b"G")
                        left -= set() if client.recv(1) else {client}
                    except ConnectionError:
                        left.remove(client)
        for client in clients:
            client.close()
        wait_until(lambda: is_answered(address))

    asyncio.run(with_exporter(chat, drip, 0.5))
