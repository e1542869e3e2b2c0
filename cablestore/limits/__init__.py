"""Limits of cablestore: the name, the value and the reason of each. `cablestore.limits` has all names."""

from cablestore.limits.archives import *
from cablestore.limits.causal_logs import *
from cablestore.limits.inspection import *
from cablestore.limits.peers import *
from cablestore.limits.protocol import *
from cablestore.limits.reconciliation import *
from cablestore.limits.remote import *
from cablestore.limits.store import *
