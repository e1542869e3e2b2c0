"""Full-text index of a store's texts: SQLite's FTS5 in a file beside the database, which can be rebuilt.

`words` defines words, `query` parses search text, and `excerpt` marks the matches in a text. `table` reads and writes
the file. `index` updates the table from the store and answers queries. `CableStore.search` returns pages of messages.
"""
