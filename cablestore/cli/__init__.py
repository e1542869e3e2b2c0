"""Command line: `cablestore COMMAND`.

Exit status:

* 0: success.
* 1: a check of a store, export, archive or backup, or `reconcile --audit`, found problems; `rebuild` or `restore` lost
  posts; an import of archives or chat logs was incomplete; or Spark failed.
* 2: invalid input, or the store cannot be opened.
* 3: a read or write of the disk failed, or stored data is damaged.
* 130: Ctrl-C.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import Final

import click

from cablestore import __version__
from cablestore.cli.commands import LazyGroup
from cablestore.errors import ArgumentError, CableStoreError, StorageError
from cablestore.extras import naming_extras
from cablestore.files import is_request_in_progress
from cablestore.streams import output_error

_MIN_DESCRIPTORS: Final = 32
"""Minimum limit of open files. `serve` needs 24 without peers. With fewer, uvloop ends the process without a message."""


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="cablestore")
def cli() -> None:
    """An indexed message store for peer-to-peer chat."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    try:
        _require_descriptors()
        with naming_extras():
            status = cli.main(arguments, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted: stored data is kept", err=True)
        status = 130
    except CableStoreError as error:
        click.echo(f"cablestore: {error}", err=True)
        status = error.exit_status
    except OSError as error:
        what = f" {error.filename}" if error.filename else ""
        click.echo(f"cablestore: cannot read or write{what}: {error.strerror or error}", err=True)
        status = StorageError.exit_status
    unwritten = output_error()
    if unwritten is not None:
        reason = unwritten.strerror or unwritten
        click.echo(f"cablestore: cannot write to standard output: {reason}. Redirect it to another file", err=True)
        status = status or StorageError.exit_status
    if status == 130 and is_request_in_progress():
        os._exit(status)  # a normal exit would wait for the object store, which may hang
    sys.exit(status or 0)


def _require_descriptors() -> None:
    """Raise the limit of open files to the minimum. Raises ArgumentError if the system does not allow it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not 0 <= soft < _MIN_DESCRIPTORS:  # RLIM_INFINITY is negative
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_MIN_DESCRIPTORS, hard))
    except (OSError, ValueError):
        raise ArgumentError(
            f"the limit of open files is too low: {soft}. Raise it to at least {_MIN_DESCRIPTORS} (`ulimit -n`)"
        ) from None
