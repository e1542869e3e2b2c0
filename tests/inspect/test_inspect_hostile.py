"""Hostile posts on every page are text, and local and private data is marked, or left out with `is_public`."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import urlencode

import pytest
from inspecting import FORBIDDEN, HOSTILE, Site, hostile_store, inspected
from people import ANN

TAGS = """
    a b bdi body button circle code dd details div dl dt footer form g h1 h2 head header html i input label li link main
    mark meta nav ol p path pre rect script section span summary svg table tbody td text th thead time title tr ul
"""
"""Elements of the pages."""
PATHS = (
    *("/", "/activity", "/channels", "/channel", "/graph", "/post", "/users", "/user", "/roles", "/keys", "/log"),
    "/search",
)
PARAMETERS = (
    *("name", "hash", "key", "cursor", "after", "before", "limit", "sort", "prefix", "context", "q", "weeks", "axis"),
)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Yield the page of a store with hostile text in every field."""
    with hostile_store() as hostile, inspected(hostile.store) as site:
        yield site


class Page(HTMLParser):
    """Parser that collects the tags and attributes of a page, and the text that a reader sees."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str, str]] = []
        self.shown = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.shown += data


def test_hostile_text_is_shown_as_text_on_every_page() -> None:
    with hostile_store() as hostile, inspected(hostile.store) as site:
        with_markup = 0
        for path in hostile.paths():
            found = site.get(path)
            assert found.status in {200, 400, 404}, (path, found.text)
            if "html" not in found.headers["Content-Type"]:
                assert "<" not in found.text  # a plain line for an unknown address
                continue
            page = Page(found.text)
            assert page.tags <= set(TAGS.split()), path
            assert not FORBIDDEN & set(found.text), path
            for tag, name, value in page.attributes:
                assert not name.startswith("on"), (path, tag, name)
                assert name != "style", path
                if name in {"href", "src", "action"}:
                    assert re.match(r"/(?!/)|#main$|data:,$|https://cablestore\.github\.io/cablestore/", value), value
                if tag == "script":
                    assert (name, value) in {("src", "/static/page.js"), ("defer", "")}
            assert "62615533" not in found.text, "a template was evaluated"
            with_markup += "<script>" in page.shown
        assert with_markup > 20


def test_symbols_replace_control_and_direction_characters() -> None:
    with hostile_store() as hostile, inspected(hostile.store) as site:
        page = Page(site.get(f"/post?hash={hostile.posts[0].hash.hex()}").text)
        assert HOSTILE.translate({ord(each): f"U+{ord(each):04X}" for each in FORBIDDEN}) in page.shown
        assert site.json("/post", hash=hostile.posts[0].hash.hex())["post"]["fields"][-1]["value"] == HOSTILE


@pytest.mark.parametrize("form", ["", "json"])
def test_a_public_page_omits_local_and_private_data(form: str) -> None:
    with hostile_store() as hostile:
        texts = {}
        for is_public in (False, True):
            with inspected(hostile.store, is_public=is_public) as site:
                paths = [f"{path}{'&' if '?' in path else '?'}format={form}" for path in hostile.paths()]
                paths = [path for path in paths if hostile.private.hash.hex() not in path and "local" not in path]
                texts[is_public] = "\n".join(site.get(path).text for path in paths)
                answer = site.get(f"/post?hash={hostile.private.hash.hex()}&format={form}")
                assert answer.status == (404 if is_public else 200)
        for secret in ("private ", "draft ", "!local!", "!private!", "!arrival!", hostile.private.hash.hex()):
            assert secret not in texts[True].replace("Only in this store. It is left out with --public", "")
        for secret in ("private ", "!local!", "!private!", hostile.private.hash.hex()):
            assert secret in texts[False]
        assert ANN.identity.seed.hex() not in texts[False]
        if not form:
            assert 'class="badge local"' in texts[False]


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "9" * 30, "\u0661", "%00", "..", HOSTILE, "🐈", "a" * 5000, "\\x", "\\xff!"]
)
def test_no_parameter_breaks_a_page(text: str, site: Site, rng: random.Random) -> None:
    """Each text is tried in a third of the parameters, so each parameter gets several texts."""
    places = list(itertools.product(PATHS, PARAMETERS))
    for path, name in rng.sample(places, len(places) // 3):
        given = {"name": "default", name: text} if path in {"/channel", "/graph"} else {name: text}
        answer = site.get(f"{path}?{urlencode(given)}")
        assert answer.status < 500, (path, name, answer.text)
