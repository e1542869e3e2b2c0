"""One word for one thing: no class name is used for two classes of the product. And no word that is read twice."""

from __future__ import annotations

import ast
import re
from collections import defaultdict

from sources import classes, sources, trees

READ_TWICE = re.compile(r"\b(behind|so many|anew|whoever|stands|is to be|the disk refuses)\b", re.IGNORECASE)
NATURAL = ("share one behind a router", "whoever wrote the post", "stands for")
NO_NOUN = re.compile(
    r"(what|whether|whom?|how|when|where|which|if|those|some\w+|it|to|is|has|keeps|makes|reads|runs|ends|gives|takes|holds"
    r"|tells|writes|returns)\b",
    re.IGNORECASE,
)
OLD_NAMES = re.compile(
    "Reads|Owner|Batch|Talk|Giving|Held|Mark|Talking|OwnPort|OwnLink|Writes|Reindexed|Created|Imported|Published|Verifier"
    "|Verifying|Asker|Kind|untold|together|succeed|without_collector|recall|retrying|takes_up"
)
"""Names of 0.6.0 that had two meanings, or none for a newcomer."""


def test_no_class_name_is_used_twice() -> None:
    places: defaultdict[str, set[str]] = defaultdict(set)
    for path, node in classes():
        places[node.name].add(path)
    assert len(places) > 300
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_names_that_were_replaced_do_not_come_back() -> None:
    defined = {
        node.name
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert "no_progress" in defined
    assert set(filter(OLD_NAMES.fullmatch, defined)) == set()


def test_what_is_said_of_a_class_begins_with_a_noun() -> None:
    said = {f"{path}: {node.name}": ast.get_docstring(node) for path, node in classes()}
    assert len(list(filter(None, said.values()))) > 400
    assert {where for where, text in said.items() if text and NO_NOUN.match(text)} == set()


def test_sentences_are_read_once() -> None:
    lines = [line for text in sources().values() for line in text.splitlines()]
    assert len(lines) > 10_000
    found = [line.strip() for line in lines if READ_TWICE.search(line)]
    assert [line for line in found if not any(words in line for words in NATURAL)] == []
