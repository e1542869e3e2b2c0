"""Values that commands among peers are given: addresses, the cabal key, names of channels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cablestore import limits
from cablestore.errors import NodeError
from cablestore.protocol.crypto import KEY_SIZE_BYTES

if TYPE_CHECKING:
    from cablestore.peers import Address


class AddressType(click.ParamType["Address"]):
    """HOST:PORT; port 0 is one that is free, where it is to listen on."""

    name = "address"

    def __init__(self, *, to_connect: bool = False) -> None:
        self._to_connect = to_connect

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        """Return host and port."""
        from cablestore.peers import Address  # noqa: PLC0415 - other commands need no asyncio and what comes with it

        if isinstance(value, Address):
            return value  # it was converted already
        try:
            address = Address.parse(str(value))
            address.host.encode("idna" if ":" not in address.host else "ascii")
        except NodeError as error:
            self.fail(str(error), param, ctx)
        except UnicodeError:
            self.fail(f"{value!r} is no address: no host can have this name", param, ctx)
        if self._to_connect and address.port == 0:
            self.fail(f"{value!r}: nobody listens on port 0", param, ctx)
        return address


class CabalKey(click.ParamType[bytes]):
    """A key in 64 hex digits, or @ and the file that holds them. No error shows what was given: it is secret."""

    name = "key"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        """Return the 32 bytes."""
        if isinstance(value, bytes):
            return value
        text, where = str(value).strip(), "what was given"
        if text.startswith("@"):
            where = text[1:]
            try:
                text = Path(where).read_text(encoding="ascii").strip()
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else "it holds something else"
                self.fail(f"the cabal key cannot be read from {where}: {why}", param, ctx)
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = b""
        if len(key) != KEY_SIZE_BYTES:
            self.fail(
                f"a cabal key has {2 * KEY_SIZE_BYTES} hex digits, {where} has {len(text)} characters that are not that",
                param,
                ctx,
            )
        return key


class ChannelName(click.ParamType[str]):
    """The name of a channel."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name, if a channel can have it."""
        text = str(value)
        if not 1 <= len(text) <= limits.MAX_CHANNEL_CODEPOINTS:
            most = limits.MAX_CHANNEL_CODEPOINTS
            self.fail(f"a channel's name has {len(text)} code points, allowed are 1 to {most}", param, ctx)
        _encoded(self, text, param, ctx)
        return text


class Prologue(click.ParamType[bytes]):
    """Text that both sides of a handshake have to agree on."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        """Return it as UTF-8."""
        return value if isinstance(value, bytes) else _encoded(self, str(value), param, ctx)


def _encoded(of: click.ParamType[Any], text: str, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        of.fail(f"{text[:80]!r} is not UTF-8", param, ctx)
