"""A stranger that signs and sends posts without end: it uses up its own share, and honest users notice little."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from serving import HERE, Served, cablestore, environment, own_host
from waiting import wait_until

from cablestore.files import disk_usage
from cablestore.index.folder import SEARCH_FILES

Serving = Callable[..., Served]
CHILD = Path(__file__).resolve().parent.parent / "support" / "stranger_child.py"
QUOTA_BYTES = 6_000_000
MEMORY_BYTES = 250_000_000
"""More than `serve` needs, and less than the posts that the stranger sends in these tests if none were limited."""


@contextmanager
def stranger(address: str, host: str) -> Iterator[Callable[[], int]]:
    """Run a stranger during the body. Yields a function that waits for more of its posts, and returns their number."""
    command = [sys.executable, str(CHILD), address, host]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        lines = process.stdout

        def sent() -> int:
            line = lines.readline()
            assert line, "the stranger ended"
            return int(line)

        try:
            yield sent
        finally:
            process.kill()


def arrived(served: Served, text: str) -> bool:
    found = cablestore("search", text, store=served.store)
    return found.returncode == 0 and text in found.stdout


def store_size_bytes(served: Served) -> int:
    """Return the size that the quota limits."""
    usage = disk_usage(served.store, omitted=SEARCH_FILES)
    assert usage is not None
    return usage.store_size_bytes


def memory_bytes(served: Served) -> int:
    status = Path(f"/proc/{served.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1000


@pytest.mark.skipif(sys.platform != "linux", reason="the stranger has another loopback address, and /proc its memory")
def test_a_stranger_without_a_rate_fills_only_its_share_of_the_disk(tmp_path: Path, serving: Serving) -> None:
    honest = serving(tmp_path / "honest", "--create", "--listen", own_host())
    options = ("--max-store-size", "6MB", "--list-every", "1s", "--metrics", HERE)
    node = serving(tmp_path / "node", "--create", "--listen", HERE, "--connect", honest.address, *options)
    assert node.address
    assert cablestore("join", "default", store=node.store).returncode == 0
    with stranger(node.address, "127.0.0.9") as sent:
        wait_until(lambda: sent() and node.metric("cablestore_rejected_posts_total", reason="quota") > 1_000)
        post = cablestore("post", "default", "honestly", "--json", store=honest.store)
        assert post.returncode == 0, post.stderr
        wait_until(lambda: arrived(node, "honestly"))
        rejected = node.metric("cablestore_rejected_posts_total", reason="quota")
        wait_until(lambda: sent() and node.metric("cablestore_rejected_posts_total", reason="quota") > rejected + 1_000)
        assert store_size_bytes(node) < 2 * QUOTA_BYTES  # a compaction writes a second copy first
        assert memory_bytes(node) < MEMORY_BYTES
        assert cablestore("post", "default", "written at home", store=node.store).returncode == 0
        wait_until(lambda: arrived(honest, "written at home"))
    assert node.stop() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the stranger has another loopback address")
def test_a_stranger_above_its_rate_waits_and_others_do_not(tmp_path: Path, serving: Serving) -> None:
    honest = serving(tmp_path / "honest", "--create", "--listen", own_host())
    policy = tmp_path / "policy.toml"
    policy.write_text("[peers]\nposts-per-minute = 60\nburst = 100\n")
    options = ("--policy", policy, "--list-every", "1s", "--metrics", HERE)
    node = serving(tmp_path / "node", "--create", "--listen", HERE, "--connect", honest.address, *options)
    with stranger(node.address, "127.0.0.9") as sent:
        wait_until(lambda: node.metric("cablestore_store_posts", type="text") >= 16 and sent())
        before = node.metric("cablestore_store_posts", type="text")
        for number in range(5):
            assert cablestore("post", "default", f"honest{number}", store=honest.store).returncode == 0
            wait_until(lambda number=number: arrived(node, f"honest{number}"))  # type: ignore[misc] # the argument has its default
        assert node.metric("cablestore_store_posts", type="text") < before + 1_000
        assert memory_bytes(node) < MEMORY_BYTES
    assert node.stop() == 0
