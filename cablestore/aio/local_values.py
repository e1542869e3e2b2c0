"""Local values of the user, for asyncio: drafts, muted channels, values of clients."""

from __future__ import annotations

from cablestore.aio.calls import Mirror, each_on_reader, on_reader, on_writer
from cablestore.store.local_values import LocalValues


class AsyncLocalValues(Mirror):
    """Local values of the user. Use `AsyncCableStore.local`; the methods are those of `LocalValues`."""

    get = on_reader(LocalValues.get)
    put = on_writer(LocalValues.put)
    delete = on_writer(LocalValues.delete)
    items = each_on_reader(LocalValues.items)
    get_json = on_reader(LocalValues.get_json)
    put_json = on_writer(LocalValues.put_json)

    draft = on_reader(LocalValues.draft)
    set_draft = on_writer(LocalValues.set_draft)
    drafts = each_on_reader(LocalValues.drafts)
    is_muted = on_reader(LocalValues.is_muted)
    mute = on_writer(LocalValues.mute)
    unmute = on_writer(LocalValues.unmute)
    muted = each_on_reader(LocalValues.muted)
