"""The page of a store in Chromium: at three widths, light and dark, by keyboard, live, and with hostile posts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from inspecting import Site, hostile_store, inspected
from people import ANN, BOB, CYD, raws
from waiting import LIMIT_S, wait_until

from cablestore import CableStore, StoreOptions
from cablestore.moderation import UserRole

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE = Path(os.environ.get("CABLESTORE_NODE_MODULES", "node_modules")) / "axe-core" / "axe.min.js"
SIZES = {390: 844, 820: 1180, 1440: 900}
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Yield a browser. Playwright is imported here, because every process of a run imports this file."""
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def page_of(chromium: Any, site: Site, width: int = 1440, scheme: str = "light") -> Iterator[Any]:
    """Yield a page that entered with the link. Fails for a console message, an error, or a request to another host."""
    context = chromium.new_context(
        viewport={"width": width, "height": SIZES[width]}, color_scheme=scheme, timezone_id="Asia/Tokyo", locale="en-GB"
    )
    context.set_default_timeout(LIMIT_S * 1000)
    problems: list[str] = []
    page = context.new_page()
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda sent: None if sent.url.startswith((site.url, "data:")) else problems.append(sent.url))
    page.goto(site.link)
    page.wait_for_url(f"{site.url}/")
    yield page
    context.close()
    assert problems == []


@contextmanager
def filled_store() -> Iterator[CableStore]:
    """Yield a store with branches, a deletion, names, roles and a private action."""
    first = BOB.text("harbour", "first")
    branches = [
        person.text("harbour", f"branch of {person.key.hex()[:4]}", links=(first.hash,)) for person in (BOB, CYD)
    ]
    last = CYD.text("harbour", "both branches", links=tuple(post.hash for post in branches))
    with CableStore.in_memory(identity=ANN.identity, options=StoreOptions(verify_threads=1)) as store:
        store.ingest(raws(first, *branches, last, BOB.named("bob"), CYD.named("cyd"), BOB.topic("harbour", "boats")))
        store.ingest(raws(BOB.delete(branches[0])))
        store.post("harbour", "a text of the user")
        store.moderation.set_role(BOB.key, UserRole.MOD, reason="helps")
        store.moderation.hide(posts=[last.hash], private=True)
        yield store


def paths_of(store: CableStore) -> list[str]:
    post = next(store.posts_by(BOB.key))
    return [
        *("/", "/activity?by=author", "/channels", "/channel?name=harbour", "/graph?name=harbour", "/users"),
        *(f"/post?hash={post.hash.hex()}", f"/user?key={BOB.key.hex()}", "/roles", "/keys?prefix=!chat!", "/log"),
        *("/peers", "/archives", "/search?q=bob", f"/post?hash={'ab' * 32}", "/post?hash=wrong"),
    ]


