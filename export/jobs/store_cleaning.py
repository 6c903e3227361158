"""Removes objects from a store that no version names: of runs that were given up, and of those that
lost against another run.

Ages are differences between times of the store's own clock. What was written within the grace
period stays, because a run may be about to name it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from bundle.errors import BundleError
from bundle.format import objects, paths
from bundle.format.objects import DIRECTORY, OBJECTS, OBJECTS_BYTES_MAX
from bundle.storage.catalog import VERSION
from export.errors import DestinationError
from export.jobs.store_versions import is_committed
from object_store.remote_path import RemotePath

GRACE_DAYS = 7.0
_REQUESTS = 16

Times = dict[RemotePath, float | None]
"""When files were written last; None: the store does not tell."""


def clean_store(
    root: RemotePath, older_than_days: float = GRACE_DAYS
) -> tuple[list[RemotePath], list[RemotePath]]:
    """Removes objects that no version names.

    Args:
      root: Of the bundles, in a store.
      older_than_days: What was written more recently stays, and with it all that the same run
        wrote. A run that takes longer than this, or rests for longer, finds its objects gone, and
        sends them again.

    Returns:
      The objects that were removed, and the versions that are not published and stay.

    Raises:
      DestinationError: The store cannot be read or written, or a file of it is damaged; objects
        that were removed before are gone.
    """
    removed: list[RemotePath] = []
    kept: list[RemotePath] = []
    try:
        before = _now(root) - older_than_days * 86_400
        for directory in _versions(root):
            if is_committed(directory):
                unnamed = _unnamed(directory)
                stale = [file for file in unnamed if _is_old(unnamed[file], before)]
            else:
                written = _times(directory) | _times(directory / DIRECTORY)
                written.pop(directory / DIRECTORY, None)
                stale = list(written)
                if not all(_is_old(time, before) for time in written.values()):
                    kept.append(directory)
                    continue
            with ThreadPoolExecutor(_REQUESTS, thread_name_prefix="rowcast-clean") as pool:
                tuple(pool.map(RemotePath.remove, stale))
            removed += stale
    except OSError as problem:
        raise DestinationError(f"{problem.filename or root}: {problem.strerror}") from problem
    return removed, kept


def _now(root: RemotePath) -> float:
    """Returns the time of the store's clock, which may differ from this machine's."""
    marker = root / f".clock-{secrets.token_hex(8)}"
    marker.write(b"")
    try:
        now = marker.modified_s()
    finally:
        marker.remove()
    if now is None:
        raise DestinationError(
            f"{root} does not tell when a file was written, so nothing can be removed by its age; "
            "remove unused objects by hand"
        )
    return now


def _versions(root: RemotePath) -> Iterator[RemotePath]:
    for model in sorted(filter(paths.is_name, root.listing())):
        for number in sorted(filter(VERSION.fullmatch, (root / model).listing()), key=int):
            yield root / model / number


def _unnamed(directory: RemotePath) -> Times:
    """Returns the objects of a published version that it does not name."""
    file = directory / OBJECTS
    if not file.is_file():
        return {}  # a bundle that was copied as it lies on a disk
    try:
        named = objects.parse(file.read(0, OBJECTS_BYTES_MAX)).files.values()
    except BundleError as problem:
        raise DestinationError(
            f"{file}: {problem}; nothing of this version was removed"
        ) from problem
    kept = {directory / stored.path for stored in named}
    times = _times(directory / DIRECTORY)
    return {file: times[file] for file in sorted(times.keys() - kept)}


def _times(directory: RemotePath) -> Times:
    return {directory / name: time for name, time in directory.times().items()}


def _is_old(time: float | None, before: float) -> bool:
    return time is not None and time < before
