"""Terms on the pages: a short meaning for the tooltip, and the link into the documents."""

from __future__ import annotations

from typing import Final

from markupsafe import Markup, escape

_DOCUMENTS: Final = "https://cablestore.github.io/cablestore"
_TERMS: Final = {
    "archives": ("glossary/#peers", "The posts of one week as one document"),
    "arrival log": ("glossary/#store", "The numbered list of changes to this store"),
    "dialect": ("glossary/#chat", "One of the two versions of Cable"),
    "generation": ("glossary/#store", "One database of a store. A rebuild writes the next generation"),
    "heads": ("glossary/#chat", "Posts to which no other post links yet. A new post links to them"),
    "in step": ("glossary/#peers", "The last complete comparison found the same posts in both stores"),
    "links": ("glossary/#chat", "Hashes of earlier posts. They show that the author had these posts"),
    "local-only": ("glossary/#chat", "A private moderation post. It is never sent"),
    "members": ("glossary/#chat", "Users who joined the channel and did not leave it since"),
    "peers": ("glossary/#peers", "Programs at the other end of a connection"),
    "reverse hash map": ("INDEXES/#the-views", "For each post, the keys of all rows that refer to it"),
    "roles": ("explanation/moderation/", "Admins and mods, whose actions take effect"),
    "rows": ("glossary/#store", "Keys and their values in the database"),
    "seed": ("glossary/#chat", "Roles that the store assigned when it joined a cabal"),
    "views": ("INDEXES/", "Rows that answer one kind of query. The posts alone determine them"),
}


def term(word: str, shown: str = "") -> Markup:
    """Return a term as a link into the documents, with its meaning as a tooltip. `shown` is the text of the link."""
    path, meaning = _TERMS[word]
    return Markup('<a class="term" href="{}/{}" rel="noreferrer" title="{}">{}</a>').format(
        _DOCUMENTS, path, meaning, escape(shown or word)
    )
