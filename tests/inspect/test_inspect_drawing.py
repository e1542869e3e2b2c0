"""Graphs, charts and tables of pages, with exact positions and limits, without a server."""

from __future__ import annotations

import re
from typing import Any

import pytest
from people import ANN, BOB

from cablestore import LEGACY
from cablestore.errors import ArgumentError
from cablestore.inspect.charts import bars, calendar, day_line, share, utc
from cablestore.inspect.fields import hex_lines, post_fields
from cablestore.inspect.graph import causal_order, channel_picture, colour_of, placed, roles_picture
from cablestore.inspect.page import PAGE_ROWS, Query, paged, plain
from cablestore.inspect.rows import decoded_row, is_local, layout_of
from cablestore.inspect.settings import MIN_TOKEN_CHARACTERS, InspectSettings
from cablestore.inspect.shown_text import shown, shown_plain
from cablestore.inspect.terms import term
from cablestore.moderation import UserRole
from cablestore.peers import Address
from cablestore.protocol.body import DELETE, TEXT, Role
from cablestore.store.channel_graph import GraphNode
from cablestore.views import CATALOG

DAY_MS = 86_400_000


def node(name: str, *links: str, at: int | None = 0, is_head: bool = False, kind: int | None = TEXT) -> GraphNode:
    """Return a node named by a letter. Its hash begins with the letter."""
    hashes = tuple(link.encode() * 32 for link in links)
    return GraphNode(name.encode() * 32, "stored", is_head, bytes([1] * 32), kind, at, hashes)


def names(nodes: list[GraphNode]) -> str:
    return "".join(chr(each.hash[0]) for each in nodes)


def test_causal_order_follows_links_then_times_then_hashes() -> None:
    assert names(causal_order([node("c", at=3), node("b", at=2), node("a", at=2)])) == "abc"
    assert names(causal_order([node("a", "c", at=1), node("b", "c", at=0), node("c", at=9)])) == "cba"
    assert names(causal_order([node("a", "b", "c", at=0), node("b", at=5), node("c", "b", at=4)])) == "bca"
    assert names(causal_order([node("a", "b", "b", "x", at=0), node("b", at=5)])) == "ba"
    assert names(causal_order([node("a", "b"), node("b", "a"), node("c", "a"), node("d", at=None)])) == "dabc"


def test_each_branch_has_a_lane_that_is_used_again_after_its_end() -> None:
    nodes = [node("a", at=1), node("b", "a", at=2), node("c", "a", at=3), node("d", "b", "c", at=4), node("e", at=5)]
    assert [(each.column, each.lane) for each in placed(nodes)] == [(0, 0), (1, 0), (2, 1), (3, 0), (4, 1)]
    many = [node(chr(65 + number), at=number) for number in range(42)]
    assert [each.lane for each in placed(many)][39:] == [39, 0, 1]


def attributes(picture: str, shape: str, *wanted: str) -> list[tuple[str, ...]]:
    found = (dict(re.findall(r'([a-z0-9-]+)="([^"]*)"', each)) for each in re.findall(rf"<{shape} [^>]*>", picture))
    return [tuple(each[name] for name in wanted) for each in found]


def test_the_graph_of_a_channel_has_exact_positions() -> None:
    at = 1_700_000_000_000
    nodes = [
        node("a", at=at),
        node("b", "a", at=at + 1000),
        node("c", "a", at=at - 500, kind=DELETE),
        node("d", "b", "c", at=None, is_head=True, kind=None),
    ]
    picture = str(channel_picture(nodes, by_time=False))
    assert attributes(picture, "svg", "width", "height") == [("76", "66")]
    assert attributes(picture, "circle", "class", "cx", "cy") == [
        ("node stored c5", "14", "14"), ("node stored c5", "46", "32"), ("head", "62", "14"), ("node stored c5", "62", "14")
    ]  # fmt: skip
    assert attributes(picture, "rect", "x", "y") == [("25", "9")]
    assert attributes(picture, "path", "class", "d") == [
        ("edge late", "M14,14L30,14"),
        ("edge", "M14,14C30,14 30,32 46,32"),
        ("edge", "M46,32C54,32 54,14 62,14"),
        ("edge", "M30,14L62,14"),
    ]
    assert attributes(picture, "text", "x", "y") == [("14", "58")]
    assert 'aria-label="stored post by 01010101, a head"' in picture
    assert 'aria-label="stored text by 01010101 at 2023-11-14 22:13:21 UTC"' in picture
    picture = str(channel_picture(nodes, by_time=True))
    assert attributes(picture, "circle", "cx") == [("214",), ("614",), ("14",), ("14",)]
    assert attributes(picture, "text", "x") == [("14",), ("214",), ("614",)]
    assert attributes(str(channel_picture([], by_time=False)), "svg", "width", "height") == [("14", "48")]


