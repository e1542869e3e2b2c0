"""Generate the modules of archive documents from their .proto files. Run by `make proto`; needs grpcio-tools.

protoc writes a check into each module that refuses any protobuf older than protoc itself, or two major versions newer.
An application has one protobuf, and often an older one. So the check is taken out: the rest of the modules calls what
protobuf has had since 3.20. Tests of archive documents pass with 5.26, 6 and 7.
"""

from __future__ import annotations

import re
import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]
"""The folder of the package: the generated modules import each other by paths from here."""
_VERSION_CHECK = re.compile(
    r"^from google\.protobuf import runtime_version as _runtime_version\n|^_runtime_version\.Validate\w+\(\n[^)]*\)\n",
    re.MULTILINE,
)


def make(into: Path = ROOT) -> None:
    """Write a `_pb2.py` and a `_pb2.pyi` for each .proto file, at its path below the folder `into`.

    Exits with protoc's status if it refuses a file; protoc prints the reason on stderr.
    """
    sources = [str(path.relative_to(ROOT)) for path in sorted(FOLDER.glob("*.proto"))]
    known = str(files("grpc_tools") / "_proto")
    status = protoc.main(["protoc", f"-I{ROOT}", f"-I{known}", f"--python_out={into}", f"--pyi_out={into}", *sources])
    if status:
        sys.exit(status)
    for source in sources:
        module = into / source.replace(".proto", "_pb2.py")
        module.write_text(_VERSION_CHECK.sub("", module.read_text()))


if __name__ == "__main__":
    make()
