"""Logs in any packing: folders, compressed files and archives, complete, damaged and hostile, through the command."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from irc_logs import PHRASE, imported, laid

from cablestore import CableStore, limits
from cablestore.cli.demo import sample
from cablestore.errors import ArgumentError
from cablestore.irc.importer import import_logs
from cablestore.irc.survey import find_logs

Run = Callable[..., tuple[int, str, str]]
LINE = b"[09:00] <ann> hello\n"
NAME = "garden/2013-01-07.log"


def tar_of(path: Path, *entries: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as tar:
        for entry, data in entries:
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def entry(name: str, kind: bytes = tarfile.REGTYPE, to: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, to
    return found


def rejection(run: Run, tmp_path: Path, *paths: Path) -> str:
    """Import and return the error line: status 2, no traceback, an unchanged store."""
    store = tmp_path / "store"
    status, out, err = run("import-irc", *paths, "-s", store)
    assert status == 2, (out, err)
    assert len([line for line in err.splitlines() if line.startswith(("cablestore: ", "Error: "))]) == 1
    assert "Traceback" not in err
    with CableStore.open(store) as opened:
        assert not list(opened.channels())
    return err


# --- accepted input --------------------------------------------------------------------------------


def digest_of(*paths: Path) -> bytes:
    with CableStore.in_memory() as store:
        imported(store, *paths)
        return store.dump_digest().encode()


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "gz of two parts": lambda data: gzip.compress(data[:99]) + gzip.compress(data[99:]),
    "xz of two parts": lambda data: lzma.compress(data[:99]) + lzma.compress(data[99:]),
    "bz2 of two parts": lambda data: bz2.compress(data[:99]) + bz2.compress(data[99:]),
}


@pytest.mark.parametrize("packing", PACKED)
def test_compressed_logs_have_the_same_posts_as_plain_ones(tmp_path: Path, packing: str) -> None:
    for file in sample().rglob("*.log"):
        copy = tmp_path / "packed" / file.parent.name / f"{file.name}.{packing[:2]}"
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(PACKED[packing](file.read_bytes()))
    assert digest_of(tmp_path / "packed") == digest_of(sample())


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tar_archives_of_every_kind_are_read(tmp_path: Path, mode: str, form: int) -> None:
    archive = tmp_path / "logs.tar"
    with tarfile.open(archive, mode, format=form) as tar:  # type: ignore[call-overload] # chosen by the test
        tar.add(sample(), arcname="a-long-name/" * 12 + "日本" if form != tarfile.USTAR_FORMAT else "logs")
    assert digest_of(archive) == digest_of(sample())


def test_zip_archives_and_nested_archives_are_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "logs.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(sample().rglob("*.log")):
            archive.write(file, file.relative_to(sample()))
    assert digest_of(tmp_path / "logs.zip") == digest_of(sample())
    outer = tmp_path / "folder" / "outer.tar.gz"
    outer.parent.mkdir()
    with tarfile.open(outer, "w:gz") as tar:
        for file in sorted(sample().rglob("*.log")):
            packed = gzip.compress(file.read_bytes())
            info = entry(f"{file.relative_to(sample())}.gz")
            info.size = len(packed)
            tar.addfile(info, io.BytesIO(packed))
    assert digest_of(outer.parent) == digest_of(sample())


def test_an_import_writes_only_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    archive = tar_of(tmp_path / "logs.tar.gz", (entry(NAME), LINE))
    assert run("import-irc", archive, "-s", tmp_path / "store")[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs.tar.gz", "scratch", "store"]
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("held_bytes", [0, 200, 10**6])
def test_days_of_an_archive_are_read_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_bytes: int
) -> None:
    """The archive is read once if all early lines fit into memory, otherwise again. The posts are always the same."""
    days = [f"garden/2013-01-{day:02}.log" for day in range(1, 29)]
    texts = {name: f"[09:00] <ann> {name}\n[09:01] <bob> {name}\n".encode() for name in days}
    for name, data in texts.items():
        laid(tmp_path / "plain", name, data.decode())
    expected = digest_of(tmp_path / "plain")
    monkeypatch.setattr(limits, "MAX_LOGS_HELD_SIZE_BYTES", held_bytes)
    rng = random.Random("days in any order")
    for order in (days, days[::-1], rng.sample(days, len(days))):
        archive = tar_of(tmp_path / "logs.tar.gz", *((entry(name), texts[name]) for name in order))
        assert digest_of(archive) == expected


def test_more_files_than_the_limit_of_open_files_are_read(tmp_path: Path) -> None:
    """In a separate process, because this one may have more files open already."""
    for number in range(200):
        laid(tmp_path / "logs", f"garden/2013-01-07_{number:03}.log", f"[09:00] <ann> {number}\n")
    script = f"""
