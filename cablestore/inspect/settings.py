"""Settings of the page: its address, its token, and the data that it omits."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cablestore.errors import ArgumentError
from cablestore.peers import Address

MIN_TOKEN_CHARACTERS: Final = 16
"""Minimum length of a token that a user chooses."""


def new_token() -> str:
    """Return a random token of 128 bits."""
    return secrets.token_urlsafe(16)


@dataclass(frozen=True, slots=True)
class InspectSettings:
    """Settings of the page.

    Each request needs the `token`, by default a random token. `proxy_name` is the host name under which a TLS proxy
    publishes the page. `is_public` leaves out local and private data. `archives` is a folder with history archives of
    communities.

    Raises ArgumentError for a short token. Also raises it for an address that other machines can reach, unless both
    `token` and `proxy_name` are set.
    """

    address: Address
    token: str = field(default="", repr=False)
    proxy_name: str | None = None
    is_public: bool = False
    archives: Path | None = None

    def __post_init__(self) -> None:
        if self.token and len(self.token) < MIN_TOKEN_CHARACTERS:
            raise ArgumentError(
                f"token too short: {len(self.token)} characters, expected at least {MIN_TOKEN_CHARACTERS}. Use a random "
                "token"
            )
        if not _is_loopback(self.address.host) and not (self.token and self.proxy_name):
            raise ArgumentError(
                f"other machines can reach {self.address}. Use 127.0.0.1, or set a token and the host name of a TLS "
                "proxy (--token, --behind-proxy)"
            )
        if not self.token:
            object.__setattr__(self, "token", new_token())

    def link(self, address: Address) -> str:
        """Return the link for a browser, with the token."""
        origin = f"http://{address}" if self.proxy_name is None else f"https://{self.proxy_name}"
        return f"{origin}/?token={self.token}"


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
