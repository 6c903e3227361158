"""What a lookup of the model does with ids that are no rows of its table."""

from __future__ import annotations

from typing import Literal, NamedTuple

from bundle.format import manifest
from bundle.format.graph_builder import GraphBuilder
from bundle.format.id_graphs import IDENTITY, GraphIds

Outcome = Literal["undefined", "rejected", "nearest", "zeros", "nan"]
"""The vector that a lookup returns for an id that is no row.

undefined: none that training can rely on, as in TensorFlow, which raises an error on CPUs.
rejected: none, since the layer checks its ids.
nearest: the first or the last row. zeros, nan: a vector of zeros or of NaN.
"""


class OutsideIds(NamedTuple):
    """What a lookup of the model does with ids that are not from 0 to the table's last row.

    Attributes:
      from_end: Whether ids below 0 count from the table's end, as far as it reaches.
      outcome: The vector for all ids that are no rows even so.
    """

    from_end: bool = False
    outcome: Outcome = "undefined"

    @property
    def unknown(self) -> manifest.Unknown:
        """The service's rule for such ids where the recipe states none."""
        if self.outcome in ("rejected", "nearest", "nan"):
            # No vector of the model stands for an unknown id.
            return manifest.Unknown(rule="refuse")
        return manifest.Unknown()

    def nearest(self, rows: int, graph: GraphIds = IDENTITY) -> GraphIds:
        """Returns the graph of ids that are moved to the nearest row, where `outcome` is "nearest".

        Args:
          rows: The number of rows of the table.
          graph: The graph that computes the ids.
        """
        builder = GraphBuilder("int64", graph)
        ids = builder.last
        if graph != IDENTITY:
            # The limits are int64; a graph may compute int32.
            ids = builder.compute("Cast", ids, DstT="int64")
        first = -rows if self.from_end else 0
        builder.limited(ids, first, rows - 1)
        return builder.graph()


REJECTING = OutsideIds(outcome="rejected")
"""A lookup that raises an error for ids that are no rows."""
UNDEFINED = OutsideIds()
"""A lookup that defines nothing for ids that are no rows."""