import resource, sys
from pathlib import Path
from cablestore import CableStore
from cablestore.irc.survey import find_logs
from cablestore.irc.importer import import_logs
with CableStore.in_memory() as store:
    resource.setrlimit(resource.RLIMIT_NOFILE, (120, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    print(import_logs(store, find_logs([Path(sys.argv[1])]), seed_phrase={PHRASE!r}).posts["text"])
"""
    command = [sys.executable, "-c", script, str(tmp_path / "logs")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "200\n"), ended.stderr


def test_a_log_that_is_listed_twice_is_read_once(tmp_path: Path) -> None:
    assert digest_of(sample(), sample() / "kitchen") == digest_of(sample())


# --- rejected input --------------------------------------------------------------------------------


HOSTILE = {
    "../evil.log": tarfile.REGTYPE,
    "garden/../../evil.log": tarfile.REGTYPE,
    "/tmp/evil-2013-01-07.log": tarfile.REGTYPE,
    "garden/symlink.log": tarfile.SYMTYPE,
    "garden/hardlink.log": tarfile.LNKTYPE,
    "garden/device.log": tarfile.CHRTYPE,
    "garden/disk.log": tarfile.BLKTYPE,
    "garden/fifo.log": tarfile.FIFOTYPE,
    "garden/continued.log": b"M",
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
def test_entries_that_are_not_logs_are_rejected_by_name(tmp_path: Path, run: Run, name: str, suffix: str) -> None:
    bad = entry(name, HOSTILE[name], "/etc/passwd")
    data = LINE if HOSTILE[name] == tarfile.REGTYPE else b""
    archive = tar_of(
        tmp_path / f"logs{suffix}", (entry(NAME), LINE), (bad, data), (entry("garden/2013-01-08.log"), LINE)
    )
    assert f'"{name}"' in rejection(run, tmp_path, archive)
    assert sorted(path.name for path in tmp_path.iterdir()) == [archive.name, "store"]


@pytest.mark.parametrize("name", ["../evil.log", "/evil.log", "link"])
def test_entries_of_a_zip_that_are_not_logs_are_rejected_by_name(tmp_path: Path, run: Run, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "logs.zip", "w") as archive:
        info = zipfile.ZipInfo(name)
        info.external_attr = (0o120777 if name == "link" else 0o100644) << 16
        archive.writestr(NAME, LINE)
        archive.writestr(info, b"/etc/passwd")
    assert f'"{name}"' in rejection(run, tmp_path, tmp_path / "logs.zip")


def many_days() -> list[tuple[tarfile.TarInfo, bytes]]:
    rng = random.Random("many days")
    return [
        (
            entry(f"garden/2013-01-{day:02}.log"),
            b"".join(b"[09:00] <ann> %x\n" % rng.getrandbits(200) for _ in range(40)),
        )
        for day in range(1, 20)
    ]


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tar.bz2", "tar.xz", "log.gz", "log.xz", "log.bz2", "zip"])
def test_a_truncated_file_is_rejected(tmp_path: Path, run: Run, suffix: str) -> None:
    whole = tmp_path / f"2013-01-07.{suffix}"
    if suffix == "zip":
        with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
            for info, data in many_days():
                archive.writestr(info.name, data)
    else:
        plain = (
            tar_of(tmp_path / "plain", *many_days()).read_bytes() if suffix.startswith("tar") else many_days()[0][1] * 3
        )
        (tmp_path / "plain").unlink(missing_ok=True)
        whole.write_bytes(PACKED.get(suffix.rpartition(".")[2], bytes)(plain))
    data = whole.read_bytes()
    end = len(data.rstrip(b"\0")) if suffix == "tar" else len(data)  # one block of the zeros at its end is sufficient
    rng = random.Random(f"cut {suffix}")
    least = 520 if suffix == "tar" else 20  # its first header identifies a tar archive
    for cut in {least, end - 1, end // 1024 * 512, *(rng.randrange(least, end) for _ in range(8))}:
        whole.write_bytes(data[:cut])
        assert "damaged or truncated" in rejection(run, tmp_path, whole), cut


@pytest.mark.parametrize("suffix", ["tar.gz", "tar.bz2", "tar.xz", "log.gz", "log.xz", "log.bz2", "zip"])
def test_a_file_with_a_flipped_byte_is_rejected(tmp_path: Path, run: Run, suffix: str) -> None:
    """The checksums of compressed files are verified, also in the last bytes of a file."""
    damaged = tmp_path / f"2013-01-07.{suffix}"
    if suffix == "zip":
        with zipfile.ZipFile(damaged, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(NAME, LINE * 500)
        places = [damaged.read_bytes().find(NAME.encode()) + len(NAME) + 12]
    else:
        plain = (
            tar_of(tmp_path / "plain", *many_days()).read_bytes() if suffix.startswith("tar") else many_days()[0][1] * 3
        )
        (tmp_path / "plain").unlink(missing_ok=True)
        damaged.write_bytes(PACKED[suffix.rpartition(".")[2]](plain))
        size = damaged.stat().st_size
        places = [size // 2, size - 6]  # of gzip: its checksum
    data = damaged.read_bytes()
    for place in places:
        damaged.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        assert "2013-01-07" in rejection(run, tmp_path, damaged)


def test_a_tar_archive_with_a_damaged_header_is_rejected(tmp_path: Path, run: Run) -> None:
    archive = tar_of(tmp_path / "logs.tar", *many_days())
    data = bytearray(archive.read_bytes())
    data[data.find(b"garden/2013-01-09.log")] ^= 1
    archive.write_bytes(data)
    assert "damaged or truncated" in rejection(run, tmp_path, archive)


@pytest.mark.parametrize(
    "kind", ["folder", "folder of empty files", "file", "gz", "tar", "tar of nothing", "zip", "blank lines"]
)
def test_empty_inputs_are_reported(tmp_path: Path, run: Run, kind: str) -> None:
    path = tmp_path / "2013-01-07.log"
    if kind.startswith("folder"):
        path.mkdir()
    if kind == "folder of empty files":
        (path / "2013-01-07.log").touch()
    if kind == "file":
        path.touch()
    if kind == "blank lines":
        path.write_text("\n \n\n")
    if kind == "gz":
        path.write_bytes(gzip.compress(b""))
    if kind.startswith("tar"):
        path = tar_of(tmp_path / "logs.tar", *([(entry(NAME), b"")] if kind == "tar" else []))
    if kind == "zip":
        zipfile.ZipFile(path, "w").close()
    assert "is empty" in rejection(run, tmp_path, path)


@pytest.mark.parametrize("name", ["no\0such", "n" * 300, "no/such", "file/below"])
def test_an_impossible_path_is_rejected(tmp_path: Path, run: Run, name: str) -> None:
    (tmp_path / "file").touch()
    rejection(run, tmp_path, Path(f"{tmp_path}/{name}"))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--date", "yesterday"),
        ("--date", "2013-02-30"),
        *(("--timezone", zone) for zone in ("Nowhere", "Europe", "../x", "\0", "")),
    ],
)
def test_invalid_options_are_rejected(tmp_path: Path, run: Run, option: str, value: str) -> None:
    file = laid(tmp_path, NAME, LINE.decode())
    status, _, err = run("import-irc", file, option, value, "-s", tmp_path / "store")
    assert status == 2
    assert option in err


def test_an_unsupported_compression_is_named(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "2013-01-07.7z"
    file.write_bytes(b"7z\xbc\xaf\x27\x1c" + bytes(100))
    assert "unsupported compression 7z" in rejection(run, tmp_path, file)


def test_a_log_without_a_channel_requires_the_option(tmp_path: Path, run: Run) -> None:
    file = laid(tmp_path, "c" * 65 + ".txt", "2013-01-07 09:00:00\tann\thello\n")
    assert "--channel" in rejection(run, tmp_path, file)


# --- limits ----------------------------------------------------------------------------------------


def test_the_sizes_and_entries_of_archives_are_limited(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tar_of(tmp_path / "logs.tar.gz", *many_days())
    for name, value, words in (
        ("MAX_LOGS_UNPACKED_SIZE_BYTES", 10_000, "the maximum is 10,000 bytes after decompression"),
        ("MAX_LOG_ARCHIVE_ENTRIES", 18, "too many entries: the maximum is 18"),
        ("MAX_LOG_WRAPPINGS", 1, "compressed more than 1 times"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(limits, name, value)
            assert words in rejection(run, tmp_path, archive)
    status, _, err = run("import-irc", archive, "-s", tmp_path / "store")
    assert status == 0, err


def test_an_overlong_header_of_an_archive_is_rejected(tmp_path: Path, run: Run) -> None:
    """A name of a gigabyte packs into a megabyte, and a tar reader holds names in memory."""
    info = entry("x" * (limits.MAX_LOG_ENTRY_HEADER_SIZE_BYTES + 1))
    archive = tar_of(tmp_path / "logs.tar.gz", (info, LINE))
    assert "header is too large: the maximum is" in rejection(run, tmp_path, archive)


def test_an_xz_file_that_needs_too_much_memory_is_rejected(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "2013-01-07.log.xz"
    dictionary = 2 * limits.MAX_LOG_XZ_MEMORY_SIZE_BYTES
    file.write_bytes(lzma.compress(LINE, filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": dictionary}]))
    assert "2013-01-07.log.xz" in rejection(run, tmp_path, file)


def test_an_overlong_line_is_counted_and_others_are_read(store: CableStore, tmp_path: Path) -> None:
    most = limits.MAX_LOG_LINE_SIZE_BYTES
    lines = [b"[09:00] <ann> " + b"a" * (size - 14) for size in (100, most, most + 1, 3 * most, 100)]
    for end in (b"\n", b"\r\n"):
        file = tmp_path / "garden" / "2013-01-07.log"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(end.join(lines) + end)
        report = import_logs(store, find_logs([file]), seed_phrase=PHRASE)
        assert report.lines == 5
        assert report.skips.reasons == {f"longer than {most:,} bytes": 2}
        assert report.skips.cut == 1


@pytest.mark.thorough
def test_a_line_of_600_mb_in_a_small_archive_uses_little_memory(tmp_path: Path) -> None:
    """The import uses at most the memory of a line. An earlier version used 2.8 GB."""
    script = (
        "import resource, sys; from cablestore.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000, file=sys.stdout)"
    )
    peaks_mb = []
    for megabytes in (1, 600):
        archive = tmp_path / f"logs-{megabytes}.tar.gz"
        with gzip.open(archive, "wb", compresslevel=1) as packed:
            info = entry(NAME)
            info.size = len(LINE) + megabytes * 1_000_000
            packed.write(info.tobuf() + LINE)
            for _ in range(megabytes):
                packed.write(b"a" * 1_000_000)
            packed.write(bytes(-info.size % 512 + 1024))
        command = [sys.executable, "-c", script, "import-irc", str(archive), "-s", str(tmp_path / f"store-{megabytes}")]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        peaks_mb.append(int(ended.stdout.split()[-1]))
    assert peaks_mb[1] < peaks_mb[0] + 60


def test_a_file_that_changes_while_it_is_read_is_reported(tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "logs.tar.gz", *many_days())
    logs = find_logs([archive])
    tar_of(archive, *many_days()[:3])
    with CableStore.in_memory() as store, pytest.raises(ArgumentError, match="changed while it was read"):
        import_logs(store, logs, seed_phrase=PHRASE)


# --- hidden folders, and archives that current programs do not write ---------------------------------


@pytest.mark.parametrize("kind", ["folder", "tar", "zip"])
def test_hidden_folders_are_skipped(store: CableStore, tmp_path: Path, kind: str) -> None:
    """A folder of logs under git, and archives of it."""
    root = tmp_path / "logs"
    laid(root, NAME, LINE.decode())
    laid(root, ".git/HEAD", "ref: refs/heads/main\n")
    if kind == "tar":
        root = tar_of(tmp_path / "logs.tar", (entry("./.git/HEAD"), b"ref: refs/heads/main\n"), (entry(NAME), LINE))
    elif kind == "zip":
        root = tmp_path / "logs.zip"
        with zipfile.ZipFile(root, "w") as archive:
            archive.writestr(".git/HEAD", "ref: refs/heads/main\n")
            archive.writestr(NAME, LINE)
    imported(store, root)
    assert [message.text for message in store.messages("garden").messages] == ["hello"]


def test_a_zip_with_impossible_fields_is_rejected(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "logs.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("gärden.log", LINE)
    whole = path.read_bytes()
    for old, new in (("gä".encode(), b"g\xff\xff"), (b"PK\x01\x02\x14\x03\x14\x00", b"PK\x01\x02\x14\x03\x63\x00")):
        assert old in whole
        path.write_bytes(whole.replace(old, new))
        assert "damaged or truncated" in rejection(run, tmp_path, path)


@pytest.mark.parametrize(
    "headers",
    [
        {"GNU.sparse.map": "a,b"},
        {"GNU.sparse.size": "abc"},
        {"GNU.sparse.realsize": "abc"},
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"},
    ],
    ids=str,
)
def test_a_tar_with_impossible_fields_is_rejected(tmp_path: Path, run: Run, headers: dict[str, str]) -> None:
    log = entry(NAME)
    log.pax_headers = headers
    with tarfile.open(tmp_path / "logs.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        log.size = len(LINE)
        tar.addfile(log, io.BytesIO(LINE))
    assert "logs.tar" in rejection(run, tmp_path, tmp_path / "logs.tar")


def test_a_zip_archive_with_lzma_is_rejected(tmp_path: Path, run: Run) -> None:
    """The dictionary size that it requests is not limited."""
    with zipfile.ZipFile(tmp_path / "logs.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr(NAME, LINE * 100)
    assert "unsupported compression for" in rejection(run, tmp_path, tmp_path / "logs.zip")
