"""What recognition finds of ids: where they come from, and what is done to them on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bundle.format.manifest import Cast, IdRule, Unknown
from export.graph.origins import Source
from export.graph.specs import Keys

Vocabularies = Mapping[str, Any]
"""Key -> position, -1 if unknown, as TensorFlow's lookup tables, by name."""


@dataclass(frozen=True)
class FoundIds:
    """Ids that come from one input, or from `others` beside it; the other fields are those of FeatureSpec."""

    source: Source
    rule: IdRule | None = None
    unknown: Unknown | None = None
    keys: tuple[Keys, ...] = ()
    cast: Cast | None = None
    others: tuple[Source, ...] = ()


def from_row(first_row: int) -> str:
    """Returns where the rows of a rule begin, as the end of its description."""
    return f", from row {first_row}" if first_row else ""
