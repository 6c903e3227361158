"""The program that makes a segment of the candidates that a worker has written: indexes,
checksums. It is a process of its own, so that requests never wait for its interpreter, and has the
lowest priority.

    python -m service.changes.segment_build DIRECTORY < task
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bundle.changes.segments import SegmentManifest, finish, scann_directory, vectors_file
from bundle.format.fields import StrictModel
from bundle.format.indexes import Distance
from runtime.scann_build import build_files
from runtime.vectors import VectorFile

_LOWEST_PRIORITY = 19
"""The priority of the process by which `nice` lets everything else go first."""
_THREADS = 1
"""Number of threads that train an index: the other cores are for requests."""


class SegmentTask(StrictModel):
    """The segment that is to be made.

    Attributes:
      manifest: The manifest of the segment, without files and filters.
      attributes: The attributes by which requests may filter.
      distances: The distance of each index.
    """

    manifest: SegmentManifest
    attributes: tuple[str, ...]
    distances: dict[str, Distance]


def build(directory: Path, task: SegmentTask) -> None:
    """Makes a segment, but for its name.

    Args:
      directory: The directory with the candidates.
      task: The segment.

    Raises:
      BundleError: ScaNN cannot build an index.
      OSError: The disk is full or broken.
    """
    for name, index in task.manifest.indexes.items():
        # Without parameters, the vectors are searched exactly and need no index.
        if index.parameters:
            vectors = VectorFile(directory / vectors_file(name), index.dim)
            scann = directory / scann_directory(name)
            distance = task.distances[name]
            build_files(vectors, distance, "tree_ah", index.parameters, scann, threads=_THREADS)
    finish(directory, task.manifest, task.attributes)


if __name__ == "__main__":
    os.nice(_LOWEST_PRIORITY)
    build(Path(sys.argv[1]), SegmentTask.model_validate_json(sys.stdin.read()))
