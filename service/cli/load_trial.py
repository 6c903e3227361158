"""Loads a staged bundle as a service does, warm-up included, in a process of its own: the exporter
does so before it publishes.

The process reads the bundle's place from standard input, and writes what came of it to standard
output, both as JSON. Rows that the exporter has sent to a store, and removed from its disk, are
read there: the few that a warm-up needs.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from bundle.errors import BundleError
from bundle.format.objects import StoredFile
from bundle.storage.catalog import read_manifest
from bundle.tables.reader import TableReader
from object_store.remote_path import RemotePath
from object_store.stored_content import content_of
from object_store.streamed_rows import StreamedTable
from service.config import ServiceSettings
from service.engine.engine import Engine
from service.observability.metrics import Metrics
from service.versions.lifecycle import VersionManager
from service.versions.loader import Loader
from service.versions.rejections import InsufficientMemory, LoadRejected
from service.warm_up import warm_up

_STORED_FILES = TypeAdapter(dict[str, StoredFile])


def main() -> None:
    """Reads `directory`, `model`, `version` and, if a store has rows, `stored_rows`; writes
    `problem`, why a service does not load the bundle, or `skipped`, why this machine cannot find
    out; nothing if a service loads it.
    """
    task = json.load(sys.stdin)
    outcome = load(Path(task["directory"]), task["model"], task["version"], task.get("stored_rows"))
    json.dump(outcome, sys.stdout)


def load(
    directory: Path, model: str, version: int, stored_rows: dict[str, Any] | None
) -> dict[str, Any]:
    """Loads a version, as it is without changes, with the settings that a service has by default.

    Args:
      directory: The directory of the bundle, of any name.
      model: The model.
      version: Its version.
      stored_rows: The files that are in a store alone; see `Uploads.stored_rows` of the exporter.
        None: There are none.
    """
    with tempfile.TemporaryDirectory(prefix="rowcast-load-") as root:
        link = Path(root, model, str(version))
        link.parent.mkdir()
        link.symlink_to(directory.absolute())
        settings = ServiceSettings(root=Path(root))
        engine = Engine(VersionManager(), settings, Metrics(), threads=1)
        try:
            elsewhere = {}
            if stored_rows is not None:
                elsewhere = _open_stored(directory, **stored_rows)
            loader = Loader(
                settings,
                1,
                lambda loaded, throttle: warm_up(engine, loaded, settings, throttle),
                elsewhere=elsewhere,
            )
            loader.load(model, version).close()
        except (InsufficientMemory, ImportError, MemoryError, OSError) as problem:
            return {"skipped": str(problem)}
        except BundleError as problem:
            return {"problem": str(problem)}
        except LoadRejected as problem:
            outcome = "problem"
            # A request was not computed since rows could not be read now.
            if isinstance(problem.__cause__, OSError):
                outcome = "skipped"
            return {outcome: str(problem)}
        finally:
            engine.close()
    return {}


def _open_stored(
    directory: Path, model: str, files: dict[str, Any], scratch: str
) -> dict[str, TableReader]:
    """Opens the tables of a bundle whose files are in a store."""
    stored = _STORED_FILES.validate_python(files)
    return {
        name: StreamedTable(
            table, lambda path: content_of(RemotePath(model), stored[path]), Path(scratch)
        )
        for name, table in read_manifest(directory).tables.items()
        if any(extent.file in stored for extent, _ in table.extents())
    }
