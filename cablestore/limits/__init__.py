"""Limits of cablestore: the name, the value and the reason of each. `cablestore.limits` has all names."""

from cablestore.limits.archives import *  # noqa: F403
from cablestore.limits.causal_logs import *  # noqa: F403
from cablestore.limits.peers import *  # noqa: F403
from cablestore.limits.protocol import *  # noqa: F403
from cablestore.limits.reconciliation import *  # noqa: F403
from cablestore.limits.store import *  # noqa: F403
