"""Files: whole ones on this disk, locks, and folders of whole files wherever a path or URI leads."""

from cablestore.files.access import create, file_mode, make_folder, make_part, restrict, set_access, set_files
from cablestore.files.folder import LocalFolder, ObjectFile, ObjectFolder, file_of
from cablestore.files.foreign import is_foreign
from cablestore.files.local import (
    lock,
    open_folder,
    sign_lock,
    storage_errors,
    sync_folder,
    try_lock,
    unique_suffix,
    unlock,
    whole_file,
    write_whole,
)
from cablestore.files.location import Location, folder_of, is_uri
from cablestore.files.many import for_each, remove
from cablestore.files.mounts import require_mount
from cablestore.files.remote import is_request_under_way

__all__ = [
    "LocalFolder",
    "Location",
    "ObjectFile",
    "ObjectFolder",
    "create",
    "file_mode",
    "file_of",
    "folder_of",
    "for_each",
    "is_foreign",
    "is_request_under_way",
    "is_uri",
    "lock",
    "make_folder",
    "make_part",
    "open_folder",
    "remove",
    "require_mount",
    "restrict",
    "set_access",
    "set_files",
    "sign_lock",
    "storage_errors",
    "sync_folder",
    "try_lock",
    "unique_suffix",
    "unlock",
    "whole_file",
    "write_whole",
]
