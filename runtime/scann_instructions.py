"""Whether ScaNN computes with AVX2, for which it has kernels that its wheel never runs.

ScaNN asks the processor when it is loaded, and keeps the answer in a variable of its own. The wheel was built with that
question left out: the answer is no on every processor. Single queries get the same bits with AVX2, in less time
(docs/adr/0029); large batches, whose leaves are found by other sums, may differ in last digits.

That rests on a name in one build of the library, so it is done for versions it was tried with and for no other.

Source: scann 1.4.2, `utils/intrinsics/flags.h` (the variable) and `oss_wrappers/scann_cpu_info.cc` (TestCPUFeature).
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

from runtime.scann_loading import tried

_VARIABLE = "_ZN14research_scann14flags_internal15should_use_avx2E"
_NEEDED = {"avx2", "fma", "f16c"}


def set_avx2(scann: Any, wanted: bool = True) -> bool:
    """Has every search and build of this process compute with AVX2 where the processor has it, or without.

    Args:
      scann: the module `scann.scann_ops.py.scann_ops_pybind`.
      wanted: False: as ScaNN's wheel does by itself.
    Returns:
      Whether they do from now on.
    """
    if not tried() or not _processor_has():
        return False
    try:
        variable = ctypes.c_bool.in_dll(ctypes.CDLL(scann.scann_pybind.__file__), _VARIABLE)
    except (OSError, ValueError):
        return False
    variable.value = wanted
    return wanted


@cache
def _processor_has() -> bool:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return set(value.split()) >= _NEEDED
    return False
