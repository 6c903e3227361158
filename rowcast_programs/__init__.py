"""The entry points of `rowcast-serve` and `rowcast-export`.

The packages of rowcast have plain names, which a user's own package may have as well. Python
imports the first one on its path. This package, whose name nobody else uses, finds that out before
a program imports anything, and names the file.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

_SHARED = ("bundle", "object_store", "rows", "runtime", "tensors")
_EXIT_USAGE = 2


def serve() -> None:
    """Runs `rowcast-serve` and exits the process."""
    _check_packages("rowcast-serve", *_SHARED, "service")
    from service.cli.main import main

    main()


def export() -> None:
    """Runs `rowcast-export` and exits the process."""
    _check_packages("rowcast-export", *_SHARED, "export")
    from export.cli.main import main

    main()


def _check_packages(program: str, *names: str) -> None:
    """Exits the process, with the code of invalid usage, if Python would import something else than
    the packages that were installed with this module.
    """
    installed = Path(__file__).resolve().parents[1]
    for name in names:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            continue  # the import reports what is missing
        file = Path(spec.origin)
        if file.resolve() != installed / name / "__init__.py":
            sys.stderr.write(
                f"{program}: {file} hides the package {name!r} of rowcast; rename it, or remove "
                f"its folder from PYTHONPATH and from the Python path of this environment\n"
            )
            sys.exit(_EXIT_USAGE)
