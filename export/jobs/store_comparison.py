"""Compares what a plan produces with the newest version in the store that it goes to."""

from __future__ import annotations

from bundle.errors import BundleError
from bundle.format.tables import Delta, Segment
from export.jobs.store_versions import newest_objects, read_stored_manifest
from export.tables.older_versions import OlderVersion, with_older_segments, without_older_segments
from export.tables.plan import ExportPlan
from export.tables.tasks import StoredSegment
from object_store.remote_path import RemotePath


def compare_with_stored(plan: ExportPlan, model: RemotePath) -> ExportPlan:
    """Returns a plan whose tasks compare what they produce with the newest version in a store.

    Args:
      plan: The plan of a new version.
      model: The directory of the model in the store.
    """
    try:
        objects = newest_objects(model)
        if objects is None:
            return plan
        tables = read_stored_manifest(model, objects).tables
    except (BundleError, OSError) as problem:
        return without_older_segments(plan, problem)
    listed = objects.files

    def locate(segment: Segment) -> StoredSegment | None:
        extents: list[Segment | Delta] = [segment, *segment.deltas]
        if any(extent.file not in listed for extent in extents):
            return None
        files = {extent.file: listed[extent.file] for extent in extents}
        return StoredSegment(str(model), segment, files)

    return with_older_segments(plan, OlderVersion(objects.version, tables, locate))
