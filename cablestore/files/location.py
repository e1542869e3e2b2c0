"""From a path or URI to its folder. Credentials come from the environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from cablestore.arguments import check_instance
from cablestore.files.folder import LocalFolder, ObjectFolder
from cablestore.files.local import usable_path
from cablestore.files.remote import RemoteFolder
from cablestore.files.uri import Uri, parse_location

Location: TypeAlias = str | Path | ObjectFolder
"""What names a folder: a path, a URI as text, or the folder itself."""


def folder_of(location: Location) -> ObjectFolder:
    """Return the folder that a path or URI names. `file:` URIs and text without a scheme are local paths.

    Raises ArgumentError as `parse_location` and `usable_path`, and for an unknown scheme; MissingExtraError if the URI needs pyarrow and
    it is not installed; StorageError if the storage cannot be opened. Nothing is made.
    """
    check_location("location", location)
    if isinstance(location, ObjectFolder):
        return location
    found = parse_location(location) if isinstance(location, str) else location
    return RemoteFolder(str(found)).opened() if isinstance(found, Uri) else LocalFolder(usable_path(found))


def check_location(name: str, location: object) -> None:
    """Raise ArgumentError for a value that is not a path or a URI."""
    check_instance(name, location, (str, os.PathLike, ObjectFolder), "a path or a URI")
