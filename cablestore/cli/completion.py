"""The command `completion`."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from cablestore.cli.options import json_option
from cablestore.cli.output import Output

_PROGRAM: Final = "cablestore"
_VARIABLE: Final = f"_{_PROGRAM.upper()}_COMPLETE"
"""Environment variable with which a shell requests completions."""


_LINES: Final = """\b
Add one of these lines to the shell configuration:
  bash: eval "$(cablestore completion bash)"    in ~/.bashrc
  zsh:  eval "$(cablestore completion zsh)"     in ~/.zshrc
  fish: cablestore completion fish | source     in ~/.config/fish/config.fish
"""


@click.command(epilog=_LINES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
@click.pass_context
def completion(ctx: click.Context, shell: str, as_json: bool) -> None:
    """Print a shell completion script.

    The script completes commands, options and names of channels.
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"unknown shell: {shell}")
    script = kind(ctx.find_root().command, {}, _PROGRAM, _VARIABLE).source()
    Output(as_json=as_json).say(script, shell=shell, script=script)


COMMANDS: Final = (completion,)
