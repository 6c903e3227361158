"""Loads a staged bundle as a service does, warm-up included, in a process of its own: the exporter
does so before it publishes.

The process reads the bundle's place from standard input, and writes what came of it to standard
output, both as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from bundle.errors import BundleError
from service.config import ServiceSettings
from service.engine.engine import Engine
from service.observability.metrics import Metrics
from service.serving_records.warm_up import warm_up
from service.versions.lifecycle import VersionManager
from service.versions.loader import InsufficientMemory, Loader, LoadRejected


def main() -> None:
    """Reads `directory`, `model` and `version`; writes `problem`, why a service does not load the
    bundle, or `skipped`, why this machine cannot find out; nothing if a service loads it.
    """
    task = json.load(sys.stdin)
    json.dump(load(Path(task["directory"]), task["model"], task["version"]), sys.stdout)


def load(directory: Path, model: str, version: int) -> dict[str, Any]:
    """Loads a version with the settings that a service has by default.

    Args:
      directory: The directory of the bundle, of any name.
      model: The model.
      version: Its version.
    """
    with tempfile.TemporaryDirectory(prefix="rowcast-load-") as root:
        link = Path(root, model, str(version))
        link.parent.mkdir()
        link.symlink_to(directory.absolute())
        settings = ServiceSettings(root=Path(root))
        engine = Engine(VersionManager(), settings, Metrics(), threads=1)
        loader = Loader(
            settings, 1, lambda loaded, throttle: warm_up(engine, loaded, settings, throttle)
        )
        try:
            loader.load(model, version).close()
        except (InsufficientMemory, ImportError, MemoryError, OSError) as problem:
            return {"skipped": str(problem)}
        except (BundleError, LoadRejected) as problem:
            return {"problem": str(problem)}
        finally:
            engine.close()
    return {}
