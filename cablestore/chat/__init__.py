"""A chat client on the terminal, `cablestore chat`: any store that is open, shown and written to with Textual.

Data flows one way. `cabal` calls the store, which this process or another one has open, and returns `entries` for the
screens. `keeper` opens a lost store again. `changes` follows what changes in it. `hosting` runs a node in a thread of its
own.

`timeline` holds the part of a history that is near the view; `commands` reads what is typed; `safe_text` makes text of
others harmless. None of these knows Textual. The widgets (`message_list`, `line_list`, `typing_box`, `screens`) show
values and report keys; `app` brings them together. Textual is of the extra cablestore[chat].
"""
