"""An S3 server for tests, its environment variables, and its objects."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final

from folders import SUPPORT

KEY: Final = "test-key"
SECRET: Final = "test-secret"
_numbers: Final = count()


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server, and one bucket of it."""

    port: int
    bucket: str = ""

    def with_new_bucket(self) -> S3Server:
        """Return the same server with a new, empty bucket."""
        server = replace(self, bucket=f"cable-tests-{next(_numbers)}")
        client = server._client()
        client.create_bucket(Bucket=server.bucket)
        return server

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables for programs that use it."""
        return environment_of(self.port)

    def uri(self, path: str) -> str:
        return f"s3://{self.bucket}/{path}"

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """Return all objects with a prefix, by the rest of the key, without those by which pyarrow marks a folder."""
        client = self._client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        keys = [entry["Key"] for page in pages for entry in page.get("Contents", ()) if not entry["Key"].endswith("/")]
        return {key.removeprefix(prefix): client.get_object(Bucket=self.bucket, Key=key)["Body"].read() for key in keys}

    def put(self, key: str, data: bytes) -> None:
        client = self._client()
        client.put_object(Bucket=self.bucket, Key=key, Body=data)

    def remove(self, key: str) -> None:
        client = self._client()
        client.delete_object(Bucket=self.bucket, Key=key)

    def uploads(self) -> list[str]:
        """Return the keys of unfinished multipart uploads."""
        client = self._client()
        return [upload["Key"] for upload in client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", ())]

    def _client(self) -> Any:
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )


def environment_of(port: int) -> dict[str, str]:
    """Return the variables for an S3 server, or a proxy of one, at a port of this machine."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run a server with an empty bucket."""
    command = [sys.executable, str(SUPPORT / "s3_child.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            yield S3Server(int(child.stdout.readline())).with_new_bucket()
        finally:
            child.stdin.close()
            child.wait()
