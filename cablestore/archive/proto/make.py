"""Generate the modules of archive documents from their .proto files. Run by `make proto`; needs grpcio-tools."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]
"""The folder of the package: the generated modules import each other by paths from here."""


def make(into: Path = ROOT) -> None:
    """Write a `_pb2.py` and a `_pb2.pyi` for each .proto file, at its path below the folder `into`.

    Exits with protoc's status if it refuses a file; protoc prints the reason on stderr.
    """
    sources = [str(path.relative_to(ROOT)) for path in sorted(FOLDER.glob("*.proto"))]
    known = str(files("grpc_tools") / "_proto")
    status = protoc.main(["protoc", f"-I{ROOT}", f"-I{known}", f"--python_out={into}", f"--pyi_out={into}", *sources])
    if status:
        sys.exit(status)


if __name__ == "__main__":
    make()
