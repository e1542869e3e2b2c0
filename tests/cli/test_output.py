"""Output of commands: numbers, times, sizes and tables as text."""

from __future__ import annotations

from typing import Any

import pytest

from cablestore.cli.output import Output, colour_of, local_time, no_problems, size
from cablestore.cli.status import two_units
from cablestore.plurals import counted


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 kB"),
        (999_940, "999.9 kB"),
        (10**6, "1.0 MB"),
        (10**9, "1.0 GB"),
        (12_345 * 10**9, "12345.0 GB"),
    ],
)
def test_a_size_has_the_largest_unit_that_is_not_too_large(size_bytes: int, text: str) -> None:
    assert size(size_bytes) == text


@pytest.mark.parametrize(
    ("passed_s", "text"),
    [
        (-10, "0s"),
        (0, "0s"),
        (59, "59s"),
        (60, "1m 0s"),
        (119, "1m 59s"),
        (3_600, "1h 0m"),
        (2 * 3_600 - 1, "1h 59m"),
        (86_400, "1d 0h"),
        (86_400 * 3 + 5 * 3_600 - 1, "3d 4h"),
    ],
)
def test_a_duration_has_its_two_largest_units(passed_s: int, text: str) -> None:
    assert two_units(passed_s) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 posts"), (1, "1 post"), (2, "2 posts"), (12_345, "12,345 posts"), (-1, "-1 posts")]
)
def test_a_count_has_a_plural_except_of_one(number: int, text: str) -> None:
    assert counted(number, "post") == text
    assert counted(number, "entry", "entries").endswith("entry") is (number == 1)


def test_a_time_after_the_year_9999_is_a_number() -> None:
    out = Output(as_json=False)
    assert out.when(253_402_400_000_000) == "253402400000000 ms"
    assert local_time(10**30) is None
    moment = local_time(1_700_000_000_000)
    assert moment is not None
    assert out.when(1_700_000_000_000) == f"{moment:%Y-%m-%d %H:%M}"
    assert out.when(1_700_000_000_000, "%S") == "20"


def test_a_colour_depends_on_the_first_byte_of_a_key() -> None:
    colours = [colour_of(bytes([number])) for number in range(9)]
    assert len(set(colours)) == 9
    assert colour_of(bytes([9, 1])) == colours[0]


def test_a_verdict_says_whether_signatures_were_verified() -> None:
    assert no_problems(signatures=True) == "no problems found"
    assert no_problems(signatures=False) == "no problems found; signatures not verified (use --signatures)"


def test_a_table_aligns_numbers_and_prints_missing_values(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, Any]] = [
        {"name_of": "a", "count": 1_234, "is_new": True},
        {"name_of": "b\x1b", "count": None, "is_new": False},
    ]
    Output(as_json=False).table(("name_of", "count", "is_new"), rows)
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "name of  count  is new",
        "a        1,234    True",
        "b\\u{1b}      -   False",
    ]
    Output(as_json=True).table(("count",), rows[:1])
    assert capsys.readouterr().out == '{"name_of": "a", "count": 1234, "is_new": true}\n'


def test_text_is_for_people_and_fields_are_for_json(capsys: pytest.CaptureFixture[str]) -> None:
    for out in (Output(as_json=False), Output(as_json=True), Output(as_json=False, quiet=True)):
        out.say("x" * 200, number=1)
        out.say("without fields")
        out.note("a note")
    found = capsys.readouterr()
    assert found.out == "x" * 200 + '\nwithout fields\n{"number": 1}\n'
    assert found.err == "a note\n"


def test_progress_is_not_drawn_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with Output(as_json=False).progress("reading", 3) as advance, Output(as_json=False).stages() as show:
        advance(2)
        show("load", 1, 2)
        show("load", 2, 2)
    assert capsys.readouterr() == ("", "")
