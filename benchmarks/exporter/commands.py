"""Commands run and measured as whole processes: time, and the most memory that any one process of
theirs held.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LOOK_S = 0.1
"""Between looks at the memory of a command: looking takes time of a core that the command may want.
"""

_BYTECODE = Path(tempfile.mkdtemp(prefix="rowcast-bytecode-"))
atexit.register(shutil.rmtree, _BYTECODE, ignore_errors=True)

INSTALLED = (
    "env",
    "-u",
    "PYTHONDONTWRITEBYTECODE",
    f"PYTHONPYCACHEPREFIX={_BYTECODE}",
    sys.executable,
)
"""A Python that keeps compiled modules, as an installed package has them; a checkout may be run
without any.
"""
EXPORT = (*INSTALLED, "-m", "export.cli.main")


@dataclass(frozen=True)
class Ran:
    """What a command did.

    Attributes:
      peak_bytes: The largest VmHWM of the command's own processes: mapped pages are counted, a
        parent's are not.
    """

    seconds: float
    peak_bytes: int
    out: str


def run(command: Sequence[str | Path]) -> Ran:
    """Runs a command to its end.

    Raises:
      RuntimeError: The command failed; the message has its output.
    """
    begun = time.perf_counter()
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        peak = 0
        while process.poll() is None:
            peak = max(peak, _peak(process.pid))
            try:
                process.wait(LOOK_S)
            except subprocess.TimeoutExpired:
                continue
        seconds = time.perf_counter() - begun
        out, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(
            f"{' '.join(map(str, command))} ended with {process.returncode}: {errors}{out}"
        )
    return Ran(seconds, peak, out)


def _peak(pid: int) -> int:
    """Returns the largest VmHWM of a process and those below it: a high-water mark, so looking at
    times is enough.
    """
    peak = 0
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        peak = int(status.partition("VmHWM:")[2].split()[0]) << 10 if "VmHWM:" in status else 0
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            peak = max([peak, *(_peak(int(child)) for child in children.read_text().split())])
    except OSError:  # it ended meanwhile
        pass
    return peak
