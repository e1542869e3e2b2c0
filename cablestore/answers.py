"""The old name of `cablestore.store.answers`, importable until 1.0."""

import sys
import warnings

from cablestore.store import answers

warnings.warn("cablestore.answers is now cablestore.store.answers", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = answers
