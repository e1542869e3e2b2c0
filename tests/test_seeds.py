"""Randomness in a test is reproducible, alone and in any order of tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from folders import SUPPORT, TESTS
from waiting import LIMIT_S

WRITES_DOWN = """
import json, os, random, secrets, sys, uuid
from pathlib import Path
import pytest
from handshakes import channel
from hypothesis import given, strategies as st
from cablestore import CableStore, Identity

def note(name, *found):
    with open("found", "a") as file:
        file.write(json.dumps([name, *found]) + "\\n")

@pytest.fixture(scope="module")
def shared():
    return os.urandom(8).hex()

def test_one(shared, rng):
    own = [random.random(), rng.random(), secrets.token_hex(8), uuid.uuid4().hex, os.urandom(8).hex()]
    note("one", shared, *own, Identity.generate().seed.hex(), channel().start().hex())

def test_other(shared, tmp_path):
    with CableStore.open(tmp_path) as store:
        note("other", shared, random.random(), store.identity.seed.hex())

@given(st.binary(min_size=8))
def test_given(data):
    note("given", data.hex())
"""


def found(folder: Path, *tests: str) -> dict[str, list[Any]]:
    (folder / "found").unlink(missing_ok=True)
    (folder / "test_it.py").write_text(WRITES_DOWN)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", *(f"test_it.py::{test}" for test in tests)]
    environment = os.environ | {"PYTHONPATH": f"{TESTS}{os.pathsep}{SUPPORT}"}
    environment.pop("CABLESTORE_SOAK", None)
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout
    noted: dict[str, list[Any]] = {}
    for line in (folder / "found").read_text().splitlines():
        name, *values = json.loads(line)
        noted.setdefault(name, []).append(values)
    return noted


@pytest.mark.thorough
def test_the_randomness_of_a_test_depends_only_on_its_name(tmp_path: Path) -> None:
    whole = found(tmp_path, "test_one", "test_other", "test_given")
    assert len(whole["given"]) > 50
    assert len({*whole["one"][0]}) == len(whole["one"][0])
    assert found(tmp_path, "test_given", "test_other", "test_one") == whole
    assert found(tmp_path, "test_other") == {"other": whole["other"]}
