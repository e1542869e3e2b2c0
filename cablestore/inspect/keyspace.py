"""The key space: the rows of any view by prefix, decoded."""

from __future__ import annotations

from cablestore.inspect.page import Inspected, Page, Query
from cablestore.inspect.rows import LAYOUTS, decoded_row, is_local, key_bytes, key_text
from cablestore.views.installed import installed_catalog

_ROWS = 100


async def keyspace(inspected: Inspected, query: Query) -> Page:
    """Return the rows whose keys begin with a prefix, and the prefixes of all views with their sizes."""
    catalog = installed_catalog()
    prefix = key_bytes(query.text("prefix"))
    after = key_bytes(query.text("after")) if query.text("after") else None
    found, is_more = await inspected.rows(prefix, _ROWS, after)
    sizes = (await inspected.store.stats()).views
    names = {each: catalog.view_of(each) for each in sorted({*LAYOUTS, *(each for each, _ in catalog.prefixes)})}
    data = {
        "prefix": key_text(prefix),
        "prefixes": [
            {"prefix": key_text(each), "view": view, "rows": sizes[view].rows, "size_bytes": sizes[view].size_bytes}
            if view in sizes
            else {"prefix": key_text(each), "view": "", "rows": None, "size_bytes": None}
            for each, view in names.items()
            if not (inspected.is_public and is_local(each))
        ],
        "rows": [decoded_row(catalog, key, value) for key, value in found],
        "next": {"after": key_text(found[-1][0])} if is_more and found else None,
    }
    return Page("keys", "Key space", data, None if after else "")
