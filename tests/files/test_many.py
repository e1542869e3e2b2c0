"""Many files of a folder, and parts of files: the same on the local disk and in an object store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from faulty_proxy import Fault, faulty_proxy
from s3 import S3Server, environment_of
from waiting import LIMIT_S

from cablestore.files import MissingFileError, ObjectFolder, folder_of, for_each, remove
from cablestore.files.many import REQUESTS_AT_ONCE


@pytest.mark.thorough("S3")
def test_many_files_are_read_and_removed(place: ObjectFolder) -> None:
    assert place.is_empty()
    names = [f"{number:02d}" for number in range(3 * REQUESTS_AT_ONCE)]
    for name in names:
        place.write(name, name.encode(), sync=False)
    place.child("below").write("kept", b"")
    assert list(for_each(place, place.read, reversed(names))) == [name.encode() for name in reversed(names)]
    with pytest.raises(MissingFileError, match="missing"):
        list(for_each(place, place.read, [*names, "none"]))
    remove(place, [*names, "none"])
    assert place.names() == []
    assert not place.is_empty()
    place.remove_all()
    assert place.is_empty()


@pytest.mark.thorough("S3")
def test_concurrent_writes_of_a_file_do_not_mix(place: ObjectFolder) -> None:
    """The file always has the complete content of one process."""
    contents = [bytes([number]) * 100_000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda content: place.write("report", content), contents))
    assert place.read("report") in contents
    assert place.names() == ["report"]


@pytest.mark.thorough("S3")
def test_parts_of_a_file_are_read(place: ObjectFolder) -> None:
    content = os.urandom(200_000)
    place.write("run", content)
    with place.open_parts("run") as file:
        for at, size in ((0, 8), (150_000, 50_000), (199_999, 9), (77, 0), (3, 100_000)):
            assert file.seek(at) == at
            assert file.read(size) == content[at : at + size]
    with pytest.raises(MissingFileError, match="none is missing"):
        place.open_parts("none")


def test_reading_a_part_of_an_object_sends_one_request(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put("parts/run", bytes(10_000_000))
    with faulty_proxy(s3.port) as proxy:
        for name, value in environment_of(proxy.port).items():
            monkeypatch.setenv(name, value)
        with folder_of(s3.uri("parts")).open_parts("run") as file:
            before = len(proxy.requests)
            file.seek(5_000_000)
            assert len(file.read(3_000_000)) == 3_000_000
            file.seek(16)
            assert len(file.read(16)) == 16
    assert [method for method, _ in proxy.requests[before:]] == ["GET", "GET"]


READING = """
import os, sys
from cablestore.files import folder_of, for_each, is_request_in_progress
folder = folder_of(sys.argv[1])
try:
    list(for_each(folder, folder.read, map(str, range(20))))
except KeyboardInterrupt:
    print("interrupted", is_request_in_progress(), flush=True)
    os._exit(0)
"""


def test_ctrl_c_ends_the_wait_for_many_files(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server answers only after the process ended, so the process cannot wait for an answer."""
    for number in range(20):
        s3.put(f"many/{number}", b"x")
    with faulty_proxy(s3.port) as proxy:
        for name, value in environment_of(proxy.port).items():
            monkeypatch.setenv(name, value)
        command = [sys.executable, "-c", READING, s3.uri("many")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:

            def hang(method: str, path: str, number: int) -> Fault:
                if "/many/" in path and child.poll() is None:
                    child.send_signal(signal.SIGINT)
                    child.wait(LIMIT_S)
                return "none"

            proxy.fault = hang
            assert child.communicate(timeout=LIMIT_S)[0] == "interrupted True\n"
    assert 0 < sum("/many/" in path for _, path in proxy.requests) <= REQUESTS_AT_ONCE


INTERRUPTED_AT_ITS_START = """
import os, signal, sys, time
from cablestore.files import folder_of, for_each, is_request_in_progress

def work(name):
    os.kill(os.getpid(), signal.SIGINT)  # the main thread may still wait for this thread to start
    time.sleep(1000)

try:
    list(for_each(folder_of(sys.argv[1]), work, "ab"))
except KeyboardInterrupt:
    print("interrupted", is_request_in_progress(), flush=True)
    os._exit(0)
"""


def test_a_request_is_in_progress_before_its_thread_starts(s3: S3Server) -> None:
    command = [sys.executable, "-c", INTERRUPTED_AT_ITS_START, s3.uri("many")]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    assert found.stdout == "interrupted True\n"


def test_all_work_stops_after_an_error(s3: S3Server) -> None:
    """The caller may start again. Then earlier requests must not change its new files."""
    folder = folder_of(s3.uri("errors"))
    begun = threading.Barrier(REQUESTS_AT_ONCE)
    ended: list[str] = []

    def work(name: str) -> None:
        begun.wait(LIMIT_S)
        if name == "0":
            raise ValueError(name)
        folder.write(name, b"")
        ended.append(name)

    names = [str(number) for number in range(REQUESTS_AT_ONCE)]
    with pytest.raises(ValueError, match="0"):
        list(for_each(folder, work, names))
    assert sorted(ended) == names[1:]
