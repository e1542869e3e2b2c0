"""Paths and URIs as text. Parsing does not access files: any text results in a path, a URI, or an ArgumentError.

Text that is almost a URI is rejected. As a path it would name a local folder such as `s3:`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from cablestore.errors import ArgumentError

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_OBJECT_STORES: Final = "s3|s3a|s3n|gs|gcs|abfs|abfss"
_ALMOST: Final = re.compile(
    rf"[A-Za-z][A-Za-z0-9+.-]*:(/|\\|$)|\\\\|({_OBJECT_STORES}|az|adl|wasbs?|hdfs|viewfs|file|https?|s?ftp)(:|//)",
    re.IGNORECASE,
)
"""Start of a path that was meant as a URI, such as s3:/bucket, s3:bucket, s3//bucket or host:/folder, or as a path of
another system: C:\\folder or \\\\server\\folder.
"""
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_QUOTED: Final = re.compile(r"[\x00-\x20\x7f\"%<>?#\[\\\]^`{|}]")
"""Characters that are escaped in the folders of a URI."""
_SECRET: Final = re.compile(r"key|secret|token|password|passwd|credential|signature|^sig$|^sas", re.IGNORECASE)
"""Names of options that are credentials."""
_VARIABLES: Final = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or in a profile that AWS_PROFILE names",
    "gs": "the file that GOOGLE_APPLICATION_CREDENTIALS names",
    "abfs": "AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET",
    "abfss": "AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET",
}
"""Where the credentials of an object store are read from, by the scheme of its URIs. These URIs contain a bucket."""
_SAME: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
"""Other names of schemes in Hadoop and Spark."""
_NO_USER: Final = frozenset({"s3"})
"""Schemes in which the part before an @ is a credential. In other schemes, that part is a user or a container, which is
not secret."""
_SHOWN: Final = 100
_MALFORMED: Final = (
    "a URI is malformed: its server or port is invalid, or it is not UTF-8. Expected SCHEME://PLACE/FOLDER"
)


def escaped(name: str) -> str:
    """Return the name of a folder, escaped for a URI."""
    return _QUOTED.sub(lambda found: quote(found[0]), name)


@dataclass(frozen=True, slots=True)
class Uri:
    """URI of a folder that is not on this machine. `str()` returns the canonical form."""

    scheme: str
    host: str
    """Bucket or server, with optional parts: a container, a port."""
    folders: tuple[str, ...]
    """Decoded names of the folders on the path."""
    options: str = ""
    """Query string."""

    def __str__(self) -> str:
        path = "".join(f"/{escaped(name)}" for name in self.folders)
        return f"{self.scheme}://{self.host}{path}" + (f"?{self.options}" if self.options else "")


def parse_location(text: str) -> Path | Uri:
    """Parse a string as a path or a URI. A `file:` URI is a path.

    Raises ArgumentError for a malformed URI, a URI with credentials, a path that looks like a URI, an empty string, and
    invalid characters.
    """
    if not text:
        raise ArgumentError("the path or URI is empty. Write . for the current folder")
    if "\0" in text:
        raise ArgumentError(f"{shown(text)} contains a NUL character, which paths and URIs cannot contain")
    scheme = _SCHEME.match(text)
    if scheme is None:
        return _file(text) if re.match(r"file:/", text, re.IGNORECASE) else _path(text)
    parts = _split(text)
    if "#" in text:
        raise ArgumentError(f"{shown(text)} contains a #, expected SCHEME://PLACE/FOLDER. Write # as %23")
    if parts.scheme == "file":
        return _file(text)
    _require_bucket(text, parts)
    return Uri(parts.scheme, parts.netloc, _folders(text, parts.path), parts.query)


def local_path(location: str | os.PathLike[str]) -> Path:
    """Return the path of a file or folder on this machine. Raises ArgumentError for anything else."""
    if not isinstance(location, str | os.PathLike) or not isinstance(os.fspath(location), str):
        raise ArgumentError(f"invalid path: expected a str or pathlib.Path, got {type(location).__name__}")
    text = os.fspath(location)
    found = parse_location(text)
    if isinstance(found, Uri):
        raise ArgumentError(f"{shown(text)} is not on this machine: expected the path of a local file or folder")
    return found


def _path(text: str) -> Path:
    if "://" in text or _ALMOST.match(text):
        raise ArgumentError(
            f"{shown(text)} is neither a path nor a URI such as s3://BUCKET/FOLDER. For a local folder of this name, "
            "write its absolute path, or ./ before it"
        )
    if text == "~" or text.startswith("~/"):
        raise ArgumentError(
            f"{shown(text)} begins with ~, which only a shell replaces. Write the whole path, or set HOME"
        )
    path = Path(text)
    if not _ALMOST.match(str(path)):
        return path
    try:
        return path.absolute()  # without ./ it would be parsed as a URI
    except OSError as error:
        raise ArgumentError(f"the current folder is not accessible: {error.strerror}") from None


def _split(text: str) -> SplitResult:
    """Return the parts of a URI without credentials, with the canonical name of its scheme."""
    try:
        text.encode()
        parts = urlsplit(text)
    except ValueError:  # the message may contain a password
        raise ArgumentError(_MALFORMED) from None
    parts = parts._replace(scheme=_SAME.get(parts.scheme, parts.scheme))
    _reject_credentials(parts)
    try:
        _ = parts.port
    except ArgumentError:
        raise
    except ValueError:
        raise ArgumentError(_MALFORMED) from None
    if _CONTROL.search(text) or text.strip() != text:
        raise ArgumentError(f"{shown(text)} begins or ends with a space, or contains a control character")
    return parts


def _require_bucket(text: str, parts: SplitResult) -> None:
    if not parts.netloc.rpartition("@")[2] and parts.scheme in _VARIABLES:
        raise ArgumentError(f"{shown(text)} lacks a bucket, expected {parts.scheme}://BUCKET/FOLDER")
    if parts.netloc in {".", ".."} or re.search(r"[\s%\\]", parts.netloc):
        raise ArgumentError(f"{shown(text)} is malformed: {parts.netloc!r} is not a bucket or server")


def _folders(text: str, path: str) -> tuple[str, ...]:
    names = path.split("/")[1:]
    if names and not names[-1]:
        names.pop()  # the URI ends with a slash
    if "" in names:
        raise ArgumentError(f"{shown(text)} contains an empty folder name. Remove a slash, or set the empty variable")
    decoded = tuple(_decoded(text, name) for name in names)
    for name in decoded:
        if name in {".", ".."} or "/" in name:
            raise ArgumentError(f"{shown(text)} contains {name!r}, which is not the name of a folder")
    return decoded


def _decoded(text: str, name: str) -> str:
    if _BAD_ESCAPE.search(name):
        raise ArgumentError(f"{shown(text)} contains a % without two hex digits after it. Write % as %25")
    try:
        found = unquote(name, errors="strict")
    except UnicodeDecodeError:
        raise ArgumentError(f"{shown(text)} contains escapes that are not UTF-8. Write % as %25") from None
    if _CONTROL.search(found):
        raise ArgumentError(f"{shown(text)} contains a control character, such as NUL, which names cannot contain")
    return found


def _file(text: str) -> Path:
    """Return the path of a `file:` URI: file:///FOLDER, file://localhost/FOLDER or file:/FOLDER."""
    parts = _split(text)
    if parts.netloc not in {"", "localhost"} or not parts.path or parts.query or "#" in text:
        raise ArgumentError(f"{shown(text)} is not a folder of this machine: expected file:///FOLDER")
    return Path(_decoded(text, parts.path))


def _reject_credentials(parts: SplitResult) -> None:
    """Raise ArgumentError, without the secret, for a URI with a user and password, or with keys."""
    has_user = "@" in parts.netloc and parts.scheme in _NO_USER
    options = parse_qsl(parts.query, keep_blank_values=True)
    if parts.password is None and not has_user and not any(_SECRET.search(name) for name, _ in options):
        return
    where = _VARIABLES.get(parts.scheme, "the environment of its storage")
    raise ArgumentError(
        f"the URI of {parts.scheme}:// contains credentials, which other users can read. Put them in {where}"
    )


def shown(text: str) -> str:
    """Return text for a message: on one line, shortened, and without possible passwords."""
    found = re.sub(r"[^/]*@", "...@", text.partition("?")[0])
    shown = found if len(found) <= _SHOWN else f"{found[:_SHOWN]}..."
    return shown if shown.isprintable() else ascii(shown)
