"""This package as a file, which Spark sends to workers that lack it."""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import cablestore
from cablestore.reindex.queries import is_connect, run_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROBES: Final = 8


def send_package(spark: SparkSession) -> bool:
    """Send this package to the workers unless they have it in this version. Return True if it was sent.

    The file does not contain the library in C. Without it, tasks verify the signatures of archives more slowly.
    """
    if not is_connect(spark) and str(spark.sparkContext.master).startswith("local"):
        return False  # local workers run this program's Python, which has the package
    # The task is pickled by value, because it must run where the package is missing.
    table = spark.range(0, _PROBES, 1, _PROBES).mapInArrow(_probe(), "version string")
    found = {row.version for row in run_query(spark, "look for this package", table.collect)}
    if found == {cablestore.__version__}:
        return False
    with ExitStack() as stack:
        if is_connect(spark):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cablestore-"))
        else:
            # The driver serves the file while its context exists.
            from pyspark import SparkFiles  # noqa: PLC0415 - needs the extra cablestore[reindex]

            folder = tempfile.mkdtemp(dir=SparkFiles.getRootDirectory())
        spark.addArtifacts(str(write_package(Path(folder))), pyfile=True)
    return True


def write_package(folder: Path) -> Path:
    """Write this package's modules to a zip file. Its name and bytes depend only on the modules."""
    files = dict(_files())
    digest = hashlib.blake2b(b"\0".join(name.encode() + b"\0" + files[name] for name in sorted(files)), digest_size=8)
    path = folder / f"cablestore-{digest.hexdigest()}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name), files[name])
    return path


def _files() -> Iterator[tuple[str, bytes]]:
    """Yield the path and content of each module. Links to folders, which a source tree may contain, are followed."""
    folders = [Path(cablestore.__path__[0])]
    while folders:
        for path in folders.pop().iterdir():
            if path.is_dir():
                folders.append(path)
            elif path.suffix == ".py":
                yield f"cablestore/{path.relative_to(cablestore.__path__[0]).as_posix()}", path.read_bytes()


def _probe() -> Any:
    """Return a task that returns the version of this package on the worker, or "" if it is missing."""

    def probe(batches: Any) -> Any:
        import re  # noqa: PLC0415 - as above
        from importlib.util import find_spec  # noqa: PLC0415 - it runs on the worker, without this module

        import pyarrow as pa  # noqa: PLC0415 - as above

        # Not imported, because Spark reuses the process for tasks that import the sent package.
        spec = find_spec("cablestore")
        loader: Any = spec and spec.loader  # of a folder or of a zip file
        version = re.search(
            r'^__version__\b.* = "(.+)"$', loader.get_source("cablestore") if loader else "", re.MULTILINE
        )
        for batch in batches:
            yield pa.record_batch({"version": [version[1] if version else ""] * batch.num_rows})

    return probe
