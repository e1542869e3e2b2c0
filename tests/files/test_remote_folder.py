"""Folders in an object store, with a real S3 server over HTTP."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from faulty_proxy import Fault, FaultyProxy, faulty_proxy, times
from s3 import S3Server, environment_of
from waiting import LIMIT_S

from cablestore.errors import StorageError
from cablestore.files import MissingFileError, ObjectFolder, folder_of, remote

PARTS = b"0123456789abcdef" * 1_600_000
"""Content that is sent to S3 in three parts."""


@pytest.fixture
def proxy(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    with faulty_proxy(s3.port) as proxy:
        for name, value in environment_of(proxy.port).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(remote, "_RETRY_S", 0.01)
        yield proxy


@pytest.mark.thorough
def test_objects_are_written_read_and_removed(s3: S3Server) -> None:
    folder = folder_of(s3.uri("read and/written/"))
    assert (folder.is_local, str(folder)) == (False, s3.uri("read%20and/written"))
    assert (folder.names(), folder.exists("a")) == ([], False)
    folder.write("b", b"small")
    with folder.writing("a") as file:
        file.write(PARTS[:5])
        file.write(PARTS[5:])
        assert not folder.exists("a")
    folder.child("deep er").write("c", b"")
    assert s3.objects("read and/written/") == {"a": PARTS, "b": b"small", "deep er/c": b""}
    assert (folder.names(), folder.names("b*")) == (["a", "b"], ["b"])
    assert folder.sizes() == {"a": len(PARTS), "b": 5}
    assert (folder.read("a"), folder.read("b"), folder.child("deep er").read("c")) == (PARTS, b"small", b"")
    with folder.open("a") as stream:
        assert (stream.read(3), stream.seek(-1, os.SEEK_END), stream.read()) == (PARTS[:3], len(PARTS) - 1, b"f")
    folder.remove("a")
    folder.remove("a")
    assert folder.names() == ["b"]
    folder.remove_all()
    folder.remove_all()
    assert s3.objects("read and/written") == {}


@pytest.mark.thorough
def test_a_folder_is_pickled_without_its_credentials(s3: S3Server) -> None:
    folder = folder_of(s3.uri("travelling"))
    folder.write("from here", b"hello")
    pickled = pickle.dumps(folder)
    assert s3.environment["AWS_SECRET_ACCESS_KEY"].encode() not in pickled
    assert pickle.loads(pickled) == folder
    code = "import pickle, sys; f = pickle.loads(sys.stdin.buffer.read()); f.write('from there', f.read('from here'))"
    subprocess.run([sys.executable, "-c", code], input=pickled, check=True, timeout=LIMIT_S)
    assert folder.read("from there") == b"hello"


@pytest.mark.thorough
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_during_a_write_leaves_no_object(s3: S3Server, error: type[BaseException]) -> None:
    folder = folder_of(s3.uri(f"whole {error.__name__}"))
    folder.write("kept", b"before")
    for name in ("new", "kept"):
        with pytest.raises(error), folder.writing(name) as file:  # noqa: PT012 - in the middle
            file.write(PARTS)
            raise error
    assert s3.objects(f"whole {error.__name__}/") == {"kept": b"before"}
    assert s3.uploads() == []


SENDING = """
import os, sys
from cablestore.files import folder_of, is_request_in_progress
try:
    with folder_of(sys.argv[1]).writing("big") as file:
        file.write(b"x" * 40_000_000)
except KeyboardInterrupt:
    os._exit(130 if is_request_in_progress() else 1)  # as commands do: Python would wait for the request
