"""The documents of the repository and the commands in them."""

from __future__ import annotations

import re
import shlex

from folders import ROOT


def blocks(document: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), flags=re.DOTALL)


def blocks_in_order(document: str) -> list[tuple[str, str]]:
    """Return the language and the text of each block of a document."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / document).read_text(), flags=re.DOTALL | re.MULTILINE)


def command_lines(document: str) -> list[list[str]]:
    """Return the words after `cablestore` in a document's examples for a shell."""
    text = "\n".join([*blocks(document, "sh"), *blocks(document, "console")]).replace("\\\n", " ")
    lines = (line.removeprefix("$ ") for line in text.splitlines())
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("cablestore ")]
