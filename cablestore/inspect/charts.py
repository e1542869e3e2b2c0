"""Charts as SVG: posts per day as heat maps, posts per period and shares as bars."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup

from cablestore.plurals import counted

_DAY_MS: Final = 86_400_000
_WEEKS: Final = 53
_CELL: Final = 13
_BAR_WIDTH: Final = 7
_HEIGHT: Final = 60
_LINE_WIDTH: Final = 910
_LEVELS: Final = 4


def utc(timestamp_ms: int, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Format a time in UTC with the format `form`. Return the number of milliseconds if it is after the year 9999."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"


def _level(count: int, most: int) -> int:
    """Return the shade for `count`: 0 for no posts, then 1 to 4. `most` is the highest count of the chart."""
    return 0 if count == 0 else 1 + (_LEVELS - 1) * (count - 1) // max(1, most - 1)


def calendar(days: list[tuple[int, int]]) -> Markup:
    """Return a heat map of the year up to the latest post, given (day, posts). Each column is a week from Monday."""
    counts = {day_ms // _DAY_MS: count for day_ms, count in days}
    last = max(counts, default=0)
    monday = (last + 3) // 7 * 7 - 3 - 7 * (_WEEKS - 1)
    shown = {day: counts.get(day, 0) for day in range(max(monday, 0), last + 1)}
    most = max(shown.values(), default=0)
    cells = []
    for day, count in shown.items():
        x, y = (day - monday) // 7 * _CELL, (day - monday) % 7 * _CELL
        title = f"{utc(day * _DAY_MS, '%Y-%m-%d')}: {counted(count, 'post')}"
        cells.append(
            f'<rect class="q{_level(count, most)}" x="{x}" y="{y}" width="11" height="11"><title>{title}</title></rect>'
        )
    summary = f"Posts per day in the year up to {utc(last * _DAY_MS, '%Y-%m-%d')}, at most {most:,} on a day"
    return _svg(_WEEKS * _CELL, 7 * _CELL, summary, cells)


def day_line(days: list[tuple[int, int]], start_ms: int, end_ms: int, label: str) -> Markup:
    """Return a heat map, in one line, of `days`, (day, posts), in the period from `start_ms` to before `end_ms`."""
    number = max(1, -(-(end_ms - start_ms) // _DAY_MS))
    width = _LINE_WIDTH / number
    most = max((count for _, count in days), default=0)
    cells = [
        f'<rect class="q{_level(count, most)}" x="{(day_ms - start_ms) / _DAY_MS * width:.1f}" y="0" '
        f'width="{max(1.0, width - 0.5):.1f}" height="14">'
        f"<title>{utc(day_ms, '%Y-%m-%d')}: {counted(count, 'post')}</title></rect>"
        for day_ms, count in days
    ]
    return _svg(_LINE_WIDTH, 14, f"Posts per day: {label}", cells)


def bars(
    periods: Iterable[tuple[int, int, int]],
    label: str,
    href: Callable[[int, int], str] | None = None,
    chosen: tuple[int | None, int | None] = (None, None),
) -> Markup:
    """Return a bar chart with a bar for each (start, end, posts) in `periods`.

    With `href`, which returns the address for a start and end, each bar is a link. Bars outside the period `chosen` are
    pale; None means no bound.
    """
    found = list(periods)
    if not found:
        return Markup()
    first_ms, step_ms = found[0][0], found[0][1] - found[0][0]
    most = max(count for _, _, count in found)
    after_ms, before_ms = chosen
    drawn = []
    for start_ms, end_ms, count in found:
        height = max(2, round(count / most * _HEIGHT))
        x = (start_ms - first_ms) // step_ms * _BAR_WIDTH
        title = f"{utc(start_ms, '%Y-%m-%d %H:%M')}: {counted(count, 'post')}"
        is_in = (after_ms is None or end_ms > after_ms) and (before_ms is None or start_ms < before_ms)
        rect = (
            f'<rect class="{"bar" if is_in else "bar out"}" x="{x}" y="{_HEIGHT - height}" width="{_BAR_WIDTH - 1}" '
            f'height="{height}"><title>{title}</title></rect>'
        )
        if href is not None:
            rect = f'<a href="{href(start_ms, end_ms)}" aria-label="{title}" tabindex="-1">{rect}</a>'
        drawn.append(rect)
    width = ((found[-1][0] - first_ms) // step_ms + 1) * _BAR_WIDTH
    return _svg(width, _HEIGHT, label, drawn, is_picture=href is None)


def share(part: int, whole: int) -> Markup:
    """Return a small bar whose filled width is `part` / `whole`."""
    width = round(100 * part / whole, 1) if whole else 0
    return Markup(  # noqa: S704 - numbers only
        f'<svg class="share" viewBox="0 0 100 8" aria-hidden="true" focusable="false"><rect class="bar" width="{width}" '
        'height="8"/></svg>'
    )


def _svg(width: int, height: int, label: str, shapes: list[str], *, is_picture: bool = True) -> Markup:
    """Return an SVG of `shapes`, which must not contain text of users. `label` is escaped.

    `is_picture` is False if the shapes contain links.
    """
    role = "img" if is_picture else "group"
    return Markup('<svg class="chart" role="{}" aria-label="{}" viewBox="0 0 {} {}" width="{}" height="{}">').format(
        role, label, width, height, width, height
    ) + Markup("".join(shapes) + "</svg>")  # noqa: S704 - numbers and dates only
