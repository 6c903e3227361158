"""Features of models that were not traced, as front ends describe them."""

from __future__ import annotations

from typing import Any

from bundle.format.manifest import DenseFeature, EmbeddedFeature
from export.front_end.specs import DenseSpec, FeatureSpec

EXPORTERS_OWN = ("encoding", "ids_dtype", "ids_max", "keys", "outside")
"""Fields that a feature has beside its manifest entry."""


def embedded(name: str, table: str, weights: str | None = None, **fields: Any) -> FeatureSpec:
    """A feature that is looked up; `fields` are other fields of it or of its manifest entry.

    A rule `ids` or `unknown` is the model's own.
    """
    exporter_fields = {field: fields.pop(field) for field in EXPORTERS_OWN if field in fields}
    entry = {
        "kind": "single",
        "role": "context",
        "encoding": "ragged" if exporter_fields.get("encoding") == "ragged" else "sparse",
        "weighted": weights is not None,
        **fields,
    }
    return FeatureSpec(
        name,
        EmbeddedFeature(table=table, **entry),
        weights,
        has_rule="ids" in fields,
        has_unknown="unknown" in fields,
        **exporter_fields,
    )


def dense(name: str, dtype: str, shape: tuple[int, ...], **fields: Any) -> DenseSpec:
    """A feature that a tower reads directly; `fields` are other fields of its manifest entry."""
    entry = {"kind": "dense", "role": "context", "dtype": dtype, "shape": shape, **fields}
    return DenseSpec(name, DenseFeature(**entry))
