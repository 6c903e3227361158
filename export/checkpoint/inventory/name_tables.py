"""Tables that are recognized by TF1 names, where a checkpoint has no objects: the tables of feature
columns and of Keras layers.

A feature column names its variable `<scope>/<column>_embedding/embedding_weights`, a Keras layer
`<layer>/embeddings`. Any other variable of rank 2 might be a table or the kernel of a Dense layer:
the user must name it.

Source: TensorFlow 2.20, python/feature_column/feature_column_v2.py, EmbeddingColumn.
"""

from __future__ import annotations

import re

from export.checkpoint.inventory.findings import Findings, table_spec
from export.checkpoint.inventory.specs import Origin, may_be_table
from export.checkpoint.variables import Entry

_ENDS = "embedding_weights", "embeddings"
_TABLE = re.compile(r"(?:(.*)/)?([^/]+)/(embedding_weights|embeddings)")

DIV_OR_MOD = (
    "saved by TF1 in slices, read as contiguous row ranges (the `div` strategy); a table trained "
    "with the `mod` strategy comes out in the wrong order, and the checkpoint does not distinguish "
    "them: --mod NAME says so"
)


def find_named_tables(findings: Findings) -> None:
    """Finds tables by the names of their variables."""
    tables = []
    claimed_keys = findings.claimed_keys()
    for key, entry in findings.checkpoint.entries.items():
        # Most of 10^5 keys are excluded by their ends, which costs less than the expression.
        if not key.endswith(_ENDS) or key in claimed_keys or not may_be_table(entry):
            continue
        match = _TABLE.fullmatch(key)
        if match is None:
            continue
        origin: Origin = "Keras Embedding"
        if match[3] == "embedding_weights":
            origin = "feature column"
        spec = table_spec(match[2], entry, origin, "", note=partition_note(entry))
        tables.append((spec, key.rpartition("/")[0].replace("/", ".")))
    findings.add_tables(tables)


def partition_note(entry: Entry) -> str:
    """Returns the note for a TF1 variable that is cut along its first axis; "" if it is not cut."""
    if not is_partitioned(entry):
        return ""
    return DIV_OR_MOD


def is_partitioned(entry: Entry) -> bool:
    """Returns whether a variable is cut along its first axis."""
    # Slices of the same rows are cut by columns only, which changes no order of rows.
    return len({part.starts[0] for part in entry.slices}) > 1
