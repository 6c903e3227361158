"""Compiles `bundle/native` with the C compiler of the machine, for a wheel and for an editable
install.

Without a compiler, or Python's headers, the package is built all the same and numpy reads the rows.
`python hatch_build.py` compiles in place; it exits with 1 if it cannot.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent / "bundle" / "native" / "_rows.c"
MADE = SOURCE.with_name("_rows" + str(sysconfig.get_config_var("EXT_SUFFIX")))
# What combines rows must round as numpy does: no product and sum in one step.
ROUNDING = ("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", *ROUNDING)


class CannotCompile(Exception):
    """Something that compiling needs is missing; says what."""


def compile_rows() -> None:
    """Writes the extension beside its source.

    Raises:
      CannotCompile: there is no compiler, or it finds an error.
    """
    try:
        import numpy as np
    except ImportError as problem:
        raise CannotCompile("numpy, whose headers are needed, is not installed") from problem
    compiler = shlex.split(os.environ.get("CC", "cc"))
    include = [f"-I{path}" for path in (sysconfig.get_path("include"), np.get_include())]
    linked = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
    # Written aside: a process that runs the old one has it mapped.
    attempt = MADE.with_name(f".{MADE.name}-{os.getpid()}")
    command = [*compiler, *FLAGS, *include, str(SOURCE), "-o", str(attempt), *linked, "-lm"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
        attempt.rename(MADE)
    except OSError as problem:
        raise CannotCompile(
            f"{compiler[0]!r} does not run: {problem}; set CC, or install a C compiler"
        ) from problem
    except subprocess.CalledProcessError as problem:
        raise CannotCompile(f"{shlex.join(command)} failed:\n{problem.stderr}") from problem
    finally:
        attempt.unlink(missing_ok=True)


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a program
    pass
else:

    class RowsHook(BuildHookInterface[Any]):
        """Compiles before the files of a wheel, or of an editable install, are collected."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Adds the extension to the wheel, which then fits one Python on one platform."""
            try:
                compile_rows()
            except CannotCompile as problem:
                if version == "editable":
                    # Built of another source, it would be taken for this one's.
                    MADE.unlink(missing_ok=True)
                self.app.display_warning(f"rowcast is built without compiled row reads: {problem}")
                return
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["artifacts"].append(str(MADE.relative_to(self.root)))


if __name__ == "__main__":
    try:
        compile_rows()
    except CannotCompile as failed:
        sys.exit(str(failed))
