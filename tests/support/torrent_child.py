"""A process that seeds a folder until its input ends, or fetches until it is killed, and prints its results.

* `torrent_child.py seed FOLDER` prints the magnet link and the port.
* `torrent_child.py fetch FOLDER MAGNET PORT RATE SPANS` prints the number of stored bytes, each archive with its
  SHA-256, and the transfers. RATE is in bytes per second, SPANS are JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from torrents import COMMUNITY, engine, now, opened

from cablestore.archive.remote import Span


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def seed(folder: Path) -> None:
    with engine(folder) as giver:
        say(giver.seed(COMMUNITY), giver.port)
        sys.stdin.read()


def fetch(folder: Path, magnet: str, port: str, rate: str, places: str) -> None:
    with engine(folder, download_rate_bytes_per_s=int(rate)) as member:
        remote = opened(member, magnet, int(port))
        say("index", hashlib.sha256(remote.index()).hexdigest())
        spans = [Span(*place) for place in json.loads(places)]
        for span, archive in remote.fetch(spans, lambda here, total: say("here", here, total)):
            say("archive", span.offset_bytes, hashlib.sha256(archive).hexdigest())
        say("moved", now(member).downloaded_bytes)


if sys.argv[1] == "seed":
    seed(Path(sys.argv[2]))
else:
    fetch(Path(sys.argv[2]), *sys.argv[3:])
