"""Commands that open a store, for tests of stores that cannot be opened."""

from __future__ import annotations

COMMANDS = [
    "init",
    "identity",
    "post default x",
    "channels",
    "log default",
    "stats",
    "check",
    "rebuild",
    "dump",
    "prune --keep 1",
    "compact",
    "export OUT",
    "import EXPORT",
    "import-irc LOG",
    "generations",
    "generations --remove kept",
    "generations --back-to generation-000001",
    "serve --listen 127.0.0.1:0",
    "serve --create --listen 127.0.0.1:0",
    "sync 127.0.0.1:1",
    "sds status",
    "archive create OUT",
    "archive announce magnet:?xt=urn:btih:" + "0" * 40,
]
