"""Runner of all benchmarks, each in its own process: `run.py [--quick] [SCRIPT...]`, by default all scripts.

`CABLESTORE_DATA` may name a folder with real data.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    """Run them in turn."""
    quick = "--quick" in sys.argv
    wanted = [name for name in sys.argv[1:] if name != "--quick"]
    logs = Path(os.environ.get("CABLESTORE_DATA", "data")) / "irc" / "raku.tar.xz"
    plan = [["ingest.py"], ["answering.py"], ["scale.py", "20000" if quick else "1000000"]]
    plan.append(["channels.py", "2000" if quick else "1000000"])
    plan.append(["client.py"])
    plan.append(["export.py"] + (["20000"] if quick else []))
    plan += [["peers.py", *(["20000"] if quick else [])], ["fairness.py"]]
    plan.append(["backup.py"] + (["20000"] if quick else []))
    plan.append(["archive.py"] + (["20000"] if quick else []))
    plan.append(["aio.py"] + (["2000"] if quick else []))
    plan.append(["search.py"] + (["20000"] if quick else []))
    plan += [["torrent.py"], ["content.py"]]
    plan += [[name, "20000" if quick else "1000000"] for name in ("reconcile.py", "reconcile_store.py")]
    plan.append(["terminal_client.py", "20000" if quick else "1000000"])
    plan.append(["sds.py", "20000" if quick else "1000000"])
    plan.append(["reindex.py", *(["20000"] if quick else ["100000", "1000000", "2000000"])])
    plan.append(["importing.py", str(logs)] if logs.exists() and not quick else ["importing.py"])
    for name, *arguments in plan:
        if wanted and name not in wanted:
            continue
        subprocess.run([sys.executable, str(HERE / name), *arguments], check=True)
        print(flush=True)


if __name__ == "__main__":
    main()
