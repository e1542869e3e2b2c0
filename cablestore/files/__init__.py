"""Files: whole ones on this disk, locks, and folders of whole files wherever a path or URI leads."""

from cablestore.files.folder import LocalFolder, ObjectFolder
from cablestore.files.local import (
    lock,
    open_folder,
    sign_lock,
    storage_errors,
    sync_folder,
    try_lock,
    unique_suffix,
    whole_file,
    write_whole,
)
from cablestore.files.location import folder_of

__all__ = [
    "LocalFolder",
    "ObjectFolder",
    "folder_of",
    "lock",
    "open_folder",
    "sign_lock",
    "storage_errors",
    "sync_folder",
    "try_lock",
    "unique_suffix",
    "whole_file",
    "write_whole",
]
