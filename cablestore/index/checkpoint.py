"""Checkpoints: copies of the present state of an open store, made of links in milliseconds.

A checkpoint is the folder of a closed store. So another process can read it for minutes, while the process that has the
store open continues to answer. The checkpoint and the store share the files of tables. This is safe, because a store
never changes a table: it only removes its own link.
"""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from cablestore.files import storage_errors
from cablestore.index.folder import CAUSAL_LOGS, IDENTITY_FILE, Folder
from cablestore.index.header import put_header
from cablestore.index.leveldb_checkpoint import link_open_database


def write_checkpoint(folder: Folder, target: Path, writing: AbstractContextManager[object]) -> None:
    """Write a checkpoint of an open store to an empty folder on the same disk.

    The checkpoint has the store's id, so backups and exports continue from it. It links to the store's causal logs.
    `writing` locks out writers.
    """
    header = folder.header
    with storage_errors(target):
        link_open_database(folder.path / header.generation, target / header.generation, writing)
        key = folder.path / IDENTITY_FILE
        if key.exists():
            try:
                (target / IDENTITY_FILE).hardlink_to(key)
            except OSError:  # the file system does not support links
                shutil.copy2(key, target / IDENTITY_FILE)
        if (folder.path / CAUSAL_LOGS).is_dir():
            (target / CAUSAL_LOGS).symlink_to(folder.path / CAUSAL_LOGS)
        put_header(target, replace(header, kept=()))
