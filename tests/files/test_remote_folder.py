"""Folders in an object store, with a real S3 server over HTTP."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from faulty_proxy import Fault, FaultyProxy, faulty_proxy
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
def test_what_is_written_is_read_and_removed(s3: S3Server) -> None:
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
def test_it_travels_to_another_process_without_its_credentials(s3: S3Server) -> None:
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
def test_an_error_in_the_middle_leaves_no_object(s3: S3Server, error: type[BaseException]) -> None:
    folder = folder_of(s3.uri(f"whole {error.__name__}"))
    folder.write("kept", b"before")
    for name in ("new", "kept"):
        with pytest.raises(error), folder.writing(name) as file:  # noqa: PT012 - in the middle
            file.write(PARTS)
            raise error
    assert s3.objects(f"whole {error.__name__}/") == {"kept": b"before"}
    assert s3.uploads() == []


SENDING = """
import sys
from cablestore.files import folder_of
with folder_of(sys.argv[1]).writing("big") as file:
    file.write(b"x" * 40_000_000)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_process_that_ends_while_it_sends_leaves_no_object(
    s3: S3Server, proxy: FaultyProxy, how: signal.Signals
) -> None:
    """The process ends while its second part is being sent."""
    prefix = f"ended by {how.name}"
    with subprocess.Popen([sys.executable, "-c", SENDING, s3.uri(prefix)], stderr=subprocess.PIPE) as child:

        def fault(method: str, path: str, number: int) -> Fault:
            if "partNumber=2" in path:
                child.send_signal(how)
                child.wait(LIMIT_S)
            return "none"

        proxy.fault = fault
        child.communicate(timeout=LIMIT_S)
    assert any("partNumber=2" in path for _, path in proxy.requests)
    assert s3.objects(prefix) == {}


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["refuse", "cut", "cut answer"])
def test_a_server_that_fails_for_a_while_is_asked_again(s3: S3Server, proxy: FaultyProxy, fault: Fault) -> None:
    prefix = f"failing for a while {fault}"
    folder = folder_of(s3.uri(prefix))
    for part in ("partNumber=3", "uploads"):
        proxy.times(1, fault, part=part)
        with folder.writing("file") as file:
            file.write(PARTS)
        assert s3.objects(f"{prefix}/") == {"file": PARTS}
    count = 4  # pyarrow makes three attempts; the fourth is ours
    proxy.times(count, fault)
    folder.write("file", PARTS)
    proxy.times(count, fault, "GET")
    assert folder.read("file") == PARTS
    proxy.times(count, fault, "GET")
    assert read_in_steps(folder) == PARTS
    proxy.times(count, fault)
    assert folder.names() == ["file"]
    proxy.times(count, fault)
    folder.remove("file")
    assert folder.names() == []


def read_in_steps(folder: ObjectFolder) -> bytes:
    with folder.open("file") as stream:
        return b"".join(iter(lambda: stream.read(1_000_000), b""))


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["refuse", "cut"])
def test_a_server_that_fails_for_good_is_named_in_one_line(s3: S3Server, proxy: FaultyProxy, fault: Fault) -> None:
    prefix = f"failing for good {fault}"
    folder = folder_of(s3.uri(prefix))
    proxy.times(10_000, fault, "PUT", "partNumber=2")
    with (
        pytest.raises(StorageError, match=r"^s3://[^\n]*/half: [^\n]*Check the URI, its credentials") as found,
        folder.writing("half") as file,
    ):
        file.write(PARTS)
    assert "test-secret" not in str(found.value)
    assert s3.objects(prefix) == {}
    proxy.times(10_000, fault)
    with ThreadPoolExecutor() as threads:  # each waits six seconds between pyarrow's attempts
        works = (folder.names, lambda: folder.read("x"), lambda: folder.exists("x"), lambda: folder.write("x", b""))
        for answer in [threads.submit(work) for work in works]:
            with pytest.raises(StorageError, match=r"^s3://[^\n]*Check the URI, its credentials[^\n]*$") as found:
                answer.result()
            assert not isinstance(found.value, MissingFileError)


@pytest.mark.thorough
def test_a_missing_object_and_a_missing_bucket(s3: S3Server) -> None:
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
def test_a_local_disk_that_is_full_is_named_as_such(s3: S3Server, tmp_path: Path) -> None:
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
