"""Files: whole ones on this disk, locks, and folders of whole files wherever a path or URI leads."""

from cablestore.files.folder import LocalFolder, ObjectFile, ObjectFolder, file_of
from cablestore.files.local import (
    cache_folder,
    lock,
    open_folder,
    share_lock,
    sign_lock,
    storage_errors,
    sync_file,
    sync_folder,
    text_of,
    try_lock,
    unique_suffix,
    usable_path,
    whole_file,
    write_whole,
)
from cablestore.files.location import Location, folder_of
from cablestore.files.many import for_each, remove
from cablestore.files.remote import is_request_in_progress
from cablestore.files.temporary import TemporaryFolder, make_temporary

__all__ = [
    "LocalFolder",
    "Location",
    "ObjectFile",
    "ObjectFolder",
    "TemporaryFolder",
    "cache_folder",
    "file_of",
    "folder_of",
    "for_each",
    "is_request_in_progress",
    "lock",
    "make_temporary",
    "open_folder",
    "remove",
    "share_lock",
    "sign_lock",
    "storage_errors",
    "sync_file",
    "sync_folder",
    "text_of",
    "try_lock",
    "unique_suffix",
    "usable_path",
    "whole_file",
    "write_whole",
]
