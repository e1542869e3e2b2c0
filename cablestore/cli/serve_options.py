"""Options of the commands that run a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, Final

import click

from cablestore.cli.maintenance_options import PARAMETERS
from cablestore.cli.options import all_of
from cablestore.cli.policy_options import CHANGEABLE_POLICY, policy_settings
from cablestore.cli.values import ParamType, PathValue, cabal_key, channel_name, duration, duration_text, prologue
from cablestore.errors import NodeError
from cablestore.peers import Address, Invitation, NodeSettings
from cablestore.store.keep_ages import KeepAges


class AddressType(ParamType[Address]):
    """Address HOST:PORT. For listening, port 0 means any free port."""

    name = "address"

    def __init__(self, *, to_connect: bool = False) -> None:
        self._to_connect = to_connect

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        """Return host and port."""
        if isinstance(value, Address):
            return value  # already converted
        try:
            address = Address.parse(str(value))
            address.host.encode("idna" if ":" not in address.host else "ascii")
        except NodeError as error:
            self.fail(str(error), param, ctx)
        except UnicodeError:
            self.fail(f"invalid address {value!r}: invalid host name", param, ctx)
        if self._to_connect and address.port == 0:
            self.fail(f"invalid address {value!r}: cannot connect to port 0", param, ctx)
        return address


joining_options = all_of(
    click.option(
        "--invitation",
        type=PathValue(allow_dash=True),
        metavar="FILE",
        help="File with an invitation that `cablestore invite` printed, or - for standard input. It sets the cabal "
        "key, the peers and the moderation seed.",
    ),
    click.option(
        "--cabal-key",
        type=cabal_key,
        metavar="@FILE|HEX",
        help="Shared key of all members, 64 hex digits. It encrypts connections; peers without it cannot connect. Use "
        "a file, an invitation or the environment: every user of the machine can see the command line.",
    ),
    click.option(
        "--channels", type=channel_name, multiple=True, help="Follow only this channel; repeatable [default: all]."
    ),
    click.option("--prologue", type=prologue, help="Prologue of the handshake [default: CABLE/1.0]."),
    click.option(
        "--separate-static-key/--no-separate-static-key",
        help="Use a separate static key in the handshake, not the identity key, as cable-handshake.ts does.",
    ),
)
"""Options of all commands that connect to peers. They define how the commands join the cabal."""

peer_options = all_of(
    joining_options,
    click.option("--create", is_flag=True, help="Create the store if it does not exist."),
)
"""Options of commands that connect to peers, and create a store only on request."""

sync_options = all_of(
    peer_options,
    click.option(
        "--window",
        "window",
        type=duration,
        metavar="DURATION",
        help="Maximum age of posts to request, such as 20w [default: no limit].",
    ),
)


def _addresses(name: str, meaning: str) -> Callable[[Any], Any]:
    address = AddressType(to_connect=name.endswith("connect"))
    return click.option(name, type=address, multiple=True, metavar="HOST:PORT", help=f"{meaning}; repeatable.")


address_options = all_of(
    _addresses("--listen", "Accept connections on this address"),
    _addresses("--connect", "Stay connected to this peer"),
    _addresses("--reconcile-listen", "Accept connections for reconciliation only"),
    _addresses("--reconcile-connect", "Stay connected to this peer's reconciliation port"),
)

_MS: Final = {"s": 1000, "ms": 1}


def _option_name(setting: Field[Any]) -> str:
    name = setting.name.removesuffix(f"_{setting.metadata['unit']}").replace("_", "-")
    return str(setting.metadata["option"] or name)


_SETTINGS: Final = {_option_name(setting): setting for setting in fields(NodeSettings) if "help" in setting.metadata}
"""Fields of the settings that an option of `serve` sets, by the name of the option."""


def _option(name: str, setting: Field[Any]) -> Callable[[Any], Any]:
    """Return the option --`name`, which sets the field `setting`. Its type depends on the field's type and unit."""
    default: Any = setting.default
    meaning, unit = setting.metadata["help"], setting.metadata["unit"]
    if isinstance(default, bool):
        text = f"{meaning.removesuffix('.')} [default: {'on' if default else 'off'}]."
        return click.option(f"--{name}/--no-{name}", default=default, help=text)
    if unit in _MS:
        kind: ParamType[Any] = duration
        metavar, default = "DURATION", duration_text(default * _MS[unit])
    else:
        kind = click.IntRange(setting.metadata["least"])
        metavar = "BYTES" if unit == "bytes" else "N"
    return click.option(f"--{name}", type=kind, metavar=metavar, default=default, show_default=True, help=meaning)


setting_options = all_of(*(_option(name, setting) for name, setting in _SETTINGS.items()))
"""Options of `serve` that each set one field of the settings."""


CHANGEABLE: Final = frozenset(
    {"connect", "reconcile_connect", "log_level", *PARAMETERS, *CHANGEABLE_POLICY}
    | {name.replace("-", "_") for name, setting in _SETTINGS.items() if setting.metadata["changes"]}
)
"""Parameters of `serve` that can change while it runs."""


def invited(chosen: dict[str, Any], known: Invitation | None = None) -> Invitation | None:
    """Return the invitation that the options `chosen` select, and set its key in `chosen` as the option --cabal-key.

    `known` is an invitation that was already read from standard input. Returns None without --invitation. Raises
    ArgumentError for an invalid invitation, and UsageError if --cabal-key names another key.
    """
    path = chosen.pop("invitation")
    if path is None:
        return None
    invitation = known if known is not None and path == Path("-") else Invitation.read(path)
    if chosen["cabal_key"] not in (None, invitation.cabal_key):
        raise click.UsageError("the cabal key differs from the key in the invitation. Use only one of them")
    chosen["cabal_key"] = invitation.cabal_key
    return invitation


def settings_of(chosen: dict[str, Any]) -> NodeSettings:
    """Return the settings of a node that options select."""
    more: dict[str, Any] = {}
    for name, setting in _SETTINGS.items():
        param = name.replace("-", "_")
        if param in chosen:
            more[setting.name] = chosen[param] / 1000 if setting.metadata["unit"] == "s" else chosen[param]
    if chosen["prologue"] is not None:
        more["prologue"] = chosen["prologue"]
    channels = frozenset(chosen["channels"]) or None
    return NodeSettings(
        cabal_key=chosen["cabal_key"],
        has_separate_static_key=chosen["separate_static_key"],
        channels=channels if chosen.get("follow", True) else frozenset(),
        window_ms=chosen.get("window"),
        keep=KeepAges(chosen.get("keep"), dict(chosen.get("keep_channel", ()))),
        **policy_settings(chosen),
        **more,
    )
