"""Exports to and from an object store: the same bytes as in a folder, and the same robustness against interruptions."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from exporting import SMALL, files_of, import_, in_memory, posts_in, scratch_folder, some_posts, stored
from faulty_proxy import FaultyProxy, faulty_proxy
from history import AUTHORS, histories
from hypothesis import given, settings
from people import ANN, raws
from s3 import S3Server, environment_of
from waiting import LIMIT_S

from cablestore import LEGACY, CableStore, Dialect, Post
from cablestore.errors import ExportError
from cablestore.export import Filters, read_manifest, verify_export
from cablestore.export.manifest import read_arrivals

_NUMBERS = count()


def objects_of(s3: S3Server, prefix: str) -> dict[str, bytes]:
    return {name: data for name, data in s3.objects(f"{prefix}/").items() if name != "arrivals.json"}


@pytest.mark.thorough
@settings(max_examples=15)
@given(histories())
def test_an_export_to_s3_has_the_same_bytes_and_is_imported(
    s3_process: S3Server, history: tuple[Dialect, list[Post]]
) -> None:
    dialect, posts = history
    prefix = f"same bytes {next(_NUMBERS)}"
    uri = s3_process.uri(prefix)
    with scratch_folder() as scratch, pytest.MonkeyPatch.context() as patch:
        folder = Path(scratch) / "export"
        for name, value in (s3_process.environment | {"XDG_CACHE_HOME": scratch}).items():
            patch.setenv(name, value)
        with in_memory(dialect, posts) as store:
            local, remote = (store.export(out, **SMALL) for out in (folder, uri))
            expected = list(store.dump())
        assert objects_of(s3_process, prefix) == files_of(folder)
        assert read_manifest(uri) == remote
        assert (remote.encode(), posts_in(remote)) == (local.encode(), posts_in(local))
        report = verify_export(uri, signatures=True)
        assert (report.problems, report.posts) == ([], len(posts_in(local)))
        with in_memory(dialect) as store:
            store.import_exports([uri, folder])
            assert list(store.dump()) == expected == import_(dialect, folder)


@pytest.mark.thorough
def test_filters_and_arrivals_equal_those_of_a_folder(s3: S3Server, tmp_path: Path) -> None:
    filters = Filters(authors=frozenset([AUTHORS[0].public_key]))
    with stored(tmp_path / "store") as store:
        for out in (tmp_path / "part", s3.uri("part")):
            store.export(out, filters=filters, **SMALL)
    assert objects_of(s3, "part") == files_of(tmp_path / "part")
    assert read_arrivals(s3.uri("part")) == read_arrivals(tmp_path / "part")


CHILD = """
import os, signal, sys
from cablestore import CableStore
from cablestore.files.remote import RemoteFolder

store, out, when, instant = sys.argv[1:]
send, count = RemoteFolder._send, 0

def dying(self, name, content):
    global count
    count += 1
    if count == int(instant) and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    send(self, name, content)
    if count == int(instant) and when == "after":
        os.kill(os.getpid(), signal.SIGKILL)

with CableStore.open(store, create=False) as opened:
    RemoteFolder._send = dying
    opened.export(out, segment_size_bytes=2000, run_size_bytes=3000)
