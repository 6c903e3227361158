"""Parts of a tower: functions that run once per context or once per candidate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from bundle.format import manifest


@dataclass(frozen=True)
class TracedPart:
    """A part of a tower that is not written yet.

    Attributes:
      spec: The entry of the part in the manifest, without forms.
      function: The function of the tensors of `spec.inputs`.
      variables: The variables that the function reads.
      cost: The multiply-adds for one example.
    """

    spec: manifest.TowerPart
    function: Any
    variables: tuple[Any, ...]
    cost: int

    def taking(self, inputs: tuple[manifest.TowerInput, ...]) -> Self:
        """Returns a copy with other input descriptions."""
        return replace(self, spec=self.spec.model_copy(update={"inputs": inputs}))
