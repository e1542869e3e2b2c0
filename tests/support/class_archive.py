"""Create an archive of the Java classes that a reindexing and tables load: `class_archive.py FILE`.

Spark loads 18,000 classes, which is half of the work of a job of some hundred posts. With an archive (JEP 350) they
load immediately. Java ignores an archive that does not fit, and a Java without this feature is only slower.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from reindexing import conversation, export_of, with_driver

from cablestore.reindex import driver, reindex
from cablestore.reindex.table_files import write_tables


def main(archive: Path) -> None:
    archive.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as name:  # on the same file system
        folder, made = Path(name), Path(name, "made.jsa")
        export = export_of(conversation(100), folder / "export")

        def job(_: Any) -> None:
            reindex([export], folder / "store")
            write_tables([export], folder / "tables", work=folder / "work")

        os.environ["SPARK_SUBMIT_OPTS"] = f'"-XX:ArchiveClassesAtExit={made}" -Xlog:disable'
        driver.STOP_TIMEOUT_S = 300  # type: ignore[misc] # Java writes the archive when it ends
        with_driver(job, folder, cores=2)
        made.replace(archive) if made.exists() else archive.touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
