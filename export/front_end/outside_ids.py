"""What a lookup of the model does with ids that are no rows of its table."""

from __future__ import annotations

from typing import Literal, NamedTuple

from bundle.format import manifest
from bundle.format.graph_builder import GraphBuilder
from bundle.format.id_graphs import GraphIds

Outside = Literal["undefined", "rejected", "nearest", "zeros", "nan"]
"""What a lookup reads for an id that is no row.

undefined: nothing that training can rely on, as in TensorFlow, which raises an error on CPUs.
rejected: nothing, since the layer checks its ids.
nearest: the first or the last row. zeros, nan: a vector of these.
"""


class OutsideIds(NamedTuple):
    """What a lookup of the model does with ids that are not from 0 to the table's last row.

    Attributes:
      from_end: Whether ids below 0 count from the table's end, as far as it reaches.
      others: What it reads for all others.
    """

    from_end: bool = False
    others: Outside = "undefined"

    @property
    def unknown(self) -> manifest.Unknown:
        """What the service does with such ids where the recipe states nothing."""
        if self.others in ("rejected", "nearest", "nan"):
            # No vector of the model stands for an unknown id.
            return manifest.Unknown(rule="refuse")
        return manifest.Unknown()

    def nearest(self, rows: int, graph: GraphIds | None = None) -> GraphIds:
        """Returns the graph of ids that are moved to the nearest row, where `others` is "nearest".

        Args:
          rows: The number of rows of the table.
          graph: What computes the ids; None: they are sent.
        """
        builder = GraphBuilder("int64", graph)
        wide = (
            builder.last if graph is None else builder.compute("Cast", builder.last, DstT="int64")
        )
        builder.limited(wide, -rows if self.from_end else 0, rows - 1)
        return builder.graph()


REJECTING = OutsideIds(others="rejected")
UNDEFINED = OutsideIds()
"""A lookup that defines nothing for ids that are no rows."""
