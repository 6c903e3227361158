"""The source of ids and the rule that turns them into rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bundle.format.manifest import Cast, IdRule, Unknown
from export.graph.origins import Source
from export.graph.specs import Keys

Vocabularies = Mapping[str, Any]
"""TensorFlow lookup tables by name: key -> position, -1 if unknown."""


@dataclass(frozen=True)
class ResolvedIds:
    """Ids from one input, for a cross or join also from `others`; the other fields are those of
    FeatureSpec.
    """

    source: Source
    rule: IdRule | None = None
    unknown: Unknown | None = None
    keys: tuple[Keys, ...] = ()
    cast: Cast | None = None
    others: tuple[Source, ...] = ()

    @property
    def sources(self) -> tuple[Source, ...]:
        """The inputs that the ids come from."""
        return (self.source, *self.others)


def from_row(first_row: int) -> str:
    """Returns the first row of a rule, as the end of its description."""
    return f", from row {first_row}" if first_row else ""
