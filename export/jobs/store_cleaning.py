"""Removes objects from a store that no version names: of versions that were removed, of runs that
were given up, and of those that lost against another run.

Ages are differences between times of the store's own clock. What was written within the grace
period stays, because a run may be about to name it. While a run writes a version of a model, no
object of that model is removed. These steps exclude each other in any order with those of a run
(see `store_versions.py`):

1. The files `started` are looked for. A run that began before is found, or has committed.
2. The versions are read, and the objects are listed.
3. Both are looked for again. If a run began or a version was committed meanwhile, nothing is
   removed. A run that begins later relies on objects of versions that were read, and on young ones.
4. Objects that no version named and that are old are removed, a few at a time. Before each time,
   the step looks for runs that have begun: these may send what is just removed, and notice before
   they commit that it is not there.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from bundle.errors import BundleError
from bundle.format import paths
from bundle.format.objects import OBJECTS, POOL
from bundle.storage.catalog import VERSION
from export.errors import DestinationError
from export.jobs.store_versions import (
    GRACE_DAYS,
    pool_directories,
    pool_objects,
    read_objects,
)
from object_store.remote_path import RemotePath
from object_store.stored_content import is_committed

__all__ = ["GRACE_DAYS", "clean_store"]

_REQUESTS = 16
_REMOVED_AT_A_TIME = 256
"""The number of objects that are removed between two looks for runs that have begun."""

Times = dict[RemotePath, float | None]
"""When files were written last, in seconds; None: the store does not report it."""


class _Versions(NamedTuple):
    """The versions of a model at a moment.

    Attributes:
      committed: The versions that can be read.
      running: The versions that a run is writing, or was a short time ago.
    """

    committed: tuple[RemotePath, ...]
    running: tuple[RemotePath, ...]


def clean_store(
    root: RemotePath, older_than_days: float = GRACE_DAYS
) -> tuple[list[RemotePath], list[RemotePath]]:
    """Removes objects that no version names.

    Args:
      root: The root of the bundles, in a store.
      older_than_days: What was written more recently stays, and with it all objects of a model of
        which a run has begun more recently. A run that takes longer than this, or rests for longer,
        may find its objects gone, and sends them again.

    Returns:
      The objects that were removed, and the versions that runs are writing, whose models keep all
      objects.

    Raises:
      DestinationError: The store cannot be read or written, or a file of it is damaged; objects
        that were removed before are gone.
    """
    removed: list[RemotePath] = []
    running: list[RemotePath] = []
    try:
        cutoff_s = _now(root) - older_than_days * 86_400
        for model in sorted(filter(paths.is_name, root.listing())):
            _clean_model(root / model, cutoff_s, removed, running)
    except OSError as problem:
        raise DestinationError(f"{problem.filename or root}: {problem.strerror}") from problem
    return removed, running


def _clean_model(
    model: RemotePath, cutoff_s: float, removed: list[RemotePath], running: list[RemotePath]
) -> None:
    """Removes objects of one model.

    Args:
      model: The directory of the model.
      cutoff_s: The time of the store's clock; files that were written later stay.
      removed: Takes the files that are removed.
      running: Takes the versions that runs are writing.
    """
    versions = _versions(model, cutoff_s)
    if versions.running:
        running += versions.running
        return
    named: set[str] = set()
    for directory in versions.committed:
        named |= _read_named(directory)
    stale = _stale_in_pool(model, named, cutoff_s)

    for first in range(0, len(stale), _REMOVED_AT_A_TIME):
        current = _versions(model, cutoff_s)
        # A version that was removed meanwhile does no harm: what it named stays this time.
        if current.running or not set(current.committed) <= set(versions.committed):
            running += current.running
            return
        batch = stale[first : first + _REMOVED_AT_A_TIME]
        with ThreadPoolExecutor(_REQUESTS, thread_name_prefix="rowcast-clean") as pool:
            tuple(pool.map(RemotePath.remove, batch))
        removed += batch


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
            f"{root} does not report when a file was written, so nothing can be removed by its "
            "age; remove unused objects by hand"
        )
    return now


def _versions(model: RemotePath, cutoff_s: float) -> _Versions:
    """Finds the versions of a model, in the order of their numbers."""
    committed = []
    running = []
    for number in sorted(filter(VERSION.fullmatch, model.listing()), key=int):
        directory = model / number
        if is_committed(directory):
            committed.append(directory)
        # Another run was given up.
        elif not all(_is_old(time, cutoff_s) for time in directory.times().values()):
            running.append(directory)
    return _Versions(tuple(committed), tuple(running))


def _read_named(directory: RemotePath) -> frozenset[str]:
    """Reads which objects of the model's pool a published version names.

    Raises:
      DestinationError: The file that names them is damaged.
    """
    try:
        objects = read_objects(directory)
    except BundleError as problem:
        raise DestinationError(
            f"{directory / OBJECTS}: {problem}; nothing of this model was removed"
        ) from problem
    # The bundle was copied as it lies on a disk, or was removed just now.
    if objects is None:
        return frozenset()
    return pool_objects(objects)


def _stale_in_pool(model: RemotePath, named: set[str], cutoff_s: float) -> list[RemotePath]:
    """Returns the old objects in the pool of a model that no version names."""
    directories: Sequence[RemotePath] = pool_directories(model / POOL)
    stale: list[RemotePath] = []
    with ThreadPoolExecutor(_REQUESTS, thread_name_prefix="rowcast-list") as pool:
        for times in pool.map(_times, directories):
            stale += [
                file
                for file, time in sorted(times.items())
                if file.name not in named and _is_old(time, cutoff_s)
            ]
    return stale


def _times(directory: RemotePath) -> Times:
    return {directory / name: time for name, time in directory.times().items()}


def _is_old(time: float | None, cutoff_s: float) -> bool:
    # What has no time is never old, so that it is not removed by mistake.
    return time is not None and time < cutoff_s
