"""The reverse hash map: the rows that must be removed with a post.

    !reverse!<hash> -> msgpack list of the keys of all rows that refer to the post, shortened

Parts of a key that repeat the post are encoded as one byte: 1 for its <mono-ts>, 2 for its author's <pubkey>, 3 for its
<hash>. A list of whole keys would be the largest row of a post, 550 bytes of 1,700. The shortened list has 220.

Each post has one row. cable-core has a row for each reference. With seven references per post, that doubles the number
of rows. Rows that outlive a post belong to its tombstone and are not listed (see `deleted`). Folds and tallies are not
listed either: their functions return the keys.
"""

from typing import Final

from cablestore.index.view import REVERSE_NAME, REVERSE_PREFIX, View

VIEW: Final = View(
    name=REVERSE_NAME,
    version=5,
    prefixes=(REVERSE_PREFIX,),
    answers="deletion and discarding",
)
