"""Verifying signatures on several threads: the same results with and without the extension, for any numbers of both."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from people import ANN, BOB
from waiting import wait_until

from cablestore import CableStore, StoreOptions, Verdict
from cablestore.index import signatures as verify_module
from cablestore.index.signatures import SignatureVerifier
from cablestore.protocol import crypto
from cablestore.protocol.crypto import are_signed, is_signed

needs_extension = pytest.mark.skipif(crypto.EXTENSION is None, reason="the extension was not built")

POSTS = [who.text("default", str(i)).raw for i in range(60) for who in (ANN, BOB)]


def damaged(raw: bytes, place: int, bit: int) -> bytes:
    changed = bytearray(raw)
    changed[place % len(raw)] ^= 1 << bit
    return bytes(changed)


@pytest.fixture
def no_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crypto, "EXTENSION", None)
    monkeypatch.setattr(verify_module, "EXTENSION", None)


@needs_extension
@given(
    st.lists(st.tuples(st.sampled_from(POSTS), st.integers(0, 10_000), st.integers(0, 7), st.booleans()), max_size=9)
)
def test_the_extension_has_the_results_of_single_verifications(choices: list[tuple[bytes, int, int, bool]]) -> None:
    raws = [damaged(raw, place, bit) if is_damaged else raw for raw, place, bit, is_damaged in choices]
    found = list(are_signed(raws))
    assert found == [is_signed(raw) for raw in raws]
    assert found == [not is_damaged for *_, is_damaged in choices]


@needs_extension
@given(st.lists(st.binary(max_size=200), max_size=9))
def test_the_extension_accepts_any_bytes(raws: list[bytes]) -> None:
    assert list(are_signed(raws)) == [is_signed(raw) for raw in raws] == [False] * len(raws)


@needs_extension
def test_the_extension_rejects_other_types_than_bytes() -> None:
    for wrong in (["text"], [None], [bytearray(100)]):
        with pytest.raises(TypeError):
            are_signed(wrong)  # type: ignore[arg-type] # the wrong type is the test


@needs_extension
def test_other_threads_run_while_the_extension_verifies() -> None:
    def turns_meanwhile() -> int:
        verifying = threading.Thread(target=are_signed, args=(POSTS * 20,))
        verifying.start()
        turns = 0
        while verifying.is_alive():
            turns += 1
            time.sleep(0.001)
        return turns

    wait_until(lambda: turns_meanwhile() > 10)  # again, if the machine is busy


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_signature_has_its_own_result(threads: int, ahead: bool) -> None:
    rng = random.Random(threads)
    verifier = SignatureVerifier(threads)
    for number in [*range(12), 99, 100, 101, 120]:
        right = [rng.random() < 0.8 for _ in range(number)]
        raws = [raw if is_right else damaged(raw, 50, 1) for raw, is_right in zip(POSTS, right, strict=False)]
        assert verifier.start(raws, ahead=ahead)() == right
    verifier.close()


@pytest.mark.usefixtures("no_extension")
def test_a_store_works_without_the_extension() -> None:
    with CableStore.in_memory(options=StoreOptions(verify_threads=2)) as store:
        outcomes = store.ingest([*POSTS, damaged(POSTS[0], 50, 1)])
    assert [outcome.verdict for outcome in outcomes] == [Verdict.ACCEPTED] * len(POSTS) + [Verdict.BAD_SIGNATURE]


# --- the threads of the extension ------------------------------------------------------------------


@pytest.mark.thorough
@needs_extension
@pytest.mark.parametrize("number", [1, 30])
def test_many_callers_share_the_threads(number: int) -> None:
    def verify(seed: int) -> None:
        rng = random.Random(seed)
        verifier = SignatureVerifier(rng.randint(2, 4))
        for _ in range(50):
            right = [rng.random() < 0.8 for _ in range(number)]
            some = rng.sample(POSTS, number)
            raws = [raw if ok else damaged(raw, 50, 1) for raw, ok in zip(some, right, strict=True)]
            results = verifier.start(raws, ahead=True)
            if rng.random() < 0.3:
                continue  # no request
            assert results() == right
            assert results() == right

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(verify, seed) for seed in range(8)]:
            done.result()


@needs_extension
def test_several_threads_request_the_same_results() -> None:
    right = [number % 3 > 0 for number in range(len(POSTS))]
    raws = [raw if ok else damaged(raw, 50, 1) for raw, ok in zip(POSTS, right, strict=True)]
    for _ in range(5):
        results = SignatureVerifier(2).start(raws, ahead=True)
        with ThreadPoolExecutor(3) as pool:
            assert [asked.result() for asked in [pool.submit(results) for _ in range(3)]] == [right] * 3


PROGRAM = """
import gc, os, sys, threading
from cablestore import CableStore, StoreOptions, Verdict
from cablestore.index.signatures import SignatureVerifier
from people import ANN

posts = [ANN.text("default", str(number)).raw for number in range(400)]
"""
FORK = """
from cablestore.errors import CableStoreError

child = None

def stream():
    global child
    for number, raw in enumerate(posts[:300]):
        if number == 150:
            child = os.fork()  # the first hundred are being verified
        yield raw

with CableStore.in_memory(options=StoreOptions(verify_threads=3)) as store:
    try:
        outcomes = store.ingest(stream())
        for raw in posts[300:]:
            outcomes += store.ingest([raw])
    except CableStoreError as error:
        assert child == 0
        assert "was opened by process" in str(error)
        print("right", flush=True)
        os._exit(0)
assert [outcome.verdict for outcome in outcomes] == [Verdict.ACCEPTED] * 400
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print("right", flush=True)
"""
END = """
verifier = SignatureVerifier(3)
begun = [verifier.start(posts * 20) for _ in range(3)]
threading.Thread(target=begun[0], daemon=True).start()
del begun[1]
gc.collect()
print("right", flush=True)
"""


@pytest.mark.thorough
@needs_extension
@pytest.mark.parametrize(("program", "said"), [(FORK, 2), (END, 1)])
def test_a_process_forks_and_ends_while_posts_are_verified(program: str, said: int) -> None:
    command = [sys.executable, "-W", "ignore", "-c", f"import sys\nsys.path[:] = {sys.path!r}\n{PROGRAM}{program}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n" * said, "")


@needs_extension
def test_verification_is_not_concurrent_on_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SignatureVerifier(2).is_concurrent
    assert not SignatureVerifier(1).is_concurrent
    monkeypatch.setattr(verify_module, "usable_cores", lambda: 1)
    assert not SignatureVerifier().is_concurrent
