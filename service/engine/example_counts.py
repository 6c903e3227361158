"""How many examples a request holds, as far as it is known before the request is checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bundle.features.columns import Column
from service.contract.merging import NotAlike
from service.contract.messages import RetrievalRequest
from service.engine import lookup
from service.versions.version import ModelVersion


class ExampleCounts(NamedTuple):
    """What merging reads from a version; see `Counter`."""

    version: ModelVersion

    def count_examples(self, columns: Mapping[str, Column]) -> int:
        """See `Counter`."""
        manifest = self.version.manifest
        if not columns.keys() <= manifest.inputs.keys():
            raise NotAlike
        return lookup.count_examples(manifest, columns)

    def dim(self, request: RetrievalRequest) -> int:
        """See `Counter`."""
        indexes = self.version.indexes
        index = indexes.get(request.index)
        if index is None and not request.index and len(indexes) == 1:
            (index,) = indexes.values()
        if index is None:
            raise NotAlike
        return int(index.entry.dim)
