"""A read-only web page that shows a store: `cablestore inspect`, and `serve --inspect`.

`server` answers requests, `access` decides who may send them, and `live` reports changes. The modules with pages are
`overview`, `channels`, `posts`, `users`, `keyspace`, `peers` and `search`. They read the store through its public API,
and return the data of a page. The server sends the data as JSON, or as HTML from a template. `charts` and `graph` draw
the data.
"""
