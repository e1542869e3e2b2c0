"""A chat client on the terminal, `cablestore chat`: any store that is open, shown and written to with Textual.

Data flows one way. `cabal` says what the client needs of a store. `open_cabal` gives it for a store that this process
has open, and is the one module that calls a store; `hosting` runs its node in a thread of its own. `remote_cabal` gives
it for a store that another process has open, which runs `service`; `wire` is what both say to each other.

`timeline` holds the part of a history that is near the view; `commands` reads what is typed; `safe_text` makes text of
others harmless. None of these knows Textual. The widgets (`message_list`, `line_list`, `typing_box`, `screens`) show
values and report keys; `app` brings them together. Textual is of the extra cablestore[chat].
"""
