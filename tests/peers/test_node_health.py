"""Health of a node: which failures a restart may repair, and what the status pages show while it starts and stops."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from by_hand import listening, on_loop, running
from peering import HOST, logged, memory, until
from serving import fetch

from cablestore.peers import Address, Node
from cablestore.peers.health import Health, PhaseStatus, State
from cablestore.peers.metrics_http import exporter, shown
from cablestore.peers.node_health import STUCK_S
from cablestore.peers.status_pages import StatusPages
from cablestore.peers.write_watch import WriteWatch


@on_loop
async def test_a_restart_may_repair_a_stuck_loop_or_a_store_that_cannot_be_read() -> None:
    with memory("a") as store:
        async with running(store) as (node, _):
            context = node.parts.context
            await until(lambda: not node.load().reads_waiting)
            healthy = node.health(STUCK_S)
            assert (healthy.state, healthy.reason) == (State.OK, "")
            assert healthy.details == {
                "peers": 0,
                "live_requests": 0,
                "queued_bytes": 0,
                "reads_waiting": 0,
                "ingest_queued_bytes": 0,
                "wanted_hashes": 0,
                "early_posts": 0,
                "loop_lag_s": STUCK_S,
            }
            assert node.health(0.12345).details["loop_lag_s"] == 0.123
            stuck = node.health(STUCK_S + 0.6)
            assert (stuck.state, stuck.reason) == (State.FAILING, "the event loop has been stuck for 11 s")
            context.restrictions.failure = "damaged"
            lasting = node.health()
            assert (lasting.state, lasting.reason) == (State.DEGRADED, "cannot read the moderation state: damaged")
            context.writes.failure = "the disk is full"
            reason = "cannot store posts, retrying every second: the disk is full"
            assert (node.health().state, node.health().reason) == (State.DEGRADED, reason)
            store.close()
            assert (node.health().state, node.health().reason) == (State.DEGRADED, reason)  # it is opened again
            context.writes.failure = ""
            unreadable = node.health()
            assert unreadable.state is State.FAILING
            assert unreadable.reason.startswith("cannot read the store: ")
            context.restrictions.failure = ""
        assert node.health().state is State.STOPPING


@pytest.mark.parametrize("state", State)
def test_only_failing_is_not_alive_and_only_ok_is_ready(state: State) -> None:
    health = Health(state, details={"peers": 1})
    assert health.is_alive is (state is not State.FAILING)
    assert health.is_ready is (state is State.OK)
    assert health.fields == {"status": state.value, "peers": 1}
    assert Health(state, "why").fields == {"status": state.value, "reason": "why"}
    ready = PhaseStatus(lambda: health).registry.get_sample_value("cablestore_ready")
    assert ready == (1.0 if state is State.OK else 0.0)
    build = PhaseStatus(lambda: health).registry
    [versions] = [sample for family in build.collect() for sample in family.samples if "build_info" in sample.name]
    assert versions.value == 1


async def status_of(address: Address, page: str = "readyz", method: str = "GET") -> tuple[int, str]:
    return await asyncio.to_thread(fetch, f"http://{address}/{page}", method)


@on_loop
async def test_the_pages_show_a_node_only_while_it_runs() -> None:
    now_s = [0.0]
    async with listening() as (node, _):
        with StatusPages(Address(HOST, 0)) as pages:
            code, text = await status_of(pages.address)
            assert (code, json.loads(text)) == (503, {"status": "starting"})
            with shown(pages, node, lambda: now_s[0]):
                await asyncio.sleep(0)
                now_s[0] = 8.0
                code, text = await status_of(pages.address)
                assert (code, json.loads(text)["status"], json.loads(text)["loop_lag_s"]) == (200, "ok", 7.0)
                _, text = await status_of(pages.address, "metrics")
                assert "cablestore_loop_lag_seconds 7.0" in text
                assert "cablestore_peers 0.0" in text
                assert await status_of(pages.address, "readyz", "HEAD") == (200, "")
                assert (await status_of(pages.address, "metrics", "POST"))[0] == 405
                assert (await status_of(pages.address, "other"))[0] == 404
            code, text = await status_of(pages.address)
            assert (code, json.loads(text)) == (503, {"status": "stopping"})
            assert (await status_of(pages.address, "healthz"))[0] == 200
        with exporter(node, Address(HOST, 0)) as address:
            assert (await status_of(address))[0] == 200


@on_loop
async def test_failing_writes_and_their_recovery_are_noticed_once() -> None:
    recovered: list[bool] = []
    with logged() as log, memory("a") as store:
        engine = store.parts.engine

        def fail() -> None:
            engine.write_failure = "no space"

        unwatch = store.watch(fail, local=True)
        watch = WriteWatch(
            store, asyncio.get_running_loop(), logging.getLogger("cablestore.node"), lambda: recovered.append(True)
        )
        for number in range(2):
            store.local.set_draft("default", f"{number}")
            await until(lambda: log.records)
        assert [record.getMessage() for record in log.records] == ["writes to the store fail"]
        assert recovered == []
        unwatch()
        engine.write_failure = ""
        for number in range(2):
            store.local.set_draft("default", f"{number} again")
            await until(lambda: recovered)
        assert recovered == [True]
        assert [record.getMessage() for record in log.records[1:]] == ["writes to the store succeed again"]
        watch.close()
        store.watch(fail)
        store.post("default", "x")
        await asyncio.sleep(0.01)
        assert (len(log.records), recovered) == (2, [True])


@on_loop
async def test_a_node_that_does_not_run_has_no_parts() -> None:
    with memory("a") as store:
        node = Node(store)
        assert (node.peers(), node.connections, node.control) == ([], set(), None)
        assert list(node.dials()) == []