"""


@pytest.mark.thorough
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_process_that_ends_during_an_upload_leaves_no_object(
    s3: S3Server, proxy: FaultyProxy, how: signal.Signals
) -> None:
    """The process ends while its second part is being sent. The server answers only after that."""
    prefix = f"ended by {how.name}"
    with subprocess.Popen([sys.executable, "-c", SENDING, s3.uri(prefix)], stderr=subprocess.PIPE) as child:

        def fault(method: str, path: str, number: int) -> Fault:
            if "partNumber=2" in path:
                child.send_signal(how)
                child.wait(LIMIT_S)
            return "none"

        proxy.fault = fault
        child.communicate(timeout=LIMIT_S)
    assert child.returncode == {signal.SIGKILL: -signal.SIGKILL, signal.SIGINT: 130}[how]
    assert any("partNumber=2" in path for _, path in proxy.requests)
    assert s3.objects(prefix) == {}


def at_once(*works: Callable[[], object]) -> list[Future[object]]:
    """Start work in threads: pyarrow waits for seconds between its attempts."""
    with ThreadPoolExecutor(len(works)) as threads:
        return [threads.submit(work) for work in works]


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["refuse", "cut", "cut answer"])
def test_requests_to_a_temporarily_failing_server_are_repeated(s3: S3Server, proxy: FaultyProxy, fault: Fault) -> None:
    prefix = f"failing for a while {fault}"
    folder = folder_of(s3.uri(prefix))
    for name in ("read", "steps", "removed", "listed/file"):
        s3.put(f"{prefix}/{name}", PARTS)

    def write_in_parts(name: str) -> None:
        with folder.writing(name) as file:
            file.write(PARTS)

    proxy.fault = times(
        fault,
        {"third.*partNumber=3": 1, "first.*uploads": 1}
        # pyarrow makes three attempts; the fourth is ours
        | dict.fromkeys(["whole", "GET .*/read", "GET .*/steps", "removed", "listed"], 4),
    )
    works = at_once(
        lambda: write_in_parts("third"),
        lambda: write_in_parts("first"),
        lambda: folder.write("whole", PARTS),
        lambda: folder.read("read"),
        lambda: read_in_steps(folder, "steps"),
        lambda: folder.remove("removed"),
        lambda: folder.child("listed").names(),
    )
    assert [work.result() for work in works] == [None, None, None, PARTS, PARTS, None, ["file"]]
    expected = dict.fromkeys(["third", "first", "whole", "read", "steps", "listed/file"], PARTS)
    assert s3.objects(f"{prefix}/") == expected


def read_in_steps(folder: ObjectFolder, name: str) -> bytes:
    with folder.open(name) as stream:
        return b"".join(iter(lambda: stream.read(1_000_000), b""))


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["refuse", "cut"])
def test_a_permanently_failing_server_is_reported_in_one_line(s3: S3Server, proxy: FaultyProxy, fault: Fault) -> None:
    prefix = f"failing for good {fault}"
    folder, gone = (folder_of(s3.uri(f"{prefix}/{name}")) for name in ("half", "gone"))
    proxy.fault = times(fault, {"PUT .*/half/.*partNumber=2": 10_000, "gone": 10_000})

    def write_in_parts() -> None:
        with folder.writing("half") as file:
            file.write(PARTS)

    half, *works = at_once(
        write_in_parts, gone.names, lambda: gone.read("x"), lambda: gone.exists("x"), lambda: gone.write("x", b"")
    )
    with pytest.raises(StorageError, match=r"^s3://[^\n]*/half: [^\n]*Check the URI, its credentials") as found:
        half.result()
    assert "test-secret" not in str(found.value)
    for work in works:
        with pytest.raises(StorageError, match=r"^s3://[^\n]*Check the URI, its credentials[^\n]*$") as found:
            work.result()
        assert not isinstance(found.value, MissingFileError)
    assert s3.objects(prefix) == {}


@pytest.mark.thorough
def test_missing_objects_and_buckets_are_reported(s3: S3Server) -> None:
    folder = folder_of(s3.uri("missing"))
    for reading in (folder.read, folder.open, folder.size):
        with pytest.raises(MissingFileError, match=r"s3://cable-tests-\d+/missing/none is missing"):
            reading("none")
    elsewhere = folder_of("s3://no-such-bucket/folder")
    with pytest.raises(StorageError, match="NO_SUCH_BUCKET"):
        elsewhere.write("x", b"")
    with pytest.raises(MissingFileError, match="s3://no-such-bucket/folder/x is missing"):
        elsewhere.read("x")


@pytest.mark.thorough
def test_a_full_local_disk_is_reported(s3: S3Server, tmp_path: Path) -> None:
    code = """
import json, resource, signal, sys
from cablestore.errors import StorageError
from cablestore.files import folder_of
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = folder_of(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    with folder.writing("x") as file:
        file.write(b"x" * 1_000_000)
except StorageError as error:
    print(json.dumps(str(error)))
"""
    command = [sys.executable, "-c", code, s3.uri("full disk")]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    assert f"/x in {tmp_path}: " in json.loads(child.stdout)
    assert s3.objects("full disk") == {}