"""


@pytest.fixture
def proxy(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    with faulty_proxy(s3.port) as proxy:
        for name, value in environment_of(proxy.port).items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.mark.thorough
@pytest.mark.parametrize(("when", "instant"), [("before", 4), ("after", 3)])
def test_an_export_continues_after_any_kill(
    s3: S3Server, proxy: FaultyProxy, tmp_path: Path, when: str, instant: int
) -> None:
    """Each child process dies after a few objects and the next continues, until one finishes."""
    prefix = f"killed {when}"
    with stored(tmp_path / "store") as store:
        store.export(tmp_path / "straight", segment_size_bytes=2000, run_size_bytes=3000)
    command = [sys.executable, "-c", CHILD, str(tmp_path / "store"), s3.uri(prefix), when, str(instant)]
    kills = 0
    known: set[str] = set()
    while kills < 50:
        before = len(proxy.requests)
        child = subprocess.run(command, capture_output=True, check=False, timeout=LIMIT_S)
        sent = {path.rpartition("/")[2] for method, path in proxy.requests[before:] if method == "PUT"}
        assert not sent & known, "a recorded segment is sent again"
        objects = objects_of(s3, prefix)
        if child.returncode == 0 or "manifest.json" in objects:
            break
        assert child.returncode == -signal.SIGKILL, child.stderr.decode()
        kills += 1
        work = json.loads(objects.get("unfinished.json", b'{"segments": []}'))
        known = {segment["file"] for segment in work["segments"] if segment["kind"] == "posts"}
        with pytest.raises(ExportError, match=r"unfinished|is not an export"):
            read_manifest(s3.uri(prefix))
    assert kills > 2
    assert objects_of(s3, prefix) | {"unfinished.json": b""} == files_of(tmp_path / "straight") | {
        "unfinished.json": b""
    }
    assert read_arrivals(s3.uri(prefix)) == read_arrivals(tmp_path / "straight")


class Interrupt:
    """Progress callback that interrupts after N posts, after an action."""

    def __init__(self, posts: int, then: Callable[[], object] = lambda: None) -> None:
        self.left = posts
        self.then = then

    def __call__(self, posts: int) -> None:
        self.left -= posts
        if self.left <= 0:
            self.then()
            raise KeyboardInterrupt


@pytest.mark.thorough
@pytest.mark.parametrize("change", ["none", "new post", "other arguments", "no runs", "segment lost"])
def test_an_export_that_cannot_continue_restarts(s3: S3Server, tmp_path: Path, change: str) -> None:
    uri = s3.uri(f"again {change}")
    options = dict(SMALL)
    with stored(tmp_path / "store") as store:
        with pytest.raises(KeyboardInterrupt):
            store.export(uri, progress=Interrupt(50), **options)
        with pytest.raises(ExportError, match=r"unfinished export\. Run the same export again"):
            read_manifest(uri)
        if change == "new post":
            store.ingest(raws(ANN.text("default", "new")))
        elif change == "other arguments":
            options["filters"] = Filters(after_ms=1)
        elif change == "no runs":
            shutil.rmtree(tmp_path / "cache")
        elif change == "segment lost":
            s3.remove(f"again {change}/posts-000000.seg")
        store.export(uri, **options)
        store.export(tmp_path / "straight", **options)
    assert objects_of(s3, f"again {change}") == files_of(tmp_path / "straight")
    assert [path.name for path in (tmp_path / "cache").rglob("run-*")] == []


@pytest.mark.parametrize("name", ["manifest.json", "notes.txt", "folder/notes.txt"])
def test_existing_objects_are_not_overwritten(s3: S3Server, name: str) -> None:
    prefix = f"taken {name.replace('/', ' ')}"
    s3.put(f"{prefix}/{name}", b"mine")
    with (
        in_memory(LEGACY, some_posts()) as store,
        pytest.raises(ExportError, match=r"finished export|contains other files: (notes|folder)"),
    ):
        store.export(s3.uri(prefix), **SMALL)
    assert s3.objects(f"{prefix}/") == {name: b"mine"}


@pytest.mark.thorough
def test_a_concurrent_export_to_the_same_uri_is_rejected(s3: S3Server) -> None:
    """On this machine a lock separates them. Another machine is detected at the end."""
    uri = s3.uri("two exports")
    with in_memory(LEGACY, some_posts()) as store:

        def other_here(_: int) -> None:
            with pytest.raises(ExportError, match=r"another process is exporting to s3://.*"):
                store.export(uri)

        store.export(uri, progress=other_here)

        def other_elsewhere(_: int) -> None:
            s3.put("two machines/unfinished.json", json.dumps({"identity": "other"}).encode())

        with pytest.raises(ExportError, match=r"another export to s3://.* changed its files"):
            store.export(s3.uri("two machines"), progress=other_elsewhere)
    assert "manifest.json" not in s3.objects("two machines/")


@pytest.mark.thorough
@pytest.mark.parametrize("damage", ["lost", "cut", "changed"])
def test_damaged_objects_are_detected_and_named(s3: S3Server, damage: str) -> None:
    uri = s3.uri(f"damaged {damage}")
    with in_memory(LEGACY, some_posts()) as store:
        first = store.export(uri, **SMALL).segments[0].file
    key = f"damaged {damage}/{first}"
    [data] = s3.objects(key).values()
    if damage == "lost":
        s3.remove(key)
    else:
        s3.put(key, data[:-1] if damage == "cut" else b"x" + data[1:])
    assert {problem.file for problem in verify_export(uri).problems} >= {first}
    with in_memory(LEGACY) as store, pytest.raises(ExportError, match=f"s3://.*/{first} is "):
        store.import_exports([uri])


@pytest.mark.thorough
def test_the_commands_accept_uris(s3: S3Server, tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    uri = s3.uri("by command")
    with stored(tmp_path / "source") as store:
        digest = store.dump_digest()
    status, said, _ = run("export", uri, "--store", tmp_path / "source", "--json")
    assert (status, json.loads(said)["content_blake3"]) == (0, read_manifest(uri).content_blake3)
    status, said, _ = run("verify-export", f"{uri}/", "--signatures", "--json")
    assert (status, json.loads(said)["problems"]) == (0, 0)
    status, said, _ = run("import", uri, "--store", tmp_path / "target", "--json")
    assert (status, set(json.loads(said)["verdicts"])) == (0, {"accepted"})
    with CableStore.open(tmp_path / "target", create=False) as store:
        assert store.dump_digest() == digest
    status, _, error = run("export", uri, "--store", tmp_path / "source")
    assert (status, "finished export" in error) == (2, True)
    s3.remove(f"by command/{read_manifest(uri).segments[0].file}")
    status, said, _ = run("verify-export", uri)
    assert (status, "is missing" in said) == (1, True)
    for bad in ("s3://key:hunter2@bucket/x", "nosuch://bucket/x", "s3:///x", s3.uri("nothing")):
        for command in ("export", "import", "verify-export"):
            if command == "export" and bad == s3.uri("nothing"):
                continue
            option = () if command == "verify-export" else ("--store", tmp_path / "source")
            status, _, error = run(command, bad, *option)
            assert (status, error.count("\n"), "hunter2" in error) == (2, 1, False), error
    status, _, error = run("export", "s3://no-such-bucket/x", "--store", tmp_path / "source")
    assert (status, error.count("\n"), "NO_SUCH_BUCKET" in error) == (3, 1, True)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "before"), [("posts-", 0), ("unfinished.json", 0), ("unfinished.json", 1)])
def test_ctrl_c_ends_the_command_while_the_server_hangs(
    s3: S3Server, proxy: FaultyProxy, tmp_path: Path, name: str, before: int
) -> None:
    """The server does not answer for a segment, or for the marker of a written run of sorted posts."""
    prefix, seen = f"hangs {name} {before}", 0
    with stored(tmp_path / "store"):
        pass
    command = [sys.executable, "-m", "cablestore", "export", s3.uri(prefix), "--store", str(tmp_path / "store")]
    with subprocess.Popen(command, env=os.environ, stderr=subprocess.PIPE, text=True) as child:

        def hang(method: str, path: str, number: int) -> str:
            nonlocal seen
            is_it = method == "PUT" and f"/{name}" in path
            seen += is_it
            if is_it and seen > before and child.poll() is None:
                child.send_signal(signal.SIGINT)
                child.wait(LIMIT_S)  # so the command does not wait for this answer
            return "none"

        proxy.fault = hang  # type: ignore[assignment] # a fault may be a function
        _, error = child.communicate(timeout=LIMIT_S)
    assert (child.returncode, error.strip().splitlines()[-1]) == (130, "interrupted: stored data is kept")
    assert "manifest.json" not in s3.objects(f"{prefix}/")
    assert seen - before <= 3, "pyarrow makes three requests in one attempt; a second attempt came after Ctrl-C"
