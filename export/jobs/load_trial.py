"""Has the service load a staged bundle, warm-up included, before it is published.

The two programs never import each other, so the service's part is a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bundle.format.manifest import Manifest
from export.errors import ExportError, VerificationFailed
from export.jobs.uploads import Uploads

_COMMAND = "from rowcast.programs import try_loading; try_loading()"
_SECONDS_MAX = 600
"""The time after which the process is ended. A service takes seconds, but for candidates and keys
by the ten millions."""
_SHOWN_CHARACTERS = 2000
"""The characters shown of what a failed process wrote last."""
_VARIABLES = "ROWCAST_"
"""The beginning of the names of environment variables that are settings."""


def try_loading(staged: Path, manifest: Manifest, uploads: Uploads | None = None) -> str:
    """Has a process of the service load a bundle, and waits for it.

    Args:
      staged: The directory where the bundle lies, with its manifest.
      manifest: The manifest.
      uploads: What has sent the rows of tables to a store; None: all of them are staged.

    Returns:
      Why it was not tried, as the end of a sentence; "": it was, and a service loads the bundle.

    Raises:
      VerificationFailed: No service loads it.
      ExportError: The process failed.
    """
    # -P: a module beside the export has no say in what is imported.
    command = [sys.executable, "-P", "-c", _COMMAND]
    task: dict[str, Any] = {
        "directory": str(staged),
        "model": manifest.model,
        "version": manifest.version,
    }
    if uploads is not None:
        task["stored_rows"] = uploads.stored_rows(manifest)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(_VARIABLES)
    }
    try:
        process = subprocess.run(
            command,
            input=json.dumps(task),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS_MAX,
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {_SECONDS_MAX} s"
    if process.returncode:
        last_messages = process.stderr[-_SHOWN_CHARACTERS:]
        if "ModuleNotFoundError" in last_messages:
            missing = last_messages.strip().rpartition("\n")[2]
            return f"the serving half is not installed here ({missing})"
        raise ExportError(
            f"the process that loads the bundle as a service does ended with "
            f"{process.returncode}: {last_messages}; run the export again: it resumes"
        )
    outcome = json.loads(process.stdout)
    if problem := outcome.get("problem"):
        raise VerificationFailed(f"a service does not load the bundle: {problem}")
    return str(outcome.get("skipped", ""))
