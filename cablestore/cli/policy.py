"""The command `policy`: show the policy of a running `serve`, and change its lists."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

import click

from cablestore.cli.options import with_store
from cablestore.cli.output import Output, safe
from cablestore.cli.stores import required_node
from cablestore.remote.node import PolicyStatus
from cablestore.store.store import CableStore

_DONE: Final = {"allow": "allowed", "deny": "denied", "remove": "removed"}


@click.command()
@click.argument("action", type=click.Choice(["show", "allow", "deny", "remove"]), default="show")
@click.argument("kind", type=click.Choice(["author", "channel", "peer"]), required=False)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@with_store
def policy(store: CableStore, out: Output, action: str, kind: str | None, names: tuple[str, ...]) -> None:
    """Show or change the policy of `serve` for received posts.

    `deny` rejects later posts of an author or in a channel, or disconnects a peer. After `allow`, only allowed names of
    this kind are accepted. `remove` deletes an entry of either list. The command changes the policy file, and `serve`
    applies it at once.

    NAME is the public key of an author, the name of a channel, or the host, IP address or key of a peer.

    Example: `cablestore policy deny channel spam`
    """
    if (action == "show") is (kind is not None) or (kind is not None and not names):
        needed = "does not accept more arguments" if action == "show" else "needs author, channel or peer, and NAME"
        raise click.UsageError(f"`policy {action}` {needed}")
    node = required_node(store)
    if kind is None:
        _show(node.policy(), out)
        return
    for name in names:
        is_changed = node.change_policy(action, kind, name)
        text = f"{_DONE[action]} {kind} {safe(name)}" if is_changed else f"nothing to change for {kind} {safe(name)}"
        out.say(text, action=action, kind=kind, name=name, changed=is_changed)


def _show(found: PolicyStatus, out: Output) -> None:
    if out.as_json:
        out.say("", **asdict(found))
        return
    rows = [{"rule": rule, "value": safe(value)} for rule, value in _lines(found)]
    out.table(("rule", "value"), rows)


def _lines(found: PolicyStatus) -> list[tuple[str, str]]:
    fields = asdict(found)
    lines = [("file", fields.pop("path") or "none")]
    for name, value in fields.items():
        rule = name.replace("_", " ")
        if isinstance(value, tuple):
            lines += [(rule, each) for each in value]
        elif value is not None:
            lines.append((rule, str(value)))
    return lines


COMMANDS: Final = (policy,)
