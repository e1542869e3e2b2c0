"""Paths and URIs: valid locations of folders, and rejected ones."""

from __future__ import annotations

import re
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from s3 import S3Server

from cablestore import CableStore
from cablestore.errors import ArgumentError
from cablestore.files import folder_of, usable_path
from cablestore.files.remote import RemoteFolder
from cablestore.files.uri import Uri, parse_location


@pytest.mark.parametrize(
    ("uri", "where"),
    [
        ("s3://AKIA:hunter2@bucket/folder", "AWS_ACCESS_KEY_ID"),
        ("s3://AKIA@bucket/folder", "AWS_ACCESS_KEY_ID"),
        ("s3://bucket/folder?access_key=AKIA&secret_key=hunter2", "AWS_ACCESS_KEY_ID"),
        ("gs://bucket/folder?access_token=hunter2", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("abfs://:hunter2@account/container", "AZURE_CLIENT_ID"),
        ("abfss://container@account.dfs.core.windows.net/folder?sas_token=hunter2", "AZURE_CLIENT_ID"),
        ("hdfs://ann:hunter2@host:8020/folder", "environment"),
        ("s3://AKIA:hunter2@bucket/a%00b", "AWS_ACCESS_KEY_ID"),
    ],
)
def test_credentials_in_a_uri_are_rejected_and_not_repeated(uri: str, where: str) -> None:
    with pytest.raises(ArgumentError, match=where) as found:
        folder_of(uri)
    assert "hunter2" not in str(found.value)
    assert "AKIA" not in str(found.value)
    assert found.value.exit_status == 2


@pytest.mark.parametrize(
    ("uri", "what"),
    [
        ("nosuch://bucket/folder", "Unrecognized filesystem type"),
        ("http://host/folder", "Unrecognized filesystem type"),
        ("s3:///folder", "has no bucket"),
        ("gs://", "has no bucket"),
        ("s3://[bucket/folder", "malformed"),
        ("s3://bucket/folder#part", "Write # as %23"),
        ("s3://bucket/folder?colour=red", "colour"),
        ("file://host/folder", "not a folder of this machine"),
        ("file:///folder/a%00b", "NUL"),
        ("s3://bucket/a%00b", "NUL"),
        ("mock:///a%00b", "NUL"),
        ("folder/a\0b", "NUL"),
    ],
)
def test_an_invalid_folder_is_rejected_in_one_line(s3: S3Server, uri: str, what: str) -> None:
    with pytest.raises(ArgumentError, match=what) as found:
        folder_of(uri)
    assert "\n" not in str(found.value)


def test_a_scheme_is_not_case_sensitive(s3: S3Server) -> None:
    assert folder_of("S3://bucket/folder") == folder_of("s3://bucket/folder/")


@pytest.mark.parametrize("uri", ["mock:///community/export", "mock://host/export"])
def test_the_uri_of_a_folder_leads_to_the_same_folder(uri: str) -> None:
    """A URI without a host keeps its //. Otherwise it would be a local path."""
    folder = folder_of(f"{uri}/")
    assert (folder.uri, folder.full_uri, folder.is_local) == (uri, uri, False)
    assert folder_of(folder.full_uri) == folder
    assert folder_of(folder.child("a b").full_uri).uri == f"{uri}/a%20b"


def test_a_folder_below_a_uri_without_a_host_is_also_a_uri() -> None:
    folder = RemoteFolder("hdfs:///export?user=ann")
    assert (folder.uri, folder.child("a").full_uri) == ("hdfs:///export", "hdfs:///export/a?user=ann")


@pytest.mark.parametrize(
    ("uri", "what"),
    [
        ("s3://bucket//export", "empty part"),
        ("s3://bucket/a//b", "empty part"),
        ("s3://bucket/a//", "empty part"),
        ("s3://bucket//", "empty part"),
        ("s3://bucket/./a", "not the name of a folder"),
        ("s3://bucket/a/..", "not the name of a folder"),
        ("s3://bucket/%2e%2e/a", "not the name of a folder"),
        ("s3://bucket/a%2Fb", "not the name of a folder"),
        ("s3://../a", "not a bucket"),
        ("s3://buck et/a", "not a bucket"),
        ("s3://%62ucket/a", "not a bucket"),
        ("s3://", "has no bucket"),
        ("s3a:///folder", "has no bucket"),
        ("abfss://container@/folder", "has no bucket"),
        ("s3://bucket/100%", "Write % as %25"),
        ("s3://bucket/100%zz", "Write % as %25"),
        ("s3://bucket/100%cent", "Write % as %25"),
        ("s3://bucket/a\nb", "control character"),
        ("s3://bucket/a%0Ab", "control character"),
        ("s3://bucket/a ", "ends with a space"),
        ("s3://bucket/a#", "Write # as %23"),
        ("s3://bucket:port/a", "malformed"),
        ("s3://bucket/\udcff", "malformed"),
        ("s3:/bucket/a", "neither a path nor a URI"),
        ("s3:bucket/a", "neither a path nor a URI"),
        ("s3:", "neither a path nor a URI"),
        ("S3:/bucket", "neither a path nor a URI"),
        ("s3//bucket/a", "neither a path nor a URI"),
        ("s3:\\bucket", "neither a path nor a URI"),
        (" s3://bucket/a", "neither a path nor a URI"),
        ("://bucket/a", "neither a path nor a URI"),
        ("folder/s3://bucket/a", "neither a path nor a URI"),
        ("./s3://bucket/a", "neither a path nor a URI"),
        ("host:/folder", "neither a path nor a URI"),
        ("file:folder", "neither a path nor a URI"),
        ("file://", "expected file:///FOLDER"),
        ("file://folder", "expected file:///FOLDER"),
        ("file:///folder?a=b", "expected file:///FOLDER"),
        ("file:///folder#a", "#"),
        ("file:///100%", "Write % as %25"),
        ("", "the path or URI is empty"),
        ("~/folder", "only a shell"),
    ],
)
def test_near_misses_of_locations_are_rejected(uri: str, what: str) -> None:
    with pytest.raises(ArgumentError, match=what) as found:
        folder_of(uri)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("uri", "canonical"),
    [
        ("s3a://bucket/a/", "s3://bucket/a"),
        ("s3n://bucket", "s3://bucket"),
        ("S3A://bucket/a b/ü%C3%BC", "s3://bucket/a%20b/üü"),
        ("gcs://bucket/a", "gs://bucket/a"),
        ("s3://bucket/a?region=eu-west-1", "s3://bucket/a?region=eu-west-1"),
        ("hdfs:///a/b=c", "hdfs:///a/b=c"),
        ("hdfs://ann@host:8020/a", "hdfs://ann@host:8020/a"),
        ("abfss://container@account.dfs.core.windows.net/a", "abfss://container@account.dfs.core.windows.net/a"),
    ],
)
def test_a_uri_is_normalized(uri: str, canonical: str) -> None:
    assert str(parse_location(uri)) == canonical


