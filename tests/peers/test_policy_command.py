"""The policy command: real programs that check posts, end early, hang, and return invalid answers."""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import replace
from tempfile import TemporaryDirectory

import pytest
from by_hand import on_loop, on_standing_loop
from clock import SetClock, pass_time
from history import NOW_MS
from peering import QUICK, memory, network, until
from people import ANN, BOB

from cablestore import CableStore, Post, limits
from cablestore.peers import Node, NodeSettings
from cablestore.peers.policy_command import PolicyCommand

TALK = tuple(who.text("default", f"text {n} of {name}") for n in range(4) for name, who in (("ann", ANN), ("bob", BOB)))

JUDGE = f"""
import json, sys
for line in sys.stdin:
    post = json.loads(line)
    assert set(post) == {{"id", "author", "type", "channel", "timestamp_ms", "size_bytes", "text", "address", "peer"}}
    action = "accept"
    if post["author"] == "{BOB.key.hex()}":
        action = "reject" if post["text"].startswith("text 0") else "drop"
    print(json.dumps({{"id": post["id"], "action": action, "msg": "no bob"}}), flush=True)
"""
REVERSING = """
import json, sys
kept = []
for line in sys.stdin:
    kept.append(json.loads(line)["id"])
    if len(kept) == 8:
        for name in reversed(kept):
            print(json.dumps({"id": name, "action": "accept"}), flush=True)
        kept.clear()
"""
DYING = "import sys; sys.stdin.readline(); sys.exit(3)"
DEAF = "import time; time.sleep(1000)"
NONSENSE = "import sys; sys.stdin.readline(); print('yes', flush=True); sys.stdin.read()"
ABSENT = ("/nonexistent/program",)


def python(program: str) -> tuple[str, ...]:
    return (sys.executable, "-c", program)


def judged(program: tuple[str, ...], failure: str = "postpone", timeout_s: float = 60.0) -> NodeSettings:
    return replace(QUICK, policy_command=program, policy_failure=failure, policy_timeout_s=timeout_s)  # type: ignore[arg-type] # a literal of a parameter


def held(store: CableStore) -> list[Post]:
    return [post for post in TALK if store.get(post.hash) is not None]


def rejected(node: Node, reason: str) -> float:
    value = node.parts.context.metrics.registry.get_sample_value
    return value("cablestore_rejected_posts_total", {"reason": reason}) or 0.0


@on_loop
async def test_a_command_accepts_rejects_and_drops_posts() -> None:
    async with network(memory("talks", posts=TALK)) as net:
        node = await net.add(memory("rules"), judged(python(JUDGE)))
        await net.link(node, net.nodes[0])
        await until(lambda: len(held(node.store)) == 4 and rejected(node, "command_drop") >= 3)
        assert {post.author for post in held(node.store)} == {ANN.key}
        assert rejected(node, "command") >= 1
        reasons = [vars(each)["reason"] for each in net.log.records if "rejected a post" in each.getMessage()]
        assert set(reasons) == {"no bob"}
        await until(lambda: node.load().judged_posts == 0)
        await net.stop(node)
        node.store.close()


@on_loop
async def test_many_posts_are_in_flight_and_answers_may_have_any_order() -> None:
    async with network(memory("talks", posts=TALK)) as net:
        node = await net.add(memory("rules"), judged(python(REVERSING)))
        await net.link(node, net.nodes[0])
        await net.are_alike()
        await net.stop(node)
        node.store.close()


@pytest.mark.parametrize("program", [python(DYING), python(NONSENSE), ABSENT], ids=["dies", "nonsense", "absent"])
@pytest.mark.parametrize("failure", ["accept", "reject", "postpone"])
@on_loop
async def test_posts_are_handled_as_chosen_if_the_command_fails(program: tuple[str, ...], failure: str) -> None:
    clock = SetClock(NOW_MS)
    async with network(memory("talks", posts=TALK), may_complain=True) as net:
        node = await net.add(memory("rules", clock=clock), judged(program, failure))
        await net.link(node, net.nodes[0])
        if failure == "accept":
            await net.are_alike()
        else:
            await until(lambda: rejected(node, "command_failure") >= len(TALK))
            assert held(node.store) == []
            assert node.load().postponed_posts == (len(TALK) if failure == "postpone" else 0)
        await until(lambda: node.load().policy_command_failure)
        await net.stop(node)
        node.store.close()


@on_loop
async def test_a_command_that_hangs_is_started_again_and_postponed_posts_arrive() -> None:
    """The second start works: it finds the file of the first one."""
    program = (
        "import os, sys, time, json\n"
        "flag = sys.argv[1]\n"
        "if not os.path.exists(flag):\n    open(flag, 'w').close(); time.sleep(1000)\n"
        "for line in sys.stdin:\n    print(json.dumps({'id': json.loads(line)['id'], 'action': 'accept'}), flush=True)\n"
    )
    clock = SetClock(NOW_MS)
    async with network(memory("talks", posts=TALK), may_complain=True) as net:
        with TemporaryDirectory() as folder:
            flag = f"{folder}/started"
            node = await net.add(memory("rules", clock=clock), judged((*python(program), flag), timeout_s=0.2))
            await net.link(node, net.nodes[0])
            await until(lambda: node.load().postponed_posts == len(TALK))
            await until(lambda: node.load().policy_command_failure == "no answer within 0.2 s")

            def have_arrived() -> bool:
                clock.now_ms += int(limits.POSTPONED_S * 1000)
                return len(held(node.store)) == len(TALK)

            await until(have_arrived)
            await until(lambda: not node.load().policy_command_failure)
            failures = [vars(each)["reason"] for each in net.log.records if "command failed" in each.getMessage()]
            assert failures[0] == "no answer within 0.2 s"
            await net.stop(node)
            node.store.close()


@on_loop
async def test_a_limited_number_of_posts_is_checked_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_COMMAND_POSTS: further posts wait."""
    monkeypatch.setattr(limits, "MAX_COMMAND_POSTS", 3)
    async with network(memory("talks", posts=TALK)) as net:
        node = await net.add(memory("rules"), judged(python(DEAF)))
        await net.link(node, net.nodes[0])
        await until(lambda: node.load().judged_posts == 3)
        await asyncio.sleep(0.1)
        assert node.load().judged_posts == 3
        await net.stop(node)
        node.store.close()


@on_loop
async def test_a_node_stops_while_its_command_does_not_answer() -> None:
    async with network(memory("talks", posts=TALK)) as net:
        node = await net.add(memory("rules"), judged(python(DEAF)))
        await net.link(node, net.nodes[0])
        await until(lambda: node.load().judged_posts == len(TALK))
        await net.stop(node)
        assert held(node.store) == []
        node.store.close()


@on_standing_loop
async def test_the_pauses_between_the_starts_of_a_failing_command_grow_to_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        task = asyncio.create_task(PolicyCommand(ABSENT, logging.getLogger("command")).run())
        await pass_time(600.0, 0.5)
        task.cancel()
    pauses_s = [vars(record)["again_in_s"] for record in caplog.records]
    assert pauses_s[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert 10 < len(pauses_s) < 20
