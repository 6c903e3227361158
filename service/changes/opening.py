"""Opens a version of a model as a service serves it, with its changes, for other programs."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from bundle.changes.file import FILE_NAME, ChangesFile
from bundle.format.changes_position import ChangesPosition
from service.changes.changed_version import ChangedVersion
from service.config import ServiceSettings
from service.versions.loader import Loader
from service.versions.version import ModelVersion


def path_of_changes(settings: ServiceSettings, model: str) -> Path:
    """Returns the changes file of a model, which need not exist."""
    return (settings.changes_dir or settings.root) / model / FILE_NAME


def last_change(settings: ServiceSettings, model: str) -> ChangesPosition | None:
    """Returns the last state of the changes of a model; None: it has none.

    Raises:
      BundleError: The changes file cannot be read.
    """
    with closing(ChangesFile(path_of_changes(settings, model), model)) as file:
        return file.position()


def open_version(
    model: str, version: int, settings: ServiceSettings, denied: tuple[str, ...] = ()
) -> ModelVersion:
    """Opens a version with its changes so far, for one thread. Later changes do not reach it.

    Args:
      model: The model.
      version: Its version.
      settings: Where the bundles and the changes are.
      denied: The ids on the deny list of the model.

    Raises:
      BundleError: The bundle or the changes file cannot be read.
      LoadRejected: See `Loader.load`.
      OSError: A file exists but cannot be read now.
    """
    loaded = Loader(settings, 1, lambda *_: None).load(model, version)
    try:
        loaded.deny(denied)
        with closing(ChangesFile(path_of_changes(settings, model), model)) as file:
            changed = ChangedVersion(loaded, file)
            changed.follow(file)
            return changed.publish()
    except BaseException:
        loaded.close()
        raise