@pytest.mark.parametrize("text", ["file:/folder/a%20b", "file:///folder/a%20b", "FILE://localhost/folder/a b/."])
def test_a_file_uri_is_a_path(text: str) -> None:
    assert parse_location(text) == Path("/folder/a b")


@pytest.mark.parametrize("text", ["backup:2024", "a:b/c", "s3", "s3/bucket", "x s3:/a", "2024-01-31T12:00", "a~"])
def test_a_path_with_a_colon_is_not_a_uri(text: str) -> None:
    assert parse_location(text) == Path(text)


def test_a_local_folder_may_look_like_a_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path begins with ./, or is absolute."""
    monkeypatch.chdir(tmp_path)
    for text in ("./s3:", "./s3:/bucket", f"{tmp_path}/s3:"):
        folder = folder_of(text)
        assert (folder.is_local, folder_of(folder.full_uri)) == (True, folder)
        assert folder_of(folder.path) == folder
    with pytest.raises(ArgumentError, match="absolute path"):
        folder_of(Path("s3://bucket/a"))  # pathlib reduces two slashes to one


PIECES = st.sampled_from(
    [
        "s3",
        "S3a",
        "gs",
        "hdfs",
        "file",
        "mock",
        "x",
        ":",
        "/",
        "//",
        "://",
        "bucket",
        "ü",
        ".",
        "..",
        "~",
        "%",
        "%20",
        "%2F",
        "%ff",
        "%00",
        "?",
        "region=x",
        "key=hunter2",
        "&",
        "#",
        "@",
        "ann:hunter2@",
        "[",
        "]",
        "\\",
        '"',
        "'",
        "|",
        "℀",
        "٣",
        ":80",
        ":x",
    ]
) | st.sampled_from([" ", "\n", "\0", "\udcff", "\ud800"])
TEXTS = st.lists(PIECES, max_size=9).map("".join) | st.text(max_size=30)


@given(TEXTS)
def test_any_string_is_a_location_or_raises_one_error(text: str) -> None:
    """The location is the same after writing and reading it."""
    try:
        found = parse_location(text)
    except ArgumentError as error:
        problem = str(error)
    else:
        problem = ""
        assert parse_location(str(found)) == found
        assert str(parse_location(str(found))) == str(found)
        assert isinstance(found, Uri) or not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:(/|$)", str(found))
    assert problem.isprintable()
    assert "ann:hunter2@" not in problem


@given(TEXTS)
def test_a_rejected_location_does_not_create_files(text: str) -> None:
    with TemporaryDirectory() as scratch, chdir(scratch):
        try:
            parse_location(text)
        except ArgumentError:
            for use in (CableStore.open, folder_of, usable_path):
                with pytest.raises(ArgumentError):
                    use(text)
        assert not list(Path(scratch).iterdir())
