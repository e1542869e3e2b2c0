"""Draws the pictures of the documents for `make pictures`. One picture shows a real run of `cablestore demo`."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from rich.console import Console
from rich.text import Text

HERE: Final = Path(__file__).parent
WIDTH, HEIGHT = 860, 420
STYLE: Final = """
text { font: 15px system-ui, sans-serif; fill: #1c2733; text-anchor: middle }
.title { font-weight: 600 } .small { font-size: 13px; fill: #44525f }
rect { fill: #ffffff; stroke: #5b6b7a; stroke-width: 1.5; rx: 8 }
.store { fill: #eef4fa; stroke: #2b6cb0; stroke-width: 2 } .view { fill: #ffffff; stroke: #2b6cb0 }
path { fill: none; stroke: #2b6cb0; stroke-width: 2; marker-end: url(#arrow) }
"""
VIEWS: Final = ("messages", "channels, topics", "members, names", "links", "sums for sync")


def words(x: float, y: float, text: str, kind: str = "") -> str:
    """Return a line of text, centred at x."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(text)}</text>'


def box(x: float, y: float, width: float, height: float, *lines: str, kind: str = "") -> str:
    """Return a box with a title and lines below it."""
    drawn = [f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" class="{kind}"/>']
    top = y + height / 2 - 9 * (len(lines) - 1) + 5
    drawn += [
        words(x + width / 2, top + 19 * at, line, "small" if at else "title") for at, line in enumerate(lines) if line
    ]
    return "\n".join(drawn)


def arrow(*points: tuple[float, float]) -> str:
    """Return an arrow along points."""
    return '<path d="M' + " L".join(f"{x:g} {y:g}" for x, y in points) + '"/>'


def overview() -> str:
    """Draw posts, views, clients and peers."""
    parts = [
        box(20, 30, 190, 90, "Your client", "writes posts,", "signed with your key"),
        box(20, 165, 190, 90, "Peers", "cablestore, cabin, cable.js:", "posts in any order"),
        box(20, 300, 190, 90, "Archives", "weeks of the past,", "from a control node"),
        box(290, 20, 300, 380, kind="store"),
        words(440, 50, "The store", "title"),
        box(315, 70, 250, 70, "Posts", "verified, each stored once"),
        words(440, 172, "one atomic write", "small"),
        words(440, 215, "Views", "title"),
        *[box(315, 228 + 32 * at, 250, 27, kind="view") for at in range(len(VIEWS))],
        *[words(440, 247 + 32 * at, view, "small") for at, view in enumerate(VIEWS)],
        box(650, 30, 190, 90, "Your client", "pages of messages,", "events as they happen"),
        box(650, 165, 190, 90, "Peers", "answers, and what", "either store lacks"),
        box(650, 300, 190, 90, "Exports", "a backup; Spark makes", "all views again"),
        arrow((210, 75), (310, 95)),
        arrow((210, 210), (310, 110)),
        arrow((210, 345), (310, 125)),
        arrow((440, 178), (440, 196)),
        arrow((565, 240), (645, 75)),
        arrow((565, 290), (645, 210)),
        arrow((565, 345), (645, 345)),
    ]
    marker = '<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
        "<title>Posts, views, clients and peers</title>\n"
        f"<style>{STYLE}</style>\n"
        f'<defs>{marker}<polygon points="0 0, 8 4, 0 8" fill="#2b6cb0"/></marker></defs>\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" style="fill: #f7f9fb; stroke: none"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def recording() -> str:
    """Run the demo, and draw its output without the long middle part."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "cablestore", "demo"]
        told = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, env={"COLUMNS": "120"})
    begin, _, rest = told.stdout.partition("\n6. ")
    shown = [*begin.splitlines(), "", "(6 to 12 print more: check, rebuild, export, reindex)", "Summary:"]
    shown += rest.partition("Summary:\n")[2].splitlines()
    console = Console(record=True, width=120, file=io.StringIO(), force_terminal=True)
    console.print(Text("$ cablestore demo", style="bold green"))
    for line in shown:
        console.print(Text(line, style="bold" if re.match(r"\d+\. |Summary", line) else ""), soft_wrap=True)
    return console.export_svg(title="cablestore demo", unique_id="demo")


if __name__ == "__main__":
    (HERE / "overview.svg").write_text(overview())
    (HERE / "demo.svg").write_text(recording())
