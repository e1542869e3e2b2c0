"""Files on this disk, locks, and folders of complete files at any path or URI."""

from cablestore.files.access import create, file_mode, make_folder, make_part, restrict, set_access, set_files
from cablestore.files.folder import LocalFolder, MissingFileError, ObjectFile, ObjectFolder, file_of
from cablestore.files.foreign import is_foreign
from cablestore.files.local import (
    atomic_file,
    cache_folder,
    lock,
    open_folder,
    read_small,
    share_lock,
    sign_lock,
    storage_errors,
    sync_file,
    sync_folder,
    text_of,
    try_lock,
    unique_suffix,
    unlock,
    usable_path,
    write_atomically,
)
from cablestore.files.location import Location, check_location, folder_of
from cablestore.files.many import for_each, remove
from cablestore.files.mounts import require_mount
from cablestore.files.remote import is_request_in_progress
from cablestore.files.temporary import TemporaryFolder, make_locked, make_temporary, remove_unused
from cablestore.files.usage import DiskUsage, disk_usage

__all__ = [
    "DiskUsage",
    "LocalFolder",
    "Location",
    "MissingFileError",
    "ObjectFile",
    "ObjectFolder",
    "TemporaryFolder",
    "atomic_file",
    "cache_folder",
    "check_location",
    "create",
    "disk_usage",
    "file_mode",
    "file_of",
    "folder_of",
    "for_each",
    "is_foreign",
    "is_request_in_progress",
    "lock",
    "make_folder",
    "make_locked",
    "make_part",
    "make_temporary",
    "open_folder",
    "read_small",
    "remove",
    "remove_unused",
    "require_mount",
    "restrict",
    "set_access",
    "set_files",
    "share_lock",
    "sign_lock",
    "storage_errors",
    "sync_file",
    "sync_folder",
    "text_of",
    "try_lock",
    "unique_suffix",
    "unlock",
    "usable_path",
    "write_atomically",
]
