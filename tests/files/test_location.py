"""Paths and URIs: what names a folder, and what is refused."""

from __future__ import annotations

import pytest
from s3 import S3Server

from cablestore.errors import LocationError
from cablestore.files import folder_of
from cablestore.files.remote import RemoteFolder


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
def test_credentials_in_a_uri_are_refused_and_not_repeated(uri: str, where: str) -> None:
    with pytest.raises(LocationError, match=where) as found:
        folder_of(uri)
    assert "hunter2" not in str(found.value)
    assert "AKIA" not in str(found.value)
    assert found.value.exit_status == 2


@pytest.mark.parametrize(
    ("uri", "what"),
    [
        ("nosuch://bucket/folder", "Unrecognized filesystem type"),
        ("http://host/folder", "Unrecognized filesystem type"),
        ("s3:///folder", "names no bucket"),
        ("gs://", "names no bucket"),
        ("s3://[bucket/folder", "malformed"),
        ("s3://bucket/folder#part", "write # as %23"),
        ("s3://bucket/folder?colour=red", "colour"),
        ("file://host/folder", "not a folder of this machine"),
        ("file:///folder/a%00b", "NUL"),
        ("s3://bucket/a%00b", "NUL"),
        ("mock:///a%00b", "NUL"),
        ("folder/a\0b", "NUL"),
    ],
)
def test_what_is_no_folder_is_refused_in_one_line(s3: S3Server, uri: str, what: str) -> None:
    with pytest.raises(LocationError, match=what) as found:
        folder_of(uri)
    assert "\n" not in str(found.value)


def test_an_upper_case_scheme_is_the_same(s3: S3Server) -> None:
    assert folder_of("S3://bucket/folder") == folder_of("s3://bucket/folder/")


@pytest.mark.parametrize("uri", ["mock:///community/export", "mock://host/export"])
def test_a_uri_leads_to_the_same_folder_again(uri: str) -> None:
    """A URI without a host keeps its //. Without them it would be a local path."""
    folder = folder_of(f"{uri}/")
    assert (folder.uri, folder.full_uri, folder.is_local) == (uri, uri, False)
    assert folder_of(folder.full_uri) == folder
    assert folder_of(folder.child("a b").full_uri).uri == f"{uri}/a%20b"


def test_a_folder_below_a_uri_without_a_host_is_a_uri_too() -> None:
    folder = RemoteFolder("hdfs:///export?user=ann")
    assert (folder.uri, folder.child("a").full_uri) == ("hdfs:///export", "hdfs:///export/a?user=ann")
