"""Graphs as SVG: the posts of a channel and their links, and the users who assigned roles to each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Final, NamedTuple

from markupsafe import Markup, escape

from cablestore.inspect.charts import utc
from cablestore.inspect.shown_text import shown_plain
from cablestore.protocol.body import TYPE_NAMES
from cablestore.store.channel_graph import GraphNode

COLOURS: Final = 12
_STEP: Final = 16
_LANE: Final = 18
_MARGIN: Final = 14
_TICK_PIXELS: Final = 170
_MAX_LANES: Final = 40
_BOX: Final = (170, 30)
_COLUMN, _ROW = 260, 44


class Placed(NamedTuple):
    """Node with its position: the column in causal order, and the lane. A lane is a branch of the history."""

    node: GraphNode
    column: int
    lane: int


def colour_of(key: bytes | str | None) -> str:
    """Return the CSS class for the colour of a user."""
    if not key:
        return ""
    return f"c{(int(key[:4], 16) if isinstance(key, str) else key[0] * 256 + key[1]) % COLOURS}"


def causal_order(nodes: Sequence[GraphNode]) -> list[GraphNode]:
    """Sort nodes so that each follows the nodes that it links to, otherwise by (timestamp, hash)."""
    known = {node.hash: node for node in nodes}
    children: dict[bytes, list[bytes]] = defaultdict(list)
    waiting = {}
    for node in nodes:
        parents = [link for link in dict.fromkeys(node.links) if link in known]
        waiting[node.hash] = len(parents)
        for parent in parents:
            children[parent].append(node.hash)
    ready = [(known[digest].timestamp_ms or 0, digest) for digest, count in waiting.items() if count == 0]
    heapify(ready)
    ordered = []
    while ready:
        _, digest = heappop(ready)
        ordered.append(known.pop(digest))
        for child in children[digest]:
            waiting[child] -= 1
            if waiting[child] == 0:
                heappush(ready, (known[child].timestamp_ms or 0, child))
    return ordered + list(known.values())  # nodes in or after a cycle: unsigned skeletons of deleted posts may have one


def placed(nodes: Sequence[GraphNode]) -> list[Placed]:
    """Return the nodes in causal order with their positions.

    A post continues the lane of a post that it links to. Otherwise it begins a lane: an ended lane, or a new one.
    """
    tips: list[bytes | None] = []
    found = []
    for column, node in enumerate(causal_order(nodes)):
        links = set(node.links)
        continued = [lane for lane, tip in enumerate(tips) if tip in links]
        free = [lane for lane, tip in enumerate(tips) if tip is None]
        lane = (continued or free or [len(tips)])[0]
        for ended in continued[1:]:
            tips[ended] = None
        if lane == len(tips):
            tips.append(None)
        tips[lane] = node.hash
        found.append(Placed(node, column, lane % _MAX_LANES))
    return found


def channel_picture(nodes: Sequence[GraphNode], *, by_time: bool) -> Markup:
    """Return the graph of a channel, from left to right in causal order, or with `by_time` by claimed time."""
    places = placed(nodes)
    xs = _by_time(places) if by_time else [_MARGIN + each.column * _STEP for each in places]
    at = {each.node.hash: (x, _MARGIN + each.lane * _LANE) for each, x in zip(places, xs, strict=True)}
    times = {each.node.hash: each.node.timestamp_ms for each in places}
    shapes = [
        _edge(at[link], at[each.node.hash], is_late=_is_late(times[link], each.node.timestamp_ms))
        for each in places
        for link in dict.fromkeys(each.node.links)
        if link in at
    ]
    shapes += [_node(each.node, *at[each.node.hash]) for each in places]
    height = 2 * _MARGIN + max((each.lane for each in places), default=0) * _LANE
    width = max(xs, default=0) + _MARGIN
    moments = sorted(zip(xs, places, strict=True), key=lambda pair: pair[0])
    shapes += _ruler([(x, each.node.timestamp_ms) for x, each in moments], height)
    return _picture(width, height + 20, "Posts of the channel and their links", shapes)


def _by_time(places: list[Placed]) -> list[int]:
    known = [each.node.timestamp_ms for each in places if each.node.timestamp_ms is not None]
    first, last = min(known, default=0), max(known, default=0)
    width = max(600, len(places) * _STEP)
    return [
        _MARGIN + round(((each.node.timestamp_ms or first) - first) / max(1, last - first) * width) for each in places
    ]


def _is_late(parent_ms: int | None, child_ms: int | None) -> bool:
    """Return True if a post dated `child_ms` links to a post dated later, `parent_ms`: a clock was wrong.

    Unknown times are None.
    """
    return parent_ms is not None and child_ms is not None and child_ms < parent_ms


def _edge(start: tuple[int, int], end: tuple[int, int], *, is_late: bool) -> str:
    (x1, y1), (x2, y2) = start, end
    bend = (x1 + x2) // 2
    path = f"M{x1},{y1}L{x2},{y2}" if y1 == y2 else f"M{x1},{y1}C{bend},{y1} {bend},{y2} {x2},{y2}"
    return f'<path class="{"edge late" if is_late else "edge"}" d="{path}"/>'


def _node(node: GraphNode, x: int, y: int) -> str:
    kind = "post" if node.type is None else TYPE_NAMES[node.type]
    when = "" if node.timestamp_ms is None else f" at {utc(node.timestamp_ms)} UTC"
    by = "" if node.author is None else f" by {node.author.hex()[:8]}"
    label = f"{node.state} {kind}{by}{when}{', a head' if node.is_head else ''}"
    names = f"node {node.state} {colour_of(node.author)}"
    shape = f'<rect class="{names}" x="{x - 5}" y="{y - 5}" width="10" height="10"/>'
    if kind in {"text", "post"}:
        shape = f'<circle class="{names}" cx="{x}" cy="{y}" r="5"/>'
    ring = f'<circle class="head" cx="{x}" cy="{y}" r="8"/>' if node.is_head else ""
    href = f"/post?hash={node.hash.hex()}"
    return f'<a href="{href}" aria-label="{label}" tabindex="-1">{ring}{shape}<title>{label}</title></a>'


def _ruler(moments: list[tuple[int, int | None]], height: int) -> list[str]:
    """Return labels of times below a graph of this height, as many as fit. `moments` are (x, time), sorted by x."""
    found, next_x = [], 0
    for x, at_ms in moments:
        if at_ms is not None and x >= next_x:
            found.append(f'<text class="tick" x="{x}" y="{height + 12}">{utc(at_ms, "%Y-%m-%d %H:%M")}</text>')
            next_x = x + _TICK_PIXELS
    return found


def roles_picture(edges: Iterable[dict[str, Any]], names: dict[str, str], first: Iterable[str]) -> Markup:
    """Return the graph of the roles in `edges`, with users who assigned roles left of the recipients.

    `names` are the names of users by key. The users in `first` are in the first column.
    """
    found = list(edges)
    levels = _levels(found, list(first))
    columns: dict[int, list[str]] = defaultdict(list)
    for key, level in levels.items():
        columns[level].append(key)
    at = {
        key: (_MARGIN + level * _COLUMN, _MARGIN + row * _ROW)
        for level, keys in columns.items()
        for row, key in enumerate(keys)
    }
    shapes = [_role_edge(at[each["giver"]], at[each["recipient"]], each) for each in found]
    shapes += [_box(key, names.get(key, key), *place) for key, place in at.items()]
    width = max((x for x, _ in at.values()), default=0) + _BOX[0] + _MARGIN
    height = max((y for _, y in at.values()), default=0) + _BOX[1] + _MARGIN
    return _picture(width, height, "Roles and the users who assigned them", shapes) if at else Markup()


def _levels(edges: list[dict[str, Any]], first: list[str]) -> dict[str, int]:
    """Return the column of each user: the column after a user who assigned a role to the user.

    It is 0 for users in `first` and for users who only assigned roles.
    """
    recipients = {each["recipient"] for each in edges}
    levels = dict.fromkeys([*first, *(each["giver"] for each in edges if each["giver"] not in recipients)], 0)
    waiting = edges
    while waiting:
        known = [each for each in waiting if each["giver"] in levels]
        if not known:  # the remaining users assigned roles to each other in a cycle: begin with any of them
            levels[waiting[0]["giver"]] = 0
            continue
        for each in known:
            levels.setdefault(each["recipient"], levels[each["giver"]] + 1)
        waiting = [each for each in waiting if each["giver"] not in levels or each["recipient"] not in levels]
    return levels


def _role_edge(start: tuple[int, int], end: tuple[int, int], edge: dict[str, Any]) -> str:
    x1, y1, x2, y2 = start[0] + _BOX[0], start[1] + _BOX[1] // 2, end[0], end[1] + _BOX[1] // 2
    label = f"{edge['role']}, {edge['result']}, {utc(edge['timestamp_ms'])} UTC"
    names = "edge role" if edge["result"] == "applies" else "edge role late"
    text = f'<text class="tick" x="{(x1 + x2) // 2 - 14}" y="{(y1 + y2) // 2 - 4}">{escape(edge["role"])}</text>'
    path = f'<path class="{names}" d="M{x1},{y1}L{x2},{y2}"/>'
    href = f"/post?hash={edge['hash']}"
    return f'<a href="{href}" aria-label="{escape(label)}">{path}{text}<title>{escape(label)}</title></a>'


def _box(key: str, name: str, x: int, y: int) -> str:
    shown = escape(shown_plain(name)[:20])
    return (
        f'<a href="/user?key={key}" aria-label="{shown} {key[:8]}"><rect class="box {colour_of(key)}" x="{x}" y="{y}" '
        f'width="{_BOX[0]}" height="{_BOX[1]}" rx="5"/><text class="label" x="{x + 10}" y="{y + 20}">{shown}</text></a>'
    )


def _picture(width: int, height: int, label: str, shapes: list[str]) -> Markup:
    return Markup(  # noqa: S704 - text of users is escaped above
        f'<svg class="graph" role="group" aria-label="{label}" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}">{"".join(shapes)}</svg>'
    )
