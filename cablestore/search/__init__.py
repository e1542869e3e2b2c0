"""Full-text index of the texts of a store: SQLite's FTS5 in a file beside the database, which can be thrown away.

`words` says what a word is, `query` reads what a person entered, `excerpt` marks the matches in a text. `table` is the
file, `index` keeps it in step with the store and answers. `CableStore.search` makes pages of messages from it.
"""
