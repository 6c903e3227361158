"""Lets the Python inside Triton, an older 3.11, use the standard library of this one.

The library asks the lock of `multiprocessing.resource_tracker` for its depth, which the older lock does not tell.
"""

from __future__ import annotations

import threading
from multiprocessing import resource_tracker

if not hasattr(threading.RLock(), "_recursion_count"):
    resource_tracker._resource_tracker._lock = threading._PyRLock()  # type: ignore[attr-defined]
