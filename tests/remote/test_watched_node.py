"""Node of a store of another process, and calls that cannot be sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from remote_stores import remote_of

from cablestore import LEGACY, CableStore
from cablestore.errors import ArgumentError, CableStoreError, NotFoundError
from cablestore.remote.link import error_of
from cablestore.remote.messages import Error
from cablestore.remote.methods import method_of
from cablestore.remote.node import NodeState, WatchedNode


@pytest.mark.parametrize(
    ("act", "name"),
    [
        (lambda node, value: node.kick(value), "peer"),
        (lambda node, value: node.ban(value), "peer"),
        (lambda node, value: node.unban(value), "peer"),
        (lambda node, value: node.change_policy(value, "author", "x"), "action"),
        (lambda node, value: node.change_policy("allow", value, "x"), "kind"),
        (lambda node, value: node.change_policy("allow", "author", value), "name"),
    ],
)
def test_a_store_without_a_node_checks_arguments_before_it_rejects_an_act(
    act: Callable[[WatchedNode, Any], object], name: str
) -> None:
    with CableStore.in_memory() as store, remote_of(store) as remote:
        for node in (WatchedNode(), remote.node):
            with pytest.raises(ArgumentError, match=f"invalid argument {name}: expected a str, got 5"):
                act(node, 5)
            with pytest.raises(NotFoundError):
                act(node, "text")
            with pytest.raises(NotFoundError):
                node.policy()
            assert (node.dials(), node.bans(), node.status()) == ([], [], None)


def test_a_state_is_changed_only_if_there_is_a_node() -> None:
    changed: list[str] = []
    node, without = WatchedNode(NodeState(None)), WatchedNode()
    node.watch(lambda: changed.append("node"))
    without.watch(lambda: changed.append("none"))
    for each in (node, without):
        each.change(listening=("x:1",))
    assert changed == ["node"]
    assert node.state is not None
    assert (node.state.listening, without.state) == (("x:1",), None)


def test_calls_of_another_version_are_rejected_with_the_reason() -> None:
    messages = method_of("messages", LEGACY)
    for raw, reason in (
        (msgspec.msgpack.encode([1]), r"invalid call of messages: expected \d+ arguments"),
        (msgspec.msgpack.encode(5), r"invalid call of messages: expected \d+ arguments"),
        (b"\xc1", "invalid arguments: "),
    ):
        with pytest.raises(ArgumentError, match=reason):
            messages.read(msgspec.Raw(raw))
    with pytest.raises(CableStoreError, match=r"unknown method 'x{40}'\. Run the same version"):
        method_of("x" * 41, LEGACY)
    with pytest.raises(CableStoreError, match="unknown method"):
        method_of("messages.raw", LEGACY)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("NotFoundError", NotFoundError), ("Unknown", CableStoreError), ("annotations", CableStoreError)],
)
def test_errors_of_another_version_become_the_base_class(kind: str, expected: type[CableStoreError]) -> None:
    error = error_of(Error(1, kind, "what happened"))
    assert (type(error), str(error)) == (expected, "what happened")
