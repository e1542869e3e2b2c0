"""Summaries: the rows of trees and censuses, derived in one pass after all their source rows exist."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby

from cablestore.index.batches import merged
from cablestore.index.database import Row
from cablestore.index.reader import Reader
from cablestore.index.tree import items_in, tree_rows
from cablestore.index.view import Catalog, Census, Fold, Tree, encode_number
from cablestore.protocol.keys import SEPARATOR, after_prefix

BlocksOf = Callable[[bytes], Iterable[list[Row]]]
"""A function that yields all rows under a prefix in key order, in lists."""


@dataclass(frozen=True)
class Summary:
    """Rows under `prefix`. `made_of` derives them in key order. Reports call such a row `noun`.

    A summary with `sources`, the prefixes of its source rows, can be derived in parts. In a source key, the name of a
    set and `!` follow the prefix. Each set has its own summary rows.
    """

    prefix: bytes
    noun: str
    made_of: Callable[[BlocksOf], Iterator[Row]]
    sources: tuple[bytes, ...] = ()


def summaries(catalog: Catalog) -> list[Summary]:
    """Return the summaries of all views, in order of their keys."""
    trees = [Summary(tree.prefix, "sum", partial(_tree_rows, tree), tree.sources) for tree in catalog.trees]
    censuses = [Summary(c.prefix, "number", partial(_census_rows, fold, c)) for fold, c in catalog.censuses]
    return sorted(trees + censuses, key=lambda summary: summary.prefix)


def summary_rows(summary: Summary, reader: Reader) -> Iterator[Row]:
    """Yield the rows of a summary, derived from the rows in `reader`."""
    return summary.made_of(lambda prefix: reader.blocks(prefix, after_prefix(prefix)))


def census_key(fold: Fold, census: Census, key: bytes) -> bytes:
    """Return the key of the census row that counts the row of `fold` at `key`."""
    return census.prefix + key[len(fold.prefix) : key.rindex(SEPARATOR)]


def _census_rows(fold: Fold, census: Census, blocks_of: BlocksOf) -> Iterator[Row]:
    # The rows of a group are adjacent and the groups are in order: parts of keys do not contain bytes up to `!`.
    rows = chain.from_iterable(blocks_of(fold.prefix))
    for key, group in groupby(rows, lambda row: census_key(fold, census, row[0])):
        number = encode_number(sum(1 for _, value in group if census.counts(value)))
        if number is not None:
            yield key, number


def _tree_rows(tree: Tree, blocks_of: BlocksOf) -> Iterator[Row]:
    return tree_rows(tree, merged([items_in(blocks_of(prefix), prefix) for prefix in tree.sources]))
