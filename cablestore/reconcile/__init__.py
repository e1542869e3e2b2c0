"""Set reconciliation (WAKU-SYNC): two stores find what each lacks, for the price of the difference. Pure.

`session` has the conversation, over an `ordered_set` of ids and in one of the `dialects` that `codec` reads and writes.
`transfer` has the posts that travel afterwards, `audit` finds what fingerprints by XOR can hide.
"""
