"""Runner of all benchmarks, each in its own process: `run.py [--quick] [SCRIPT...]`, by default all scripts.

`CABLESTORE_DATA` may name a folder with real data.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from common import TerminatedError, refusing

HERE = Path(__file__).parent


def plan(*, quick: bool) -> dict[str, list[str]]:
    """Return the scripts in order, and the arguments of each."""
    logs = Path(os.environ.get("CABLESTORE_DATA", "data")) / "irc" / "raku.tar.xz"
    small = ["20000"] if quick else []
    million = ["20000"] if quick else ["1000000"]
    return {
        "ingest.py": [],
        "answering.py": [],
        "scale.py": million,
        "channels.py": ["2000"] if quick else ["1000000"],
        "client.py": [],
        "moderation.py": ["2000"] if quick else [],
        "export.py": small,
        "peers.py": small,
        "fairness.py": [],
        "stranger.py": [],
        "networks.py": ["--posts", "2000"] if quick else [],
        "backup.py": small,
        "maintenance.py": small,
        "archive.py": small,
        "aio.py": ["2000"] if quick else [],
        "remote.py": ["2000"] if quick else [],
        "starting.py": ["3"] if quick else [],
        "search.py": small,
        "inspection.py": small,
        "torrent.py": [],
        "content.py": [],
        "reconcile.py": million,
        "reconcile_store.py": million,
        "terminal_client.py": million,
        "sds.py": million,
        "sds_flood.py": ["10"] if quick else [],
        "reindex.py": ["20000"] if quick else ["100000", "1000000", "2000000"],
        "importing.py": [str(logs)] if logs.exists() and not quick else [],
    }


def run(command: list[str]) -> int:
    """Run a command. When this process is interrupted, the command ends first and removes its files."""
    with subprocess.Popen(command) as process:
        try:
            return process.wait()
        except KeyboardInterrupt as interruption:
            if isinstance(interruption, TerminatedError):  # a Ctrl-C reaches the command too
                process.terminate()
            process.wait()
            raise


def main() -> None:
    """Run the scripts in turn."""
    parser = argparse.ArgumentParser(description="Run benchmarks, each in its own process.")
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help="only these, by default all")
    parser.add_argument("--quick", action="store_true", help="at sizes that take minutes")
    given = parser.parse_args()
    scripts = plan(quick=given.quick)
    with refusing():
        unknown = [name for name in given.scripts if name not in scripts]
        if unknown:
            raise ValueError(f"{', '.join(unknown)} measures nothing. Name some of: {', '.join(sorted(scripts))}")
    for name, arguments in scripts.items():
        if not given.scripts or name in given.scripts:
            if (status := run([sys.executable, str(HERE / name), *arguments])) != 0:
                sys.exit(f"{name} ended with status {status}")
            print(flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("run.py: interrupted")
