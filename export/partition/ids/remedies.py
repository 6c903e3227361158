"""States what to change about ids that a bundle does not compute."""

from __future__ import annotations

from typing import Any

from bundle.format.id_graphs import CONSTANT_MAX
from export.graphs.walks import ID_DTYPES, PYTHON_CODE, needed
from export.partition.graph.input_paths import Values
from export.partition.ids.buckets import SEARCHES, SERIES


def cure_of(values: Values) -> str:
    """Returns what to change about an operation that a bundle does not compute."""
    if values.type != "ReadVariableOp" and (words := cure_of_words(values.tensor)):
        return words
    dtype = values.tensor.dtype
    if values.type == "Cast" and dtype.is_integer and dtype.name not in ID_DTYPES:
        return "cast them to tf.int32 or tf.int64, since narrow integers wrap around"
    for operations, cure in _CURES.items():
        if values.type in operations:
            return cure
    return _SEPARATE


def cure_of_words(ids: Any) -> str:
    """Returns what to change about ids that are words of texts; "" for others."""
    for operation in needed([ids], []).operations:
        if operation.type in ("StringSplitV2", "UnicodeDecode"):
            return _WORDS
    return ""


_CURES: dict[tuple[str, ...], str] = {
    ("ReadVariableOp",): (
        "make a constant of the variable that its ids are computed with, since a bundle computes "
        "ids without the checkpoint"
    ),
    PYTHON_CODE: "write the function in TensorFlow's own operations, or let callers send what it "
    "returns",
    ("Bucketize", "Cast", *SEARCHES, *SERIES): (
        "compute the id from one number alone, clipped to a range in which the id takes at most "
        f"{CONSTANT_MAX} values, or let callers send the id"
    ),
    ("SparseToDense",): "cross inputs of one value each",
    ("StringJoin", "Add", "AsString", "ReduceJoin"): (
        "join inputs of one value each by tf.strings.join"
    ),
}
_WORDS = (
    "let TextVectorization have an output_sequence_length, or average the rows of its words by "
    "GlobalAveragePooling1D under mask_zero, where no word has row 0; change texts by "
    "tf.strings.lower or upper without an encoding, strip, or regex_replace of ASCII characters or "
    "one text, and split at whitespace, at a separator or into characters; or let callers send the "
    "words"
)
_SEPARATE = (
    "let callers send what is looked up as a separate input, or compute it by arithmetic, "
    "comparisons, hashes, vocabularies or buckets"
)
