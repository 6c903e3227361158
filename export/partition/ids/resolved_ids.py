"""The source of ids and the rule that turns them into rows."""

from __future__ import annotations

from dataclasses import dataclass

from bundle.format.manifest import GraphIds, Unknown
from export.front_end.specs import Keys
from export.partition.graph.origins import Source


@dataclass(frozen=True)
class ResolvedIds:
    """Ids whose inputs and rule are known.

    Attributes:
      source: The input that the ids come from, or the first one of several.
      rule: The rule from the inputs to rows; None: the ids are the input's own.
      unknown: What the rule does with ids outside the table; None: it leaves them as they are.
      keys: The keys of each vocabulary that the rule reads, in the order of its tables.
      other_sources: The other inputs that the ids come from.
      paddings: The value of each input that a cross leaves out, or None; (): it leaves none out.
    """

    source: Source
    rule: GraphIds | None = None
    unknown: Unknown | None = None
    keys: tuple[Keys, ...] = ()
    other_sources: tuple[Source, ...] = ()
    paddings: tuple[int | str | None, ...] = ()

    @property
    def is_text(self) -> bool:
        """Whether the ids are the words of a text."""
        return self.rule is not None and self.rule.split is not None

    @property
    def sources(self) -> tuple[Source, ...]:
        """The inputs that the ids come from."""
        return (self.source, *self.other_sources)
