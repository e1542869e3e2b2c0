"""Writes the generated tables of the documentation: `make docs`. A test compares the documents with its output."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path

from cablestore import limits
from cablestore.index.view import View
from cablestore.limits import archives, causal_logs, inspection, peers, protocol, reconciliation, remote, store
from cablestore.protocol.body import TYPE_NAMES
from cablestore.protocol.exchange import TRANSITIONS, RequestRole
from cablestore.reindex.columns import DELETIONS, POSTS, SETTLED, Column
from cablestore.views import CATALOG

DOCS = Path(__file__).parent
RULE = re.compile(r"^def test_((?:\d_)+)(?:to_(\d)_)?(\w+)\(", re.MULTILINE)
LAYOUT = re.compile(r"^    (!.+?)\s+-> (.+?)$", re.MULTILINE)


def layout(view: View) -> list[tuple[str, str]]:
    """Return the (key, value) lines at the beginning of a view's docstring."""
    module = import_module(f"cablestore.views.{view.name}")
    return LAYOUT.findall(module.__doc__ or "")


def types_of(view: View) -> str:
    """Return the names of the post types that a view depends on, or `all`."""
    types = set(view.types)
    types.update(*(fold.types for fold in view.folds), *(tally.types for tally in view.tallies))
    if types == set(TYPE_NAMES):
        return "all"
    return ", ".join(TYPE_NAMES[post_type] for post_type in sorted(types)) or "all"


def views_table() -> str:
    """Return a table with one row per key: view and version, key and value, kind, types, answered requests."""
    lines = ["| view | key -> value | from | written for | answers |", "|---|---|---|---|---|"]
    for view in CATALOG.views:
        kinds = [(fold.prefix, "fold") for fold in view.folds] + [(tally.prefix, "tally") for tally in view.tallies]
        kinds += [(fold.census.prefix, "census") for fold in view.folds if fold.census]
        kinds += [(view.tree.prefix, "tree")] if view.tree else []
        for number, (key, described) in enumerate(layout(view)):
            kind = next((kind for prefix, kind in kinds if key.encode().startswith(prefix)), "rows")
            name = f"`views/{view.name}.py` {view.version}" if number == 0 else ""
            answers = view.answers if number == 0 else ""
            value = described.replace("|", "\\|").replace("<", "&lt;")
            lines.append(
                f"| {name} | `{key}` -> {value} | {kind} | {types_of(view) if number == 0 else ''} | {answers} |"
            )
    return "\n".join(lines)


def limits_table() -> str:
    """Return a table with one row per limit: name, value, docstring."""
    lines = ["| limit | value | meaning |", "|---|---|---|"]
    subjects = (protocol, store, remote, peers, archives, reconciliation, causal_logs, inspection)
    body = [statement for subject in subjects for statement in ast.parse(inspect.getsource(subject)).body]
    for statement, after in pairwise(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            assert isinstance(after, ast.Expr)
            assert isinstance(after.value, ast.Constant)
            reason = " ".join(str(after.value.value).split())
            lines.append(f"| `{statement.target.id}` | {getattr(limits, statement.target.id):,} | {reason} |")
    return "\n".join(lines)


def request_diagrams() -> str:
    """Return a diagram of the states of a request for each side."""
    lines = []
    for role in RequestRole:
        steps = [(before, step, after) for (side, before, step), after in TRANSITIONS.items() if side is role]
        begin = "    [*] --> open : request\n"
        if role is RequestRole.REQUESTER:
            begin += "    [*] --> live : live request\n"
        drawn = "\n".join(f"    {before.value} --> {after.value} : {step.value}" for before, step, after in steps)
        lines.append(
            f"As the {role.value}:\n\n```mermaid\nstateDiagram-v2\n{begin}{drawn}\n    concluded --> [*]\n```\n"
        )
    return "\n".join(lines)


def columns_table(tables: Mapping[str, Mapping[str, Column]]) -> str:
    """Return a table for each Spark table: column, type, meaning."""
    lines = []
    for name, columns in tables.items():
        lines += [f"**{name}**", "", "| column | type | content |", "|---|---|---|"]
        lines += [f"| `{column}` | `{of.ddl}` | {of.meaning} |" for column, of in columns.items()]
        lines.append("")
    return "\n".join(lines)


def moderation_table() -> str:
    """Return a table with one row per test of a rule of moderation.md: the rule, the name of the test, the file."""
    rules = []
    for path in sorted((DOCS.parent / "tests").rglob("test_*.py")):
        for number, last, sentence in RULE.findall(path.read_text()):
            rule = number.strip("_").replace("_", ".") + (f" to {last}" if last else "")
            parts = tuple(map(int, number.strip("_").split("_")))
            rules.append((parts, f"| {rule} | {sentence.replace('_', ' ')} | `{path.stem}` |"))
    return "\n".join(["| rule | verified behaviour | test file |", "|---|---|---|", *(row for _, row in sorted(rules))])


THREADS = {
    "reader": "short reads, 2 at a time: one that waits for the disk does not block the other",
    "writer": "writes, one at a time, in the order of the calls",
    "worker": "long work, one call at a time, beside reads and writes",
}


def threads_table() -> str:
    """Return a table with one row per thread of the asyncio store: the methods that run there, and the reason."""
    found: dict[str, set[str]] = {thread: set() for thread in THREADS}
    for path in sorted((DOCS.parent / "cablestore" / "aio").glob("*.py")):
        for kind in (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)):
            prefix = {"AsyncModerator": "moderation.", "AsyncLocalValues": "local."}.get(kind.name, "")
            for node in kind.body:
                made_by = getattr(getattr(getattr(node, "value", None), "func", None), "id", "")
                thread = made_by.rpartition("on_")[2]
                if thread in found and isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    found[thread].add(f"`{prefix}{node.targets[0].id}`")
    found["reader"] |= {"`cursor`", "`public_key`", "`snapshot`"}
    found["writer"] |= {"`identity`", "`ingest`"}
    lines = ["| thread | calls | why |", "|---|---|---|"]
    lines += [f"| {thread} | {', '.join(sorted(names))} | {THREADS[thread]} |" for thread, names in found.items()]
    return "\n".join(lines)


def of_readme(pattern: str) -> str:
    """Return the part of the README that matches, with links relative to `docs`."""
    found = re.search(pattern, (DOCS.parent / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[0].replace("](docs/", "](")


TABLES: dict[str, Callable[[], str]] = {
    "promises": partial(of_readme, r"^\* \*\*Order does not matter.*?(?=\n\n)"),
    "packages": partial(of_readme, r"^\| system \|.*?(?=\n\n)"),
    "compatibility": partial(of_readme, r"^\| program \|.*?(?=\n\n)"),
    "moderation": moderation_table,
    "threads of asyncio": threads_table,
    "views": views_table,
    "limits": limits_table,
    "requests": request_diagrams,
    "settled tables": partial(columns_table, SETTLED),
    "tables of the data source": partial(columns_table, {"posts": POSTS, "deletions": DELETIONS}),
}


def with_tables(text: str) -> str:
    """Return the text of a document with current generated tables."""
    for name, make in TABLES.items():
        begin, end = f"<!-- generated: {name} -->\n", "<!-- end -->"
        before, found, rest = text.partition(begin)
        if found:
            text = before + begin + make() + "\n" + end + rest.partition(end)[2]
    return text


def documents() -> list[Path]:
    """Return the paths of all documents. Each may contain generated tables."""
    return sorted(DOCS.rglob("*.md"))


if __name__ == "__main__":
    for document in documents():
        document.write_text(with_tables(document.read_text()))
