"""Options of `serve` for its policy: the file, the policy command, and the quota."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from cablestore.cli.options import all_of
from cablestore.cli.output import safe
from cablestore.cli.values import PathValue, duration, text_value
from cablestore.peers import NodeSettings
from cablestore.peers.policy import NAME, read_policy

_UNITS: Final = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_MOST_BYTES: Final = 10**15


@text_value("size", int)
def storage_size(text: str) -> int:
    """Return a size such as 500MB or 20GB in bytes."""
    found = re.fullmatch(r"([0-9]{1,15}) ?([kmgt]b)", text.strip().lower())
    size_bytes = 0 if found is None else int(found[1]) * _UNITS[found[2].upper()]
    if not 0 < size_bytes <= _MOST_BYTES:
        raise ValueError(f"invalid size {text[:40]!r}: expected a value such as 500MB, 20GB or 1TB, at most 1000TB")
    return size_bytes


@text_value("command", tuple)
def program(text: str) -> tuple[str, ...]:
    """Split a command into words. Raises ValueError if its program is missing or not executable."""
    words = tuple(shlex.split(text))
    if not words or shutil.which(words[0]) is None:
        found = safe(words[0][:80]) if words else ""
        raise ValueError(f"invalid command: the program {found!r} is missing or not executable")
    return words


policy_options = all_of(
    click.option(
        "--policy",
        type=PathValue(),
        metavar="FILE",
        help="File with the policy: authors, channels and peers to accept, rates and sizes [default: policy.toml in "
        "the store's folder, if it exists].",
    ),
    click.option(
        "--policy-command",
        type=program,
        metavar="COMMAND",
        help="Program that decides on each received post. It reads and writes a JSON line per post [default: none].",
    ),
    click.option(
        "--policy-timeout",
        type=duration,
        metavar="DURATION",
        default="5s",
        show_default=True,
        help="Maximum time for the policy command to answer.",
    ),
    click.option(
        "--policy-failure",
        type=click.Choice(["accept", "reject", "postpone"]),
        default="postpone",
        show_default=True,
        help="Decision on a post if the policy command fails to decide. Postponed posts are requested again.",
    ),
    click.option(
        "--max-store-size",
        type=storage_size,
        metavar="SIZE",
        help="Maximum size of the store's folder, such as 20GB. Near this size, the node accepts only some posts "
        "[default: none].",
    ),
    click.option(
        "--min-free-space",
        type=storage_size,
        metavar="SIZE",
        help="Minimum free space on the store's disk, such as 1GB [default: none].",
    ),
)
"""Options of `serve` for its policy."""

CHANGEABLE_POLICY: Final = frozenset({"policy_timeout", "policy_failure", "max_store_size", "min_free_space"})
"""Parameters of these options that can change while `serve` runs. The policy file is also read again."""


def check_policy(store: Path, settings: NodeSettings) -> None:
    """Raise NodeError if the policy of a node is invalid, before its store is opened."""
    path = settings.policy_path or store / NAME
    if settings.policy_path is not None or path.exists():
        read_policy(path)


def policy_settings(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `NodeSettings` that options select."""
    if "policy_command" not in chosen:  # a command without these options
        return {}
    return {
        "policy_path": chosen["policy"],
        "policy_command": chosen["policy_command"] or (),
        "policy_timeout_s": chosen["policy_timeout"] / 1000,
        "policy_failure": chosen["policy_failure"],
        "max_store_size_bytes": chosen["max_store_size"] or 0,
        "min_free_space_bytes": chosen["min_free_space"] or 0,
    }
