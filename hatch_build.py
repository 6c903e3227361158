"""Builds the wheel: puts all packages into one, `rowcast`, and compiles `bundle/native`.

The tree has its packages beside each other, under plain names such as `export`, which would hide a
user's own in `site-packages`, or be hidden by them. So the wheel has them as `rowcast.export`, and
their imports are rewritten; an editable install has the tree as it is.

Without a compiler, or Python's headers, the wheel is built all the same and numpy reads the rows.
`python hatch_build.py` compiles in place; it exits with 1 if it cannot.
"""

from __future__ import annotations

import ast
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
PARENT = "rowcast"
"""The package of the wheel; in the tree, what users name."""
PACKAGES = (
    "bundle",
    "command_line",
    "export",
    "object_store",
    "rows",
    "runtime",
    "service",
    "tensors",
)
"""What the wheel has inside its package."""
BUNDLES = Path("examples", "quickstart", "bundles")
"""What `rowcast-serve --demo` serves: in the wheel, at the same path inside its package."""
CODE = {".py", ".pyi"}
"""The suffixes of modules."""
DATA = {".css", ".html", ".js", ".json"}
"""The suffixes of files that modules read."""

SOURCE = ROOT / "bundle" / "native" / "_rows.c"
# Of Python's stable ABI: it fits each release from 3.11 on.
MADE = SOURCE.with_name("_rows.abi3.so")
TAG = "cp311-abi3"
# What combines rows must round as numpy does: no product and sum in one step.
ROUNDING = ("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", *ROUNDING)


class CannotCompile(Exception):
    """Something that compiling needs is missing; says what."""


class CannotMove(Exception):
    """A module cannot be put into the package of the wheel; says where it names another one."""


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


def write_package(directory: Path) -> None:
    """Writes the package of the wheel into an empty directory, without the compiled extension.

    Raises:
      CannotMove: an import binds the name of a package.
    """
    for name in (PARENT, *PACKAGES):
        inside = directory
        if name != PARENT:
            inside = directory / name
        for source in sorted((ROOT / name).rglob("*.*")):
            target = inside / source.relative_to(ROOT / name)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.suffix in CODE:
                target.write_text(moved(source.read_text("utf-8"), source), "utf-8")
            elif source.suffix in DATA:
                shutil.copyfile(source, target)
    # Locks are left by a service that ran on the tree.
    shutil.copytree(ROOT / BUNDLES, directory / BUNDLES, ignore=shutil.ignore_patterns("*.lock"))


def moved(source: str, file: Path) -> str:
    """Returns the text of a module that imports the packages from their parent.

    Args:
      source: The text of the module in the tree.
      file: Its path, for errors.

    Raises:
      CannotMove: an import binds the name of a package.
    """
    lines = source.split("\n")
    positions = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and _is_ours(node.module):
            positions.append((node.lineno, node.col_offset + len("from ")))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if not _is_ours(alias.name):
                    continue
                if alias.asname is None:
                    raise CannotMove(
                        f"{file}:{alias.lineno}: `import {alias.name}` would bind {PARENT!r} in "
                        "the wheel; write `from ... import`, or `import ... as`"
                    )
                positions.append((alias.lineno, alias.col_offset))
    # From the end of a line to its beginning, so that the positions before stay.
    for number, column in sorted(positions, reverse=True):
        line = lines[number - 1]
        lines[number - 1] = f"{line[:column]}{PARENT}.{line[column:]}"
    return "\n".join(lines)


def _is_ours(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] in PACKAGES


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a program
    pass
else:

    class WheelHook(BuildHookInterface[Any]):
        """Compiles for a wheel or an editable install, and writes the package of a wheel."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Adds the package and the extension to the wheel, which then fits one platform."""
            compiled = True
            try:
                compile_rows()
            except CannotCompile as problem:
                compiled = False
                if version == "editable":
                    # Built of another source, it would be taken for this one's.
                    MADE.unlink(missing_ok=True)
                self.app.display_warning(f"rowcast is built without compiled row reads: {problem}")
            if version == "editable":
                return
            self._written = tempfile.TemporaryDirectory()
            write_package(Path(self._written.name))
            build_data["force_include"][self._written.name] = PARENT
            if compiled:
                build_data["force_include"][str(MADE)] = f"{PARENT}/{MADE.relative_to(ROOT)}"
                build_data["pure_python"] = False
                # "linux-x86_64" and "macosx-14.0-arm64" as a tag has them.
                platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
                build_data["tag"] = f"{TAG}-{platform}"

        def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
            """Removes the written package."""
            del build_data, artifact_path
            if version != "editable":
                self._written.cleanup()


if __name__ == "__main__":
    try:
        compile_rows()
    except CannotCompile as failed:
        sys.exit(str(failed))
