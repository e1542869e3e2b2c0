"""Set reconciliation (WAKU-SYNC): two stores find what each lacks, at a cost that follows the difference. Pure.

`session` compares two sets of ids. `sets` and `stored_set` are the sets, `dialects` and `codec` the forms of the payloads.
`conversation` moves the posts that were found missing. `audit` finds what fingerprints by XOR can hide.
"""
