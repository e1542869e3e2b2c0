"""What a user can do about an error of the operating system, for error messages."""

from __future__ import annotations

import errno
import os
from typing import Final

TOO_MANY_FILES_ADVICE: Final = "Raise the limit of open files (`ulimit -n`)"
_TOO_MANY_FILES: Final = tuple(os.strerror(number) for number in (errno.EMFILE, errno.ENFILE))


def advice(reason: object, otherwise: str) -> str:
    """Return the advice for an operation on a file that failed. `otherwise` is the usual advice.

    `reason` is the error's text, which may begin with a path. LevelDB's errors have no number.
    """
    if str(reason).endswith(_TOO_MANY_FILES):
        return TOO_MANY_FILES_ADVICE
    return otherwise
