"""Help texts with commands and options in sections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import click

OTHER_OPTIONS: Final = "Options"
"""Title of the options without a section."""


ARGUMENTS: Final = "cablestore.arguments"
"""Key in a context's `meta` for the arguments of a `SectionedCommand`. A reload parses them again."""


class SectionedCommand(click.Command):
    """Command whose help lists options in sections. It stores its arguments in the context under `ARGUMENTS`."""

    def __init__(self, *args: Any, sections: Mapping[str, Iterable[str]], **settings: Any) -> None:
        """`sections` maps titles to the names of options. All other options are listed last, as "Options"."""
        super().__init__(*args, **settings)
        self._section_of: Final = {name: title for title, names in sections.items() for name in names}
        self._titles: Final = (*sections, OTHER_OPTIONS)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Store the arguments, then parse them."""
        ctx.meta[ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by section."""
        records: dict[str, list[tuple[str, str]]] = {title: [] for title in self._titles}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                records[self._section_of.get(param.name or "", OTHER_OPTIONS)].append(record)
        write_sections(formatter, records)


def write_sections(formatter: click.HelpFormatter, records: Mapping[str, list[tuple[str, str]]]) -> None:
    """Write lists of terms and their meanings, each with a title. All meanings are aligned."""
    column = max((len(term) for rows in records.values() for term, _ in rows if len(term) <= _WIDEST_TERM), default=0)
    for title, rows in records.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl([(term.ljust(min(column, _WIDEST_TERM)), meaning) for term, meaning in rows])


_WIDEST_TERM: Final = 30
"""Longer terms are on a separate line, as in click."""
