"""Settings of `serve` from a file and from the environment. An invalid setting is reported in one line."""

from __future__ import annotations

import json
import os
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any, Final

import click
from click.core import ParameterSource

from cablestore.cli.config_file import read_tables
from cablestore.cli.output import safe
from cablestore.cli.sections import SectionedCommand
from cablestore.cli.values import cabal_key, duration, moderation_seed
from cablestore.errors import CableStoreError

PREFIX: Final = "CABLESTORE_SERVE"
"""Prefix of the environment variables that `serve` reads."""
_SECRET: Final = (cabal_key, moderation_seed)
"""Types of secret values, which messages do not show."""
_SHOWN: Final = 60
"""Maximum number of characters of an invalid value in a message."""


class SettingsError(click.ClickException):
    """Invalid settings. The message is one line, without the usage of the command."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        """Escape control characters of the message, which may contain text of the file."""
        super().__init__(safe(message))

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message as one line."""
        click.echo(f"cablestore: {self.format_message()}", file=file, err=file is None)


class ServeCommand(SectionedCommand):
    """Command that reports invalid environment variables in one line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and read the environment. Raises SettingsError for an invalid variable."""
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            name = "" if error.param is None else error.param.name or ""
            if ctx.get_parameter_source(name) is not ParameterSource.ENVIRONMENT:
                raise
            found = {each for each in variables(self) if each.endswith(f"_{name.upper()}")} & os.environ.keys()
            raise SettingsError(f"{min(found, default='the environment')}: {error.message}") from None


# --- the file -------------------------------------------------------------------------------------


def read_config(ctx: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Use the values of the file, if any, as defaults of options.

    Called before other options are read. Returns `path`.
    """
    if path is not None:
        ctx.default_map = _config(ctx, path)
    return path


def _config(ctx: click.Context, path: Path) -> dict[str, Any]:
    try:
        tables = read_tables(path)
    except click.UsageError as error:
        raise SettingsError(error.message) from None
    values = tables.pop("serve", {})
    if tables or not isinstance(values, dict):
        found = ", ".join(sorted(tables)) or f"serve = {_shown(values)}"
        raise SettingsError(f"invalid settings in {path}: expected only a table [serve], got {found}")
    known = config_keys(ctx.command)
    unknown = sorted(values.keys() - known)
    if unknown:
        raise SettingsError(f"unknown settings in {path}: {', '.join(unknown)}. {_suggestion(unknown, known)}")
    return {known[key].name or "": _config_value(ctx, path, key, known[key], value) for key, value in values.items()}


def _suggestion(unknown: list[str], known: dict[str, click.Option]) -> str:
    likely = [name for key in unknown for name in get_close_matches(key.replace("_", "-"), known, 1)]
    meant = f"Did you mean {', '.join(likely)}? " if likely else ""
    return f"{meant}Known settings: {', '.join(sorted(known))}"


def config_keys(command: click.Command) -> dict[str, click.Option]:
    """Return the options of a command that the file can set, by their long names."""
    options = (param for param in command.params if isinstance(param, click.Option) and param.name != "config")
    return {max(option.opts, key=len).removeprefix("--"): option for option in options}


def _config_value(ctx: click.Context, path: Path, key: str, option: click.Option, value: Any) -> Any:
    """Return the file's `value` for `key`. Raises SettingsError if its type is wrong, or if `option` rejects it."""
    expected, is_right = _expected(option, value)
    found = "a secret value" if option.type in _SECRET else _shown(value)
    if not is_right:
        raise SettingsError(f"{path}: invalid {key} = {found}: expected {expected}")
    if any("\0" in str(text) for text in (value if isinstance(value, list) else [value])):
        raise SettingsError(f"{path}: invalid {key} = {found}: it must not contain NUL characters")
    try:
        option.type_cast_value(ctx, value)
    except click.UsageError as error:
        is_range = isinstance(option.type, click.IntRange)
        reason = f"expected {expected}, at most {sys.maxsize}" if is_range else error.message
        raise SettingsError(f"{path}: invalid {key} = {found}: {reason}") from None
    except CableStoreError as error:
        raise SettingsError(f"{path}: invalid {key} = {found}: {error}") from None
    return value


def _expected(option: click.Option, value: Any) -> tuple[str, bool]:
    """Return a description of the values that `option` allows, and True if `value` has their type."""
    if option.multiple:
        what = "an array of strings"
        return what, isinstance(value, list) and all(isinstance(each, str) for each in value)
    if option.is_flag:
        return "true or false", isinstance(value, bool)
    if isinstance(option.type, click.IntRange):
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return f"a whole number, at least {option.type.min}", is_whole
    if isinstance(option.type, click.Choice):
        return " or ".join(f'"{choice}"' for choice in option.type.choices), isinstance(value, str)
    what = 'a duration in quotes, such as "10m"' if option.type is duration else "a string in quotes"
    return what, isinstance(value, str)


def _shown(value: Any) -> str:
    """Return a value of TOML as text, shortened."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


# --- the environment ------------------------------------------------------------------------------


def variables(command: click.Command) -> frozenset[str]:
    """Return the names of the environment variables that set the options of a command."""
    named = {str(param.envvar) for param in command.params if param.envvar}
    return frozenset(named | {f"{PREFIX}_{(param.name or '').upper()}" for param in command.params})


def unknown_variables(command: click.Command) -> list[str]:
    """Return unknown environment variables with the prefix of `serve`, such as misspelt names."""
    return sorted(name for name in os.environ.keys() - variables(command) if name.startswith(f"{PREFIX}_"))
