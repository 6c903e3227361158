"""Tables that are recognized by TF1 names, where a checkpoint has no objects: the tables of feature
columns and of Keras layers.

A feature column names its variable `<scope>/<column>_embedding/embedding_weights`, a Keras layer
`<layer>/embeddings`. Any other variable of rank 2 might be a table or the kernel of a Dense layer:
the user must name it.

Source: TensorFlow 2.20, python/feature_column/feature_column_v2.py, EmbeddingColumn.
"""

from __future__ import annotations

import re

from export.checkpoint.inventory.findings import Findings, Found, table_spec
from export.checkpoint.inventory.specs import Origin, may_be_table
from export.checkpoint.variables import Entry

_ENDS = "embedding_weights", "embeddings"
_TABLE = re.compile(r"(?:(.*)/)?([^/]+)/(embedding_weights|embeddings)")

DIV_OR_MOD = (
    "saved by TF1 in slices, read as contiguous row ranges (the `div` strategy); a table trained "
    "with the `mod` "
    "strategy comes out in the wrong order, and the checkpoint does not distinguish them: --mod "
    "NAME says so"
)


def find_named_tables(found: Findings) -> None:
    """Finds tables by the names of their variables."""
    tables = []
    taken = found.taken()
    for key, entry in found.checkpoint.entries.items():
        match = _TABLE.fullmatch(key) if key.endswith(_ENDS) else None
        if match and key not in taken and may_be_table(entry):
            origin: Origin = (
                "feature column" if match[3] == "embedding_weights" else "Keras Embedding"
            )
            longer = key.rpartition("/")[0].replace("/", ".")
            tables.append(
                Found(table_spec(match[2], entry, origin, "", note=partition_note(entry)), longer)
            )
    found.add_tables(tables)


def partition_note(entry: Entry) -> str:
    """Returns the note for a TF1 variable that is cut along its first axis; "" if it is not cut."""
    return DIV_OR_MOD if is_partitioned(entry) else ""


def is_partitioned(entry: Entry) -> bool:
    """Returns whether a variable is cut along its first axis."""
    return len({part.starts[0] for part in entry.slices}) > 1
