"""Work is distributed among the usable cores of the process, not among those of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import LIMIT_S

from cablestore.index.cores import usable_cores

ROOT = Path(__file__).parents[2]

ON_ONE_CORE = """
import os
from cablestore.index.cores import usable_cores
from cablestore.index.processes import process_pool
from cablestore.index.signatures import SignatureVerifier

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
with process_pool(None) as pool:
    workers = {pool.submit(os.getpid).result() for _ in range(20)}
    print(usable_cores(), pool._max_workers, len(workers), SignatureVerifier().is_concurrent)
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="a process cannot choose its cores here")
def test_a_process_on_one_core_starts_one_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ON_ONE_CORE], capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "1", "1", "False"]


def test_only_one_module_counts_cores() -> None:
    assert usable_cores() >= 1
    modules = [file for folder in ("cablestore", "reindex", "views") for file in (ROOT / folder).rglob("*.py")]
    counting = {file.name for file in modules if "cpu_count" in file.read_text() or "affinity" in file.read_text()}
    assert counting == {"cores.py"}
