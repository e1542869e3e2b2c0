"""The materialized views of cablestore, one file each, and the catalog that lists them.

A new view is one file here and one line in the catalog. The functions of a view are used to store, remove, rebuild,
check and count its rows. `cablestore.index.view` defines the requirements of these functions. The table in
docs/INDEXES.md is generated from the catalog and from the docstrings of the views. docs/how-to/write-a-view.md
describes how to write a view.
"""

if __name__ != "cablestore.views":
    raise ImportError(f"this package is cablestore.views and cannot be imported as {__name__!r}")

from typing import Final

from cablestore.index.view import Catalog
from cablestore.views import (
    activity,
    acts,
    author,
    channel_state,
    channel_topic,
    data,
    deleted,
    links,
    membership,
    messages,
    moderation,
    reverse,
    sync,
    user_info,
)

CATALOG: Final = Catalog(
    (
        data.VIEW,
        reverse.VIEW,
        messages.VIEW,
        deleted.VIEW,
        channel_state.VIEW,
        membership.VIEW,
        channel_topic.VIEW,
        author.VIEW,
        user_info.VIEW,
        moderation.VIEW,
        acts.VIEW,
        links.VIEW,
        activity.VIEW,
        sync.VIEW,
    )
)
