"""Links in messages: their recognition in a text, and the output to a terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from terminals import CTRL_Q, Screen, Start
from waiting import wait_until

from cablestore import CableStore
from cablestore.chat.links import MAX_LINK_SIZE_BYTES, links_in, links_of_lines, with_link_ids
from cablestore.chat.safe_text import clean, wrap

XTERM = {"TERM": "xterm-256color"}
LONG = "https://example.org/" + "/".join(f"part{number}" for number in range(30))


def shown(text: str) -> list[str]:
    return [text[each.start : each.stop] for each in links_in(text)]


@pytest.mark.parametrize(
    ("text", "links"),
    [
        ("see https://x.org/a.", ["https://x.org/a"]),
        ("HTTP://X.ORG:80/?a=1&b=2#c;d!", ["HTTP://X.ORG:80/?a=1&b=2#c;d"]),
        ("(https://en.wikipedia.org/wiki/Foo_(bar))", ["https://en.wikipedia.org/wiki/Foo_(bar)"]),
        ("(https://x.org/43)(Fixes 42), then", ["https://x.org/43"]),
        ("[rake](https://x.org/b)! <https://y.org/c>", ["https://x.org/b", "https://y.org/c"]),
        ("**https://x.org/**", ["https://x.org/"]),
        ("http://[::1]:8080/x]", ["http://[::1]:8080/x"]),
        ("https://x.org\u3002\u300chttps://y.org/\u65e5\u672c\u300d", ["https://x.org", "https://y.org/\u65e5\u672c"]),
        ("https://x.org/?u=https://y.org/", ["https://x.org/?u=https://y.org/"]),
        ("https:// https://. xhttps://x.org www.x.org", []),
        ("javascript:alert(1) file:///etc magnet:?xt=1 mailto:a@x.org cable:5a5a ssh://x.org", []),
    ],
)
def test_a_link_ends_before_surrounding_punctuation(text: str, links: list[str]) -> None:
    assert shown(text) == links


@pytest.mark.parametrize(
    "text",
    [
        "https://paypal.com@evil.example/",
        "https://p\u0430ypal.com/",
        "https://paypal.com\uff0f.evil.example/",
        "https://paypal.com\u2044.evil.example/",
        "https://x.org/\u202egnp.exe",
        "https://x.org/\x1b]8;;https://evil.example\x07",
        "https://x.org/a\u200bb",
        "https://exam\u00adple.org/",
        "https://x.org/" + "a" * MAX_LINK_SIZE_BYTES,
        "https://x.org/" + "\u00e4" * (MAX_LINK_SIZE_BYTES // 6),
    ],
)
def test_a_link_that_hides_its_target_is_plain_text(text: str) -> None:
    assert shown(clean(text, lines=True)) == []


def test_link_targets_are_ascii_and_hostile_texts_are_scanned_fast() -> None:
    assert links_in("https://x.org/\u65e5?q=%20")[0].target == "https://x.org/%E6%97%A5?q=%20"
    for part in ("https://", "https://(", "https://x.org@", "https://x.org/)"):
        links_in(part * 5_000)  # takes a minute if each beginning is scanned to the end


def test_lines_of_a_wrapped_text_contain_all_parts_of_its_links() -> None:
    text = f"first {LONG} and\n\nthen {LONG}, https://x.org."
    lines = wrap(text, 30)
    parts = [
        (line[each.start : each.stop], each.target)
        for line, links in zip(lines, links_of_lines(text, lines), strict=True)
        for each in links
    ]
    assert "".join(part for part, _ in parts) == LONG + LONG + "https://x.org"
    assert {target for _, target in parts} == {LONG, "https://x.org"}


def test_unsupported_terminals_receive_no_link_sequences() -> None:
    output = "\x1b]8;id=17;https://x.org\x1b\\\x1b[4mhere\x1b[0m\x1b]8;;\x1b\\."
    for environ in ({"TERM": "linux"}, {"TERM": "dumb"}, {}, XTERM | {"INSIDE_EMACS": "29"}, {"TERM": "screen"}):
        assert with_link_ids(output, environ) == "\x1b[4mhere\x1b[0m."
    for environ in (XTERM, {"TERM": "tmux-256color"}, {"TERM": "screen-256color", "TMUX": "/tmp/tmux"}):
        assert "https://x.org" in with_link_ids(output, environ)


@pytest.mark.thorough
def test_a_link_over_several_lines_is_one_link_and_is_copied_unchanged(start_chat: Start, tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "store") as store:
        store.post("default", f"go to {LONG}. Or (https://x.org/a)")
        store.post("default", "https://p\u0430ypal.com/ https://bad.example/\u202egnp.exe")
    client = start_chat("-s", "store")
    sees = Screen(client)
    sees.shows("gnp.exe")
    sees.shows("1 member")
    found = re.findall(rb"\x1b\]8;id=(\w+);([^\x1b]+)\x1b\\(.*?)\x1b\]8;;\x1b\\", client.bytes)
    assert {target for _, target, _ in found} == {LONG.encode(), b"https://x.org/a"}
    assert len({name for name, target, _ in found if target == LONG.encode()}) == 1
    parts = [re.sub(rb"\x1b\[[0-9;]*m", b"", text) for _, target, text in found if target == LONG.encode()]
    assert len(parts) > 2
    assert all(part in LONG.encode() for part in parts)  # from several screens

    def is_copied() -> bool:
        """Drag over the current position of the link, because the first screens move it."""
        column, first = sees.place_of("https://example.org")
        end, last = sees.place_of("/part29")
        client.drag((column, first), (end + len("/part29") - 1, last))
        client.press("\x03")
        sees.shows("Copied")
        return client.clipboard == LONG

    wait_until(is_copied, lambda: client.clipboard)
    assert client.end(CTRL_Q) == 0
