"""The command `share`: read access to a folder for its group."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from cablestore.archive.content.folder import is_own as is_of_content
from cablestore.archive.names import DATA, INDEX
from cablestore.backup.manifest import is_own as is_of_backup
from cablestore.cli.options import json_option
from cablestore.cli.output import Output
from cablestore.cli.values import PathValue
from cablestore.export.manifest import is_own as is_of_export
from cablestore.files import set_access, storage_errors
from cablestore.index.folder import is_own as is_of_store


def _is_own(name: str) -> bool:
    return is_of_store(name) or is_of_backup(name) or is_of_export(name) or is_of_content(name) or name in {DATA, INDEX}


@click.command()
@click.argument("folder", metavar="DIR", type=PathValue())
@click.option("--private", "is_private", is_flag=True, help="Revoke group access.")
@json_option
def share(folder: Path, as_json: bool, is_private: bool) -> None:
    """Allow group access to a store, export, backup or archive.

    The folder receives mode 0750 and files mode 0640, including files that are written later. Keys and sockets
    remain private. Use `chgrp -R GROUP DIR` to set the group.

    Example: `cablestore share /media/disk/backup`
    """
    with storage_errors(folder):
        if not folder.is_dir() or not any(_is_own(entry.name) for entry in folder.iterdir()):
            raise click.UsageError(
                f"{folder} is not the folder of a store, an export, a backup or an archive. Check the path"
            )
        set_access(folder, _is_own, shared=not is_private)
    readers = "only its owner" if is_private else f"its owner and the group {folder.group()}"
    Output(as_json=as_json).say(f"{folder} is readable by {readers}", folder=str(folder), shared=not is_private)


COMMANDS: Final = (share,)
