"""Draws week.svg from the samples of `bench/week.py`: `served_week.py SAMPLES.json`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from year import COLOURS, HERE, WIDTH, bar, picture, words

LEFT: Final = 60
RIGHT: Final = WIDTH - 20
PANEL_HEIGHT: Final = 110
PANEL_EVERY: Final = 150
TOP: Final = 70
MARKS: Final = {"kill": "#c53030", "upgrade": "#2f855a", "disk full": "#6b46c1"}
"""Colours of events by the prefix of their names."""

Sample = dict[str, Any]


class Panel(NamedTuple):
    """Diagram of values over time, with a line for each name."""

    title: str
    lines: dict[str, Callable[[Sample], float]]


def of_server(server: str, name: str) -> Callable[[Sample], float]:
    """Return a function that reads a value of a server in a sample."""
    return lambda sample: float(sample[server][name])


def of_both(name: str) -> dict[str, Callable[[Sample], float]]:
    """Return the lines of a value, one line for each server."""
    return {f"server {server}": of_server(server, name) for server in "ab"}


PANELS: Final = (
    Panel("Private memory, MB", of_both("private_mb")),
    Panel("Size of the store, MB", of_both("disk_mb")),
    Panel("Posts", of_both("posts")),
    Panel("Durations of requests, ms", {"p99": lambda s: float(s["p99_ms"]), "p50": lambda s: float(s["p50_ms"])}),
)


def line(points: Sequence[tuple[float, float]], colour: str) -> str:
    """Return a line through points."""
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def panel(number: int, drawn: Panel, samples: Sequence[Sample], duration_s: float) -> list[str]:
    """Return the parts of a panel: its title, its axes and its lines. Samples may lack values."""
    top = TOP + PANEL_EVERY * number
    bottom = top + PANEL_HEIGHT
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in drawn.lines}
    for sample in samples:
        for name, value in drawn.lines.items():
            try:
                found[name].append((sample["at_s"], value(sample)))
            except KeyError:  # a server did not answer, or no request ended
                continue
    most = max((value for points in found.values() for _, value in points), default=1.0)
    parts = [bar(LEFT, top, RIGHT - LEFT, PANEL_HEIGHT, "#ffffff"), words(WIDTH / 2, top - 8, drawn.title)]
    parts += [
        words(LEFT - 6, bottom - share * (PANEL_HEIGHT - 10) + 4, f"{share * most:,.0f}", "small left")
        for share in (0, 0.5, 1)
    ]
    for at, (name, points) in enumerate(found.items()):
        places = [
            (LEFT + (RIGHT - LEFT) * at_s / duration_s, bottom - (PANEL_HEIGHT - 10) * value / most)
            for at_s, value in points
        ]
        parts.append(line(places, COLOURS[at]))
        parts.append(bar(RIGHT - 150 + 80 * at, top - 17, 10, 10, COLOURS[at]))
        parts.append(words(RIGHT - 110 + 80 * at, top - 8, name, "small"))
    return parts


def events(found: Sequence[dict[str, Any]], duration_s: float) -> list[str]:
    """Return a vertical line for each event, and the meanings of the colours."""
    height = PANEL_EVERY * (len(PANELS) - 1) + PANEL_HEIGHT
    parts = []
    for event in found:
        for name, colour in MARKS.items():
            if event["name"].startswith(name):
                parts.append(bar(LEFT + (RIGHT - LEFT) * event["at_s"] / duration_s, TOP, 1, height, colour, 0.6))
    for number, (name, colour) in enumerate(MARKS.items()):
        parts.append(bar(LEFT + 110 * number, 33, 3, 12, colour))
        parts.append(words(LEFT + 40 + 110 * number, 43, name, "small"))
    return parts


def draw(figures: dict[str, Any]) -> str:
    """Return the picture of a run."""
    duration_s, samples = figures["duration_s"], figures["samples"]
    parts = [part for number, drawn in enumerate(PANELS) for part in panel(number, drawn, samples, duration_s)]
    bottom = TOP + PANEL_EVERY * (len(PANELS) - 1) + PANEL_HEIGHT
    parts += [words(LEFT + (RIGHT - LEFT) * day / 7, bottom + 18, f"day {day}", "small") for day in range(8)]
    title = f"A week of two servers in {duration_s / 60:.0f} minutes"
    return picture(title, bottom + 30, [*parts, *events(figures["events"], duration_s)])


def main() -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("samples", type=Path, help="the file that `week.py --json` wrote")
    parser.add_argument("--out", type=Path, default=HERE / "week.svg", help="the picture")
    given = parser.parse_args()
    given.out.write_text(draw(json.loads(given.samples.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
