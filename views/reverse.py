"""The reverse hash map: which rows go when a post goes.

    !reverse!<hash> -> msgpack list of the keys of all rows that refer to the post

One row a post, where the seed has one row a reference: at seven references a post that would double the number of rows.
Rows that outlive a post (see `deleted`) belong to its tombstone and are not listed, nor are folds and tallies, which
are found by the functions that fill them.
"""

from typing import Final

from cablestore.view import REVERSE_NAME, REVERSE_PREFIX, View

VIEW: Final = View(
    name=REVERSE_NAME,
    version=1,
    prefixes=(REVERSE_PREFIX,),
    answers="deletion and discarding",
)
