"""Draws the results of the queries in how-to/tables.md, for a year of an invented community.

`make pictures` runs it. The community is always the same.
"""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.sax.saxutils import escape

import duckdb

from cablestore import LEGACY, Body, CableStore, Delete, Identity, Info, Join, Leave, Post, Text, Topic, encode_post
from cablestore.reindex.table_files import write_tables

HERE: Final = Path(__file__).parent
PAGE: Final = HERE.parent / "how-to" / "tables.md"
FIRST_DAY: Final = datetime(2024, 1, 1, tzinfo=UTC)
DAYS: Final = 366
CHANNELS: Final = ("garden", "kitchen", "workshop", "harbour")
WORDS: Final = [
    "water",
    "seeds",
    "bread",
    "knife",
    "boats",
    "rope",
    "weather",
    "tomatoes",
    "tomorrow",
    "evening",
    "market",
    "repair",
    "paint",
    "window",
    "neighbour",
    "soup",
    "lantern",
    "bicycle",
    "compost",
    "festival",
]

# --- the community ---------------------------------------------------------------------------------


class Member(NamedTuple):
    """Person of the community: first and last day, usual hour of the day, and posts per day."""

    name: str
    first_day: int
    last_day: int
    hour: float
    posts_a_day: float

    @property
    def identity(self) -> Identity:
        """The key of this member, derived from the name."""
        return Identity.derive("a community's year", self.name)


MEMBERS: Final = (
    Member("ada", 0, 366, 8.5, 2.2),
    Member("bea", 0, 366, 19.5, 1.6),
    Member("cem", 0, 250, 12.5, 1.4),
    Member("dov", 10, 366, 20.5, 1.1),
    Member("eli", 45, 366, 9.0, 1.0),
    Member("fay", 70, 120, 21.0, 2.0),
    Member("gil", 95, 366, 18.0, 0.9),
    Member("hal", 130, 145, 13.0, 1.8),
    Member("ivy", 150, 366, 7.5, 1.5),
    Member("jon", 200, 366, 20.0, 0.7),
    Member("kim", 240, 366, 12.0, 1.2),
    Member("lou", 300, 330, 22.0, 1.0),
)


def community(days: int = DAYS) -> Iterator[Post]:
    """Yield the posts of a year, or of the first days of the year, in order of time."""
    rng = random.Random(2024)  # noqa: S311 - no secret
    latest: dict[str, Post] = {}
    own: dict[str, list[Post]] = {member.name: [] for member in MEMBERS}
    for moment, member in sorted(_moments(rng, days), key=lambda found: found[0]):
        is_new = not own[member.name]
        channel = CHANNELS[min(int(rng.expovariate(0.9)), len(CHANNELS) - 1)]

        def sign(body: Body, moment: datetime = moment, member: Member = member, channel: str = channel) -> Post:
            links = (latest[channel].hash,) if channel in latest and not isinstance(body, Delete | Info) else ()
            timestamp_ms = int(moment.timestamp() * 1000)
            post = encode_post(body, links=links, timestamp_ms=timestamp_ms, identity=member.identity, dialect=LEGACY)
            if not isinstance(body, Delete | Info):
                latest[channel] = post
            return post

        if is_new:
            yield sign(Info.of(name=member.name))
            yield sign(Join(channel), moment + timedelta(seconds=1))
        text = sign(Text(channel, _sentence(rng)), moment + timedelta(seconds=rng.randrange(5, 1000)))
        own[member.name].append(text)
        yield text
        if rng.random() < 0.02:
            yield sign(Delete((rng.choice(own[member.name][-3:]).hash,)), moment + timedelta(minutes=20))
        if rng.random() < 0.01:
            yield sign(Topic(channel, f"{moment:%B}: {_sentence(rng)}"), moment + timedelta(minutes=25))
        if (moment - FIRST_DAY).days == member.last_day - 1 and member.last_day < days:
            yield sign(Leave(channel), moment + timedelta(minutes=30))


def _moments(rng: random.Random, days: int) -> Iterator[tuple[datetime, Member]]:
    """Yield the times of posts: around the hour of each member, more in summer, less at weekends."""
    for member in MEMBERS:
        for day in range(member.first_day, min(member.last_day, days)):
            date = FIRST_DAY + timedelta(days=day)
            season = 1 + 0.4 * (4 <= date.month <= 9)
            much = member.posts_a_day * season * (0.5 if date.weekday() >= 5 else 1)
            for _ in range(int(much + rng.random())):
                yield date + timedelta(hours=rng.gauss(member.hour, 1.8) % 24), member


def _sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, weights=range(len(WORDS), 0, -1), k=rng.randrange(3, 14)))


