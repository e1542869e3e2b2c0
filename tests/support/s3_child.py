"""An S3 server in a separate process: moto's, over HTTP. `s3_child.py` prints its port and ends with its input.

pyarrow holds Python's lock while some of its calls wait for the server. Therefore the server must not be a thread of
the same process.
"""

from __future__ import annotations

import logging
import sys

from moto.server import ThreadedMotoServer


def main() -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    sys.stdin.read()  # until the test closes the pipe, or is killed


main()
