"""From a path or URI to its folder. Credentials come from the environment, so a URI that has any is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from cablestore.errors import LocationError
from cablestore.files.folder import LocalFolder, ObjectFolder
from cablestore.files.remote import RemoteFolder, uri_of

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SECRET: Final = re.compile(r"key|secret|token|password|passwd|credential|signature|^sig$|^sas", re.IGNORECASE)
"""Names of options that are credentials."""
_NO_USER: Final = frozenset({"s3", "s3a", "s3n"})
"""Schemes in which what precedes an @ is a credential. Others have there a user or a container, which is no secret."""
_VARIABLES: Final = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or in a profile that AWS_PROFILE names",
    "gs": "the file that GOOGLE_APPLICATION_CREDENTIALS names",
    "abfs": "AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET",
}
_SAME: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs"}


Location: TypeAlias = str | Path | ObjectFolder
"""What names a folder: a path, a URI as text, or the folder itself."""


def is_uri(text: str) -> bool:
    """Tell whether text is a URI. All other text is a path."""
    return _SCHEME.match(text) is not None


def folder_of(location: Location) -> ObjectFolder:
    """Return the folder that a path or URI names. `file://` and text without a scheme are local paths.

    Raises LocationError for a malformed URI, an unknown scheme, a NUL character, or a URI with credentials;
    MissingExtraError if the URI needs pyarrow and it is not installed; StorageError if the storage cannot be opened.
    """
    if isinstance(location, ObjectFolder):
        return location
    if isinstance(location, Path) or not is_uri(location):
        _refuse_nul(str(location))
        return LocalFolder(Path(location))
    try:
        parts = urlsplit(location)
        has_password = parts.password is not None
    except ValueError as error:
        raise LocationError(f"a URI is malformed: {error}. Expected SCHEME://PLACE/FOLDER") from None
    _refuse_credentials(parts, has_password=has_password)
    _refuse_nul(unquote(location))
    if parts.fragment:
        raise LocationError(f"{location} has a #, expected SCHEME://PLACE/FOLDER: write # as %23")
    if not parts.netloc and parts.scheme in _VARIABLES.keys() | _SAME.keys():
        raise LocationError(f"{location} names no bucket, expected {parts.scheme}://BUCKET/FOLDER")
    if parts.scheme == "file":
        return _local(parts)
    uri = uri_of(parts._replace(path=parts.path.rstrip("/")))
    return RemoteFolder(uri).opened()


def _refuse_nul(text: str) -> None:
    if "\0" in text:
        raise LocationError(f"a path or URI has a NUL character, which no name can have: {text[:100]!r}")


def _local(parts: SplitResult) -> LocalFolder:
    if parts.netloc not in {"", "localhost"} or not parts.path or parts.query:
        raise LocationError(f"{uri_of(parts)} is not a folder of this machine: expected file:///FOLDER")
    path = unquote(parts.path)
    if "\0" in path:
        raise LocationError(f"{uri_of(parts)} has a NUL in it, which no path can have")
    return LocalFolder(Path(path))


def _refuse_credentials(parts: SplitResult, *, has_password: bool) -> None:
    """Raise LocationError, without the secret in it, for a URI with a user and password, or with keys."""
    scheme = _SAME.get(parts.scheme, parts.scheme)
    has_user = "@" in parts.netloc and scheme in _NO_USER
    if not has_password and not has_user and not any(_SECRET.search(name) for name, _ in _options(parts)):
        return
    where = _VARIABLES.get(scheme, "the environment of its storage")
    raise LocationError(f"a URI of {parts.scheme}:// has credentials in it, which others can read: put them in {where}")


def _options(parts: SplitResult) -> list[tuple[str, str]]:
    return parse_qsl(parts.query, keep_blank_values=True)
