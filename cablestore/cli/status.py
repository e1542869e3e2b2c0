"""The command `status`: the store, its disk, its last backup and check, and the node of `serve`."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any, Final

import click
from rich.table import Table

from cablestore.cli.live import follow
from cablestore.cli.options import with_store
from cablestore.cli.output import Output, safe, size
from cablestore.cli.stores import node_of
from cablestore.index.on_disk import store_on_disk
from cablestore.plurals import counted
from cablestore.remote.node import NodeStatus, WatchedNode
from cablestore.store.store import CableStore

_DAY_S: Final = 86_400


@click.command()
@click.option("--live", is_flag=True, help="Show the status and update it until Ctrl-C.")
@with_store
def status(store: CableStore, out: Output, live: bool) -> None:
    """Show the state of the store and of a running `serve`.

    For `serve`, the table shows health, peers, rates, queues and lag. For the store, it shows the size, the free disk
    space, the last backup, and the result of the last `check`.

    Example: `cablestore status`
    """
    node = node_of(store)
    if not live:
        _show(store, node, out)
        return
    if node is None:
        raise click.UsageError("--live needs a running `serve`. Without it, the status does not change by itself")
    follow(node, out, lambda: _show(store, node, out, is_live=True))


def _show(store: CableStore, node: WatchedNode | None, out: Output, *, is_live: bool = False) -> Table | None:
    found = None if node is None else node.status()
    fields = _of_store(store) | _of_node(found)
    if out.as_json:
        out.say("", **fields)
        return None
    rows = [{"what": what, "value": value} for what, value in _lines(fields, found)]
    if is_live and out.draws:
        return out.drawn(("what", "value"), rows)
    out.table(("what", "value"), rows)
    return None


def _of_store(store: CableStore) -> dict[str, Any]:
    stats = store.stats()
    return asdict(store_on_disk(store.path)) | {
        "posts": sum(stats.posts.values()),
        "channels": stats.channels,
        "write_failure": store.write_state.failure,
    }


def _of_node(found: NodeStatus | None) -> dict[str, Any]:
    if found is None:
        return {"state": "not served"}
    fields = asdict(found)
    peers = found.peers
    return fields | {
        "peers": len(peers),
        "peers_in_step": sum(peer.is_in_step is True for peer in peers),
        "received_bytes_per_s": sum(peer.received_bytes_per_s for peer in peers),
        "sent_bytes_per_s": sum(peer.sent_bytes_per_s for peer in peers),
    }


def _lines(fields: dict[str, Any], found: NodeStatus | None) -> list[tuple[str, str]]:
    reason = found.reason if found is not None else fields["write_failure"]
    lines = [("state", fields["state"] + (f": {reason}" if reason else ""))]
    if found is not None:
        lines += [
            ("version", found.version),
            ("running for", duration_since(found.since_ms)),
            ("peers", f"{len(found.peers):,} connected, {fields['peers_in_step']:,} in step"),
            ("unreachable peers", f"{found.unreachable_peers:,}"),
            ("rates", f"{size(fields['received_bytes_per_s'])}/s in, {size(fields['sent_bytes_per_s'])}/s out"),
            ("waiting", f"{size(found.queued_size_bytes)} to peers, {size(found.ingest_queued_size_bytes)} to store"),
            ("posts to fetch", f"{found.wanted_hashes:,}"),
            ("postponed posts", f"{found.postponed_posts:,}"),
            ("quota", _quota(found)),
            ("lag of the event loop", f"{found.loop_lag_s:.3f} s"),
        ]
    backup_ms = fields["backup_at_ms"]
    made = "unknown" if backup_ms is None else f"{duration_since(backup_ms)} ago, in {safe(fields['backup_folder'])}"
    return [
        *lines,
        ("store", safe(str(fields["store"]))),
        ("posts", f"{fields['posts']:,} in {counted(fields['channels'], 'channel')}"),
        ("size on the disk", _size(fields["store_size_bytes"])),
        ("free on the disk", _size(fields["disk_free_bytes"])),
        ("last backup", made),
        ("last check", _check(fields)),
    ]


def _check(fields: dict[str, Any]) -> str:
    if fields["check_at_ms"] is None:
        return "unknown"
    problems = counted(fields["check_problems"], "problem") if fields["check_problems"] else "no problems"
    signatures = "verified" if fields["check_signatures"] else "not verified"
    return f"{duration_since(fields['check_at_ms'])} ago: {problems}, signatures {signatures}"


def _quota(found: NodeStatus) -> str:
    given = []
    if found.max_store_size_bytes:
        given.append(f"at most {size(found.max_store_size_bytes)}")
    if found.min_free_space_bytes:
        given.append(f"at least {size(found.min_free_space_bytes)} free")
    room = found.quota_room_bytes
    if not given or room is None:
        return "none"
    left = f"{size(room)} left" if room >= 0 else f"exceeded by {size(-room)}"
    return f"{found.quota}: {left}, {', '.join(given)}"


def _size(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else size(size_bytes)


def duration_since(since_ms: int) -> str:
    """Return the time since a moment in the two largest units, such as 3d 4h."""
    return two_units(int(time.time() - since_ms / 1000))


def two_units(passed_s: int) -> str:
    """Return a duration in its two largest units. A negative duration is "0s"."""
    days, rest_s = divmod(max(0, passed_s), _DAY_S)
    hours, minutes, seconds = rest_s // 3600, rest_s % 3600 // 60, rest_s % 60
    for large, small, text in ((days, hours, "{}d {}h"), (hours, minutes, "{}h {}m"), (minutes, seconds, "{}m {}s")):
        if large:
            return text.format(large, small)
    return f"{seconds}s"


COMMANDS: Final = (status,)