def edge(giver: str, recipient: str, result: str = "applies") -> dict[str, Any]:
    more = {"role": "mod", "result": result, "timestamp_ms": 0, "hash": "ab"}
    return {"giver": giver * 64, "recipient": recipient * 64} | more


def test_users_are_right_of_those_who_assigned_their_role() -> None:
    def columns(edges: list[dict[str, Any]], first: str = "") -> dict[str, tuple[int, int]]:
        picture = str(roles_picture(edges, {}, [key * 64 for key in first]))
        boxes = re.findall(r'<a href="/user\?key=(.)[^>]*><rect [^>]*x="(\d+)" y="(\d+)"', picture)
        return {key: ((int(x) - 14) // 260, (int(y) - 14) // 44) for key, x, y in boxes}

    assert columns([edge("a", "b"), edge("b", "c"), edge("a", "d")]) == {
        "a": (0, 0), "b": (1, 0), "d": (1, 1), "c": (2, 0)
    }  # fmt: skip
    assert columns([edge("b", "c"), edge("a", "b")]) == {"a": (0, 0), "b": (1, 0), "c": (2, 0)}
    assert columns([edge("a", "b"), edge("b", "a")]) == {"a": (0, 0), "b": (1, 0)}
    assert columns([edge("c", "c"), edge("a", "b"), edge("b", "a")]) == {"c": (0, 0), "a": (0, 1), "b": (1, 0)}
    assert columns([edge("a", "b")], "b") == {"b": (0, 0), "a": (0, 1)}
    assert columns([]) == {}
    picture = str(roles_picture([edge("a", "b"), edge("a", "b", "void")], {"a" * 64: "x" * 30}, []))
    assert attributes(picture, "svg", "width", "height") == [("458", "58")]
    assert attributes(picture, "path", "class", "d") == [
        ("edge role", "M184,29L274,29"), ("edge role late", "M184,29L274,29")
    ]  # fmt: skip
    assert attributes(picture, "text", "x", "y") == [("215", "25"), ("215", "25"), ("24", "34"), ("284", "34")]
    assert f">{'x' * 20}</text>" in picture


def test_colours_depend_on_the_first_two_bytes_of_a_key() -> None:
    assert colour_of(bytes([1, 3, 9])) == colour_of("0103ff") == f"c{259 % 12}"
    assert colour_of(b"") == colour_of(None) == ""


# --- charts -----------------------------------------------------------------------------------------


def test_a_calendar_ends_with_the_week_of_the_latest_post() -> None:
    """Day 19,675 is Tuesday, 14 November 2023."""
    last = 19_675
    picture = str(calendar([(last * DAY_MS, 4), ((last - 1) * DAY_MS, 1), ((last - 364) * DAY_MS, 2)]))
    cells = attributes(picture, "rect", "class", "x", "y")
    assert len(cells) == 52 * 7 + 2
    assert cells[-2:] == [("q1", "676", "0"), ("q4", "676", "13")]
    assert cells[:2] == [("q0", "0", "0"), ("q2", "0", "13")]
    assert "<title>2023-11-14: 4 posts</title>" in picture
    assert "in the year up to 2023-11-14, at most 4 on a day" in picture
    assert attributes(picture, "svg", "width", "height") == [("689", "91")]
    assert attributes(str(calendar([])), "rect", "class", "x", "y") == [("q0", "676", "39")]
    assert [cell[0] for cell in attributes(str(calendar([(0, 1)])), "rect", "class")] == ["q1"]


def test_days_in_a_line_have_their_place_in_the_period() -> None:
    picture = str(day_line([(0, 1), (2 * DAY_MS, 9)], 0, 4 * DAY_MS - 1, "c"))
    assert attributes(picture, "rect", "class", "x", "width") == [("q1", "0.0", "227.0"), ("q4", "455.0", "227.0")]
    assert attributes(picture, "svg", "width", "height", "aria-label") == [("910", "14", "Posts per day: c")]
    assert attributes(str(day_line([(0, 1)], 0, 910 * DAY_MS, "c")), "rect", "width") == [("1.0",)]
    assert attributes(str(day_line([], 5, 5, "c")), "rect", "x") == []


def test_bars_outside_the_chosen_period_are_pale() -> None:
    periods = [(0, 10, 30), (10, 20, 60), (30, 40, 1)]

    def pale(after_ms: int | None, before_ms: int | None) -> list[bool]:
        picture = str(bars(periods, "c", chosen=(after_ms, before_ms)))
        return [name == "bar out" for (name,) in attributes(picture, "rect", "class")]

    assert pale(None, None) == [False, False, False]
    assert pale(9, 30) == [False, False, True]
    assert pale(10, 31) == [True, False, False]
    picture = str(bars(periods, "c", lambda start, end: f"{start}-{end}"))
    assert attributes(picture, "rect", "x", "y", "height", "width") == [
        ("0", "30", "30", "6"), ("7", "0", "60", "6"), ("21", "58", "2", "6")
    ]  # fmt: skip
    assert [href for (href,) in attributes(picture, "a", "href")] == ["0-10", "10-20", "30-40"]
    assert attributes(picture, "svg", "role", "width") == [("group", "28")]
    assert attributes(str(bars(periods, "c")), "svg", "role") == [("img",)]
    assert str(bars([], "c")) == ""


def test_shares_and_times() -> None:
    assert [attributes(str(share(*each)), "rect", "width")[0][0] for each in ((1, 3), (3, 3), (0, 0))] == [
        "33.3", "100.0", "0"
    ]  # fmt: skip
    assert utc(1_700_000_000_000) == "2023-11-14 22:13:20"
    assert utc(10**18) == f"{10**18} ms"


# --- tables -----------------------------------------------------------------------------------------


def page_of(count: int, after: int | None = None, **more: str) -> dict[str, Any]:
    rows = [{"id": str(1000 + number), "size": None if number == 3 else number % 3} for number in range(count)]
    given = more if after is None else {"after": str(1000 + after)} | more
    return paged(rows, Query(given), "id", "id", ("id", "size"))


def test_a_page_has_as_many_rows_as_allowed() -> None:
    assert [len(page_of(count)["rows"]) for count in (0, PAGE_ROWS, PAGE_ROWS + 1)] == [0, PAGE_ROWS, PAGE_ROWS]
    assert page_of(PAGE_ROWS)["next"] is None
    page = page_of(PAGE_ROWS + 1)
    assert (page["total"], page["next"]) == (PAGE_ROWS + 1, {"after": str(1000 + PAGE_ROWS - 1)})
    last = page_of(PAGE_ROWS + 1, PAGE_ROWS - 1)
    assert ([row["id"] for row in last["rows"]], last["next"]) == ([str(1000 + PAGE_ROWS)], None)
    assert [row["id"] for row in page_of(3, 99)["rows"]] == ["1000", "1001", "1002"]
    assert [row["id"] for row in page_of(7, sort="size")["rows"]] == [
        "1003", "1000", "1006", "1001", "1004", "1002", "1005"
    ]  # fmt: skip
    assert [row["size"] for row in page_of(7, sort="-size")["rows"]] == [2, 2, 1, 1, 0, 0, None]
    with pytest.raises(ArgumentError, match="invalid sort '-x': expected one of id, size"):
        page_of(1, sort="-x")


def test_parameters_of_an_address_are_checked() -> None:
    query = Query({"format": "json", "limit": "9" * 16, "x": "9" * 17, "y": "-1", "z": "²"})
    assert "format" not in query.given
    assert (query.number("limit"), query.number("none"), query.number("none", 5)) == (10**16 - 1, None, 5)
    for name in ("x", "y", "z"):
        with pytest.raises(ArgumentError, match=f"invalid {name} "):
            query.number(name)
    with pytest.raises(ArgumentError, match="the parameter x"):
        query.id("x")
    with pytest.raises(ArgumentError, match="missing parameter: name"):
        query.channel()
    assert (query.text("none"), Query({"name": "c"}).channel()) == ("", "c")


def test_values_become_plain_for_json() -> None:
    link = GraphNode(b"\1", "stored", True)
    assert plain({b"k": (UserRole.MOD, b"\1\2", [None, 1])}) == {"6b": ["mod", "0102", [None, 1]]}
    assert plain(link)["hash"] == "01"
    assert plain(Query) is Query


def test_bytes_of_a_post_are_split_at_fields_and_lines() -> None:
    post = BOB.text("c", "text", links=(bytes(32), ANN.key))
    fields = post_fields(post, LEGACY)
    assert [each["name"] for each in fields] == [
        "public_key", "signature", "num_links", "links", "post_type", "timestamp", "channel", "text"
    ]  # fmt: skip
    assert [each["kind"] for each in fields] == [
        "user", "hex", "number", "hashes", "text", "time", "channel", "text"
    ]  # fmt: skip
    assert [each["value"] for each in fields[:3]] == [BOB.key, post.raw[32:96], 2]
    last = [post_fields(each, LEGACY)[-1] for each in (BOB.named("bob"), BOB.post(Role("", 0, "c", ANN.key, 1)))]
    assert [each["kind"] for each in last] == ["pairs", "number"]
    assert [each["kind"] for each in post_fields(BOB.post(Role("", 0, "c", ANN.key, 1)), LEGACY)][-2:] == [
        "user", "number"
    ]  # fmt: skip
    ends = [each["end"] for each in fields]
    assert ends[:5] == [32, 96, 97, 161, 162]
    for width in (32, 7):
        lines = hex_lines(post, fields, width)
        assert [line["offset"] for line in lines] == list(range(0, len(post.raw), width))
        parts = [(part["field"], bytes.fromhex(part["hex"])) for line in lines for part in line["parts"]]
        assert all(data for _, data in parts)
        for number, each in enumerate(fields):
            found = b"".join(data for field, data in parts if field == number)
            assert found == post.raw[each["start"] : each["end"]]


def test_rows_are_decoded_by_the_layout_of_their_prefix() -> None:
    row = decoded_row(CATALOG, b"!author!" + b"ab" * 32 + b"!text!0000001700000000.", b"\1" * 32)
    assert row["prefix"] == "!author!"
    assert [part["kind"] for part in row["parts"]] == ["user", "type", "time"]
    assert row["size_bytes"] == len("!author!") + 64 + len("!text!0000001700000000.") + 32
    assert layout_of(b"unknown") == (b"!", "", "hex")
    assert layout_of(b"!zzz") == (b"!", "", "hex")
    assert layout_of(b"!data!x")[0] == b"!data!"
    assert [is_local(key) for key in (b"!local!x", b"!arrival!next", b"!private!", b"!data!")] == [
        True, True, True, False
    ]  # fmt: skip
    extra = decoded_row(CATALOG, b"!data!" + b"ab!cd", b"")
    assert [(part["kind"], part["text"]) for part in extra["parts"]] == [("hash", "ab"), ("part", "cd")]


# --- texts and settings -----------------------------------------------------------------------------


def test_terms_link_into_the_documents() -> None:
    assert re.findall('<a class="term" href="[^"]*/([^/"]*)" [^>]*>(.*)</a>', str(term("in step"))) == [
        ("#peers", "in step")
    ]  # fmt: skip
    assert str(term("heads", "Heads <1>")).endswith(">Heads &lt;1&gt;</a>")


def test_invisible_characters_are_shown_as_symbols() -> None:
    assert str(shown("a\u202eb\n<")) == (
        '<bdi>a<b class="control">U+202E</b>b<b class="control">U+000A</b>&lt;</bdi>'
    )  # fmt: skip
    assert str(shown("a\nb\u200b", lines=True)) == '<bdi>a\nb<b class="control">U+200B</b></bdi>'
    assert shown_plain("a\x07\u200b<") == "a[U+0007][U+200B]<"


def test_the_link_of_a_page_has_its_token_and_the_name_of_its_proxy() -> None:
    here, there = Address("127.0.0.1", 8573), Address("192.0.2.7", 80)
    token = "x" * MIN_TOKEN_CHARACTERS
    assert InspectSettings(here, token).link(here) == f"http://127.0.0.1:8573/?token={token}"
    assert InspectSettings(there, token, "garden.example").link(there) == f"https://garden.example/?token={token}"
    assert len({InspectSettings(here).token for _ in range(2)}) == 2
    assert InspectSettings(Address("localhost", 1)).token
    with pytest.raises(ArgumentError, match=f"token too short: {MIN_TOKEN_CHARACTERS - 1} characters"):
        InspectSettings(here, token[1:])
    for settings in ((there, "", None), (there, token, None), (there, "", "x.example"), (Address("x.example", 1), "")):
        with pytest.raises(ArgumentError, match="other machines can reach "):
            InspectSettings(*settings)
