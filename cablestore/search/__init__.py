"""Full-text index of a store's texts: SQLite's FTS5 in a file beside the database, which can be rebuilt.

`words` defines words, `query` parses search text, and `excerpt` marks the matches in a text. `table` is the file;
`index` keeps it up to date with the store and answers queries. `CableStore.search` builds pages of messages from it.
"""