@pytest.mark.skipif(
    not AXE.is_file(), reason="axe-core not found: npm install axe-core, or set CABLESTORE_NODE_MODULES"
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", SIZES)
def test_every_page_is_accessible_and_fits(chromium: Any, width: int, scheme: str) -> None:
    with filled_store() as store, inspected(store) as site, page_of(chromium, site, width, scheme) as page:
        for path in paths_of(store):
            if path.startswith("/post?hash=wrong") or "abab" in path:
                continue  # the browser reports their status on the console
            page.goto(site.url + path)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            page.evaluate(AXE.read_text())  # as a browser tool, which is exempt from the page's policy
            found = page.evaluate("rules => axe.run({runOnly: rules})", RULES)
            problems = [(each["id"], [node["html"] for node in each["nodes"]][:3]) for each in found["violations"]]
            assert problems == [], path


def test_hostile_posts_neither_run_scripts_nor_contact_another_host(chromium: Any) -> None:
    with hostile_store() as hostile, inspected(hostile.store) as site, page_of(chromium, site) as page:
        page.add_init_script("window.x = () => { throw new Error('a script of a post ran') }")
        for path in hostile.paths():
            if site.get(path).status != 200:
                continue  # the browser reports other statuses on the console
            page.goto(site.url + path)
            for width, height in SIZES.items():
                page.set_viewport_size({"width": width, "height": height})
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (path, width)
            assert page.locator("img, iframe, script:not([src='/static/page.js'])").count() == 0


def test_the_keyboard_reaches_the_content_and_the_focus_is_visible(chromium: Any) -> None:
    with filled_store() as store, inspected(store) as site, page_of(chromium, site) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        seen = set()
        while "BODY" not in seen:  # after the last element, the focus leaves the page
            page.keyboard.press("Tab")
            seen.add(page.evaluate("document.activeElement.getAttribute('href') ?? document.activeElement.tagName"))
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline == "solid" or "BODY" in seen, seen
        assert {"/channels", "/users", "/log", "/keys", "INPUT", "BUTTON", "/activity?by=author"} <= seen
        page.locator("nav a[href='/channels']").focus()
        page.keyboard.press("Enter")
        page.wait_for_url(f"{site.url}/channels")
        page.locator("#q").focus()
        page.keyboard.type("harbour")
        page.keyboard.press("Enter")
        page.wait_for_url("**/search?q=harbour")
        page.locator("main a[href='/channel?name=harbour']").first.focus()
        page.keyboard.press("Enter")
        page.wait_for_url("**/channel?name=harbour")


def test_a_post_appears_on_open_pages_and_the_focus_stays(chromium: Any) -> None:
    with filled_store() as store, inspected(store) as site, page_of(chromium, site) as page:
        page.goto(f"{site.url}/channel?name=harbour")
        page.locator("#live:text-is('live')").wait_for()
        heads = page.locator("main a[href='/graph?name=harbour']")
        heads.focus()
        store.post("harbour", "written elsewhere")
        page.locator("text=written elsewhere").wait_for()
        assert page.evaluate("document.activeElement.getAttribute('href')") == "/graph?name=harbour"
        page.goto(f"{site.url}/log")
        page.locator("#live:text-is('live')").wait_for()
        other = store.post("another", "of a new channel")
        page.locator(f"main a[href='/post?hash={other.hash.hex()}']").first.wait_for()


def test_more_pages_than_connections_of_a_browser_are_live(chromium: Any) -> None:
    with filled_store() as store, inspected(store) as site, page_of(chromium, site) as first:
        pages = [first, *(first.context.new_page() for _ in range(8))]
        for page in pages:
            page.goto(f"{site.url}/channel?name=harbour")
            page.locator("#live:text-is('live')").wait_for()
        store.post("harbour", "for all pages")
        for page in pages:
            page.locator("text=for all pages").wait_for()
        pages.pop(0).close()  # it was the one that listened
        store.post("harbour", "for the others")
        for page in pages:
            page.locator("text=for the others").wait_for()


def test_a_post_in_another_channel_does_not_reload_the_page(chromium: Any) -> None:
    with filled_store() as store, inspected(store) as site, page_of(chromium, site) as page:
        page.goto(f"{site.url}/channel?name=harbour")
        page.locator("#live:text-is('live')").wait_for()
        requests: list[str] = []
        page.on("request", lambda sent: requests.append(sent.url))
        store.post("another", "text")
        store.post("harbour", "the last one")
        page.locator("text=the last one").wait_for()
        page.wait_for_timeout(100)
        assert requests == [f"{site.url}/channel?name=harbour"]


def test_scripts_convert_times_copy_hashes_and_enlarge_graphs(chromium: Any) -> None:
    with filled_store() as store, inspected(store) as site, page_of(chromium, site) as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=site.url)
        post = next(store.posts_by(CYD.key))
        page.goto(f"{site.url}/post?hash={post.hash.hex()}")
        time = page.locator("main time").first
        shown, hover = time.text_content(), time.get_attribute("title")
        assert hover.endswith("UTC")
        assert shown != hover
        page.locator("button.copy").first.click()
        wait_until(lambda: page.evaluate("navigator.clipboard.readText()") == post.hash.hex())
        page.goto(f"{site.url}/graph?name=harbour")
        width = int(page.locator("svg.graph").get_attribute("width"))
        page.locator("button[data-zoom='1.5']").click()
        assert int(page.locator("svg.graph").get_attribute("width")) == round(width * 1.5)


def test_the_pages_work_without_scripts(chromium: Any) -> None:
    with filled_store() as store, inspected(store) as site:
        context = chromium.new_context(java_script_enabled=False)
        page = context.new_page()
        page.goto(site.link)
        page.wait_for_url(f"{site.url}/")
        page.locator("nav a[href='/channels']").click()
        page.locator("main a[href='/channel?name=harbour']").first.click()
        assert "both branches" in page.content()
        assert page.locator("button.copy:visible").count() == 0
        context.close()
