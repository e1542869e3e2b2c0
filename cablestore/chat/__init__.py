"""Terminal chat client (`cablestore chat`), which reads and writes any open store. It uses Textual.

`cabal` calls the store, which this or another process has open. It returns `entries` for the screens. `keeper` reopens
a lost store, `changes` follows its changes, and `hosting` runs a node in a separate thread.

`timeline` holds the part of a history near the view, `commands` parses typed text, and `safe_text` removes control
characters. These modules do not depend on Textual. The widgets (`message_list`, `line_list`, `typing_box`, `screens`)
show values and report keys. `app` connects them. The extra cablestore[chat] installs Textual.
"""
