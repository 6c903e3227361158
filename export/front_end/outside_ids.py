"""What a lookup of the model does with ids that are no rows of its table."""

from __future__ import annotations

from typing import Literal, NamedTuple

from bundle.format import manifest

Outside = Literal["rejected", "refused", "nearest", "zeros", "nan"]
"""What a lookup reads for an id that is no row.

rejected: nothing that training can rely on, as in TensorFlow, which raises an error on CPUs.
refused: nothing, since the layer checks its ids.
nearest: the first or the last row. zeros, nan: a vector of these.
"""


class OutsideIds(NamedTuple):
    """What a lookup of the model does with ids that are not from 0 to the table's last row.

    Attributes:
      from_end: Whether ids below 0 count from the table's end, as far as it reaches.
      others: What it reads for all others.
    """

    from_end: bool = False
    others: Outside = "rejected"

    @property
    def unknown(self) -> manifest.Unknown:
        """What the service does with such ids where the recipe states nothing."""
        if self.others in ("refused", "nearest", "nan"):
            # No vector of the model stands for an unknown id.
            return manifest.Unknown(rule="refuse")
        return manifest.Unknown()

    def limits(self, rows: int) -> tuple[manifest.IdOperation, ...]:
        """Returns the operations that make a row of any integer, where `others` is "nearest".

        Args:
          rows: The number of rows of the table.
        """
        first = -rows if self.from_end else 0
        return (
            manifest.IdOperation(do="at_least", by=first),
            manifest.IdOperation(do="at_most", by=rows - 1),
        )


REFUSING = OutsideIds(others="refused")
REJECTING = OutsideIds()
"""A lookup that defines nothing for ids that are no rows."""