def make_tables(folder: Path, days: int = DAYS) -> CableStore:
    """Write the tables of the community to `folder`/tables, and return a store with its posts."""
    store = CableStore.in_memory()
    store.ingest([post.raw for post in community(days)], verify=False)
    store.export(folder / "OUT")
    write_tables([folder / "OUT"], folder / "tables", work=folder / "work")
    return store


# --- the queries -----------------------------------------------------------------------------------


def queries() -> dict[str, str]:
    """Return the page's queries by their headings. The first block defines the views that they need."""
    found = {}
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        heading = section.partition("\n")[0]
        for block in re.findall(r"^```sql\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
            found[heading] = block
    return found


def answers(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Run all queries on the tables in a folder, and return the rows of each query by its heading."""
    found = {}
    with duckdb.connect() as connection:
        for heading, query in queries().items():
            told = connection.execute(query.replace("'tables/", f"'{folder / 'tables'}/"))
            names = [column[0] for column in told.description or ()]
            found[heading] = [dict(zip(names, row, strict=True)) for row in told.fetchall()]
    return found


# --- drawing ---------------------------------------------------------------------------------------

STYLE: Final = """
text { font: 13px system-ui, sans-serif; fill: #1c2733; text-anchor: middle }
.title { font-weight: 600; font-size: 15px } .small { font-size: 11px; fill: #44525f }
.left { text-anchor: end }
"""
WIDTH: Final = 720
COLOURS: Final = ("#2b6cb0", "#e08a3c")


def words(x: float, y: float, text: object, kind: str = "") -> str:
    """Return a line of text, centred at x."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(str(text))}</text>'


def bar(x: float, y: float, width: float, height: float, colour: str, opacity: float = 1) -> str:
    """Return a rectangle."""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {place} fill="{colour}" fill-opacity="{opacity:.2f}"/>'


def picture(title: str, height: int, parts: Sequence[str]) -> str:
    """Return a picture with a title."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n"
        + "\n".join([bar(0, 0, WIDTH, height, "#f7f9fb"), words(WIDTH / 2, 26, title, "title"), *parts])
        + "\n</svg>\n"
    )


def bars(title: str, rows: Sequence[dict[str, Any]], *series: str) -> str:
    """Draw columns of numbers for each row's month, one colour for each series."""
    most = max(row[name] for row in rows for name in series)
    step = (WIDTH - 60) / len(rows)
    parts = [words(100 + 130 * number, 48, name, "small") for number, name in enumerate(series)]
    parts += [bar(50 + 130 * number, 40, 10, 10, COLOURS[number]) for number in range(len(series))]
    for at, row in enumerate(rows):
        left, width = 30 + at * step, (step - 10) / len(series)
        parts.append(words(left + step / 2 - 5, 252, row["month"], "small"))
        for number, name in enumerate(series):
            size = 160 * row[name] / most
            parts.append(bar(left + number * width, 235 - size, width - 2, size, COLOURS[number]))
            parts.append(words(left + (number + 0.5) * width - 1, 230 - size, row[name], "small"))
    return picture(title, 265, parts)


def hours(title: str, rows: Sequence[dict[str, Any]]) -> str:
    """Draw a square for each hour of the week, darker for more messages."""
    most = max(row["messages"] for row in rows)
    side = (WIDTH - 90) / 24
    parts = [
        words(50, 60 + (day + 0.7) * side, name, "small left")
        for day, name in enumerate(["Mo", "Tu", "We", "Th", "Fr", "Sa", "Su"])
    ]
    parts += [words(60 + (hour + 0.5) * side, 54, hour, "small") for hour in range(24)]
    for row in rows:
        x, y = 60 + row["hour"] * side, 60 + (row["day"] - 1) * side
        parts.append(bar(x, y, side - 2, side - 2, COLOURS[0], row["messages"] / most))
    return picture(title, int(75 + 7 * side), parts)


PICTURES: Final[dict[str, tuple[str, Callable[[list[dict[str, Any]]], str]]]] = {
    "1. How much is said": (
        "year-months.svg",
        lambda rows: bars("Messages and people by month", rows, "messages", "people"),
    ),
    "2. When people write": ("year-hours.svg", lambda rows: hours("Messages by hour of the week, UTC", rows)),
    "3. Who comes, and who stays": (
        "year-newcomers.svg",
        lambda rows: bars("Newcomers by month", rows, "newcomers", "stayed"),
    ),
}
"""Pictures by the heading of their query."""


def draw(folder: Path, out: Path) -> None:
    """Draw all pictures of the tables in a folder."""
    found = answers(folder)
    for heading, (name, make) in PICTURES.items():
        (out / name).write_text(make(found[heading]), encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        make_tables(Path(scratch)).close()
        draw(Path(scratch), HERE)
