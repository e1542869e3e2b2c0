"""The binding to LevelDB: plyvel, or plyvel-next where plyvel is not installed."""

from __future__ import annotations

import runpy
import sys

import pytest

from cablestore.index import leveldb_binding


def test_plyvel_next_replaces_a_missing_plyvel(monkeypatch: pytest.MonkeyPatch) -> None:
    other = leveldb_binding.plyvel
    monkeypatch.setitem(sys.modules, "plyvel", None)  # imports raise ModuleNotFoundError
    monkeypatch.setitem(sys.modules, "plyvel_next", other)
    assert runpy.run_path(leveldb_binding.__file__)["plyvel"] is other
