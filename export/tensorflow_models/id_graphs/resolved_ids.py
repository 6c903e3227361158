"""The source of ids and the rule that turns them into rows."""

from __future__ import annotations

from dataclasses import dataclass

from bundle.format.manifest import IdRule, Unknown
from export.front_end.specs import Keys
from export.tensorflow_models.graph.origins import Source


@dataclass(frozen=True)
class ResolvedIds:
    """Ids from one input, or also from `others`; the other fields are those of Lookup and of a
    feature's manifest entry.
    """

    source: Source
    rule: IdRule | None = None
    unknown: Unknown | None = None
    keys: tuple[Keys, ...] = ()
    others: tuple[Source, ...] = ()

    @property
    def sources(self) -> tuple[Source, ...]:
        """The inputs that the ids come from."""
        return (self.source, *self.others)
