"""How far the changes of a model go that a bundle contains, or of which there is a copy."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bundle.format.fields import Count, StrictModel

MARK_PATTERN = "^[0-9a-f]{32}$"


class ChangesPosition(StrictModel):
    """Names a state of a changes file, up to which something has its states."""

    mark: Annotated[str, Field(pattern=MARK_PATTERN)]
    """The last mark of the file up to the state: a random number, which copies have, too."""
    sequence: Count
    """The sequence of the state."""

    def __str__(self) -> str:
        return f"{self.sequence} behind mark {self.mark}"
