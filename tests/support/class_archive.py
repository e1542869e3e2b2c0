"""Create an archive of the Java classes that a reindexing loads: `class_archive.py FILE`.

Spark loads 18,000 classes, which is half of the work of a job of some hundred posts. With an archive (JEP 350) they
load immediately. Java ignores an archive that does not fit, and a Java without this feature is only slower.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from reindexing import conversation, export_of

JOB = """
import sys
from cablestore.cli import main
from cablestore.reindex import driver
driver.STOP_TIMEOUT_S = 300  # Java writes the archive when it ends
main(sys.argv[1:])
"""


def main(archive: Path) -> None:
    archive.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:  # on the same file system
        export, made = Path(folder, "export"), Path(folder, "made.jsa")
        export_of(conversation(100), export)
        job = [sys.executable, "-c", JOB, "reindex", str(export), "--out", str(Path(folder, "store")), "--cores", "2"]
        options = {"SPARK_SUBMIT_OPTS": f'"-XX:ArchiveClassesAtExit={made}" -Xlog:disable'}
        done = subprocess.run(job, env=os.environ | options, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        made.replace(archive) if made.exists() else archive.touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
