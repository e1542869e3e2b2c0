"""The reverse hash map: which rows go when a post goes.

    !reverse!<hash> -> msgpack list of the keys of all rows that refer to the post, shortened

What a key has of the post itself stands in it as one byte: 1 for its <mono-ts>, 2 for its author's <pubkey>, 3 for its
<hash>. A list of whole keys was the largest row of a post: 550 bytes of 1,700, where this has 220.

One row a post, where the seed has one row a reference: at seven references a post that would double the number of rows.
Rows that outlive a post (see `deleted`) belong to its tombstone and are not listed, nor are folds and tallies, which
are found by the functions that fill them.
"""

from typing import Final

from cablestore.index.view import REVERSE_NAME, REVERSE_PREFIX, View

VIEW: Final = View(
    name=REVERSE_NAME,
    version=4,
    prefixes=(REVERSE_PREFIX,),
    answers="deletion and discarding",
)
