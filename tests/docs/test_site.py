"""The documents as a whole: links are valid, every page is in the navigation, lines are short, the site builds."""

from __future__ import annotations

import html
import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from folders import ROOT

from cablestore.cli.commands import load_all

SITE: dict[str, Any] = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
AT_THE_TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines outside code blocks."""
    is_code = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.strip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield number, line


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site generate them."""
    headings = [line.lstrip("#").strip() for _, line in prose(path) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def links(path: Path) -> list[str]:
    """Return the targets of a document's links and images, except other sites."""
    text = "\n".join(line for _, line in prose(path))
    return [found for found in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"https?:|mailto:", found)]


@pytest.mark.parametrize("page", [*AT_THE_TOP, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_pages_and_headings(page: Path) -> None:
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{link}: {target} does not exist"
        assert page in AT_THE_TOP or target.is_relative_to(DOCS), f"{link} leaves the site"
        if anchor:
            assert anchor in anchors(target), f"{link}: {target} has no such heading"


def test_the_pages_contain_links() -> None:
    assert sum(len(links(page)) for page in PAGES) > 60
    assert "peers-that-are-cablestore-too" in anchors(DOCS / "explanation" / "PEERS.md")


def test_every_page_is_in_the_navigation_once() -> None:
    def pages(entry: object) -> Iterator[str]:
        if isinstance(entry, dict):
            for value in entry.values():
                yield from pages(value)
        elif isinstance(entry, list):
            for value in entry:
                yield from pages(value)
        else:
            yield str(entry)

    assert sorted(pages(SITE["nav"])) == sorted(str(page.relative_to(DOCS)) for page in PAGES)


def test_the_picture_matches_its_script() -> None:
    spec = importlib.util.spec_from_file_location("make_pictures", DOCS / "img" / "make.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert (DOCS / "img" / "overview.svg").read_text() == script.overview(), "run `make pictures`"


@pytest.mark.thorough
def test_the_site_builds_in_strict_mode_with_every_command(tmp_path: Path) -> None:
    """Builds a copy, because a build writes beside its input."""
    for name in ("cablestore", "views", "reindex", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    build = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / SITE["site_dir"]
    commands = html.unescape((site / "reference" / "commands" / "index.html").read_text())
    for name in load_all():
        assert f"cablestore {name} " in commands, name
    assert commands.count("--json") >= len(load_all())
    assert "--reconcile-window" in commands
    api = (site / "reference" / "api" / "index.html").read_text()
    for name in (
        "cablestore.store.store.CableStore.ingest",
        "cablestore.store.queries.Queries.messages",
        "cablestore.peers.node.Node.listen",
    ):
        assert f'id="{name}"' in api, name
