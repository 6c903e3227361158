"""What a service does before it has settings to go by."""

from __future__ import annotations

import subprocess
import sys

_NAMES_COME = """
import sys, tracemalloc
from service import start

start._server()
tracemalloc.start()
names = [sys.intern(f"come {number}") for number in range(15_000)]
print(tracemalloc.get_traced_memory()[0])
"""


def test_names_that_come_later_do_not_have_their_table_laid_out_anew() -> None:
    found = subprocess.run([sys.executable, "-c", _NAMES_COME], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 2 << 20  # 1 MB of them themselves; the table would take 2
