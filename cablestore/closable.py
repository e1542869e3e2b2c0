"""What is open until it is closed, by a call or at the end of a `with`."""

from __future__ import annotations

from typing import Self


class Closable:
    """Base of what a `with` closes at its end."""

    __slots__ = ()

    def close(self) -> None:
        """Release what is held."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
