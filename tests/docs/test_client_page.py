"""The how-to guide for clients: its programs run, and its table lists every type of change."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from documents import blocks
from folders import ROOT

from cablestore.store.changes import Change

PAGE = "docs/how-to/write-a-client.md"


def test_programs_of_the_client_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for program in blocks(PAGE):
        exec(compile(program, PAGE, "exec"), names)
    names["store"].close()  # type: ignore[attr-defined] # a CableStore
    printed = capfd.readouterr().out
    rejection = (
        "invalid argument digest: expected 32 bytes, got a str of 64 characters. Use bytes.fromhex for hex digits"
    )
    assert printed == f"['hello']\ndefault 0 0 hello\n[]\nI wanted to ['default'] [80, 24]\n{rejection}\n"


def test_the_table_lists_each_type_of_change() -> None:
    rows = re.findall(r"^\| (`.*?`) \|", (ROOT / PAGE).read_text(), flags=re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == {kind.__name__ for kind in get_args(Change)}
