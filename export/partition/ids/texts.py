"""Finds ids of texts: those of the words of a text that is changed and split.

Source: TensorFlow 2.20: the operations of `tf.strings.lower`, `upper`, `strip`, `regex_replace`,
`split`, `unicode_split` and `ngrams`, which the layer TextVectorization of tf-keras 2.20 and Keras
3.15 consists of.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bundle.format.graph_builder import GraphBuilder
from bundle.format.id_graphs import SplitNode
from export.graphs.loading import tf
from export.graphs.walks import needed
from export.partition.graph.input_paths import CallGraph, Values, per_example
from export.partition.graph.origins import Source
from export.partition.ids.capture import find_graph
from export.partition.ids.resolved_ids import ResolvedIds
from export.partition.ids.vocabularies import text_of

PADDED = "padded_values"
"""The name of the operation that pads ragged values to a length (`lookups/ragged.py`)."""
_WORDS_OUTPUT = {"StringSplitV2": 1, "UnicodeEncode": 0, "StringNGrams": 0, "GatherV2": 0}
"""The index of the output that holds the words, by the operation that computes words."""
_COUNTING_OPERATIONS = frozenset(
    {
        *(
            "StridedSlice",
            "Cast",
            "Size",
            "Greater",
            "Max",
            "AddV2",
            "Mul",
            "Maximum",
            "Minimum",
            "Reshape",
            "Const",
        ),
        *("DenseBincount", "Cumsum", "ConcatV2", "Identity"),
    }
)
"""The operations by which TensorFlow counts the words of each text."""


class _Split(NamedTuple):
    """A text that is split into words.

    Attributes:
      text: The text.
      starts: The tensor from which the words of each text are counted; of padded words, whose
        number is known, it is not needed.
      rule: The split as a node of a graph.
    """

    text: Any
    starts: Any
    rule: SplitNode

    def with_rule(self, **fields: Any) -> _Split:
        """Returns the split with other fields of its rule."""
        return self._replace(rule=self.rule.model_copy(update=fields))

    def counts_words(self, splits: Any) -> bool:
        """Returns whether row splits depend only on the number of words of each text."""
        if self.rule.padding is None:
            return _only_counts(splits, self.starts)
        return _uniform_length(splits) == self.rule.length


def find(ids: Any, call: CallGraph, splits: Any) -> ResolvedIds | None:
    """Returns the input whose words are looked up as ids, and the rule; None for other ids.

    Args:
      ids: A flat tensor.
      call: The traced call.
      splits: The tensor that says where the words of each text begin.
    """
    for operation in needed([ids], []).operations:
        if operation.type not in _WORDS_OUTPUT:
            continue
        words = operation.outputs[_WORDS_OUTPUT[operation.type]]
        split = _split(words)
        if split is None:
            continue
        # The words are treated as an input: their rows are computed from them alone.
        words_source = Source(words.name, "dense")
        rows = Values(ids)
        if split.rule.split != "separator" and split.rule.padding is None:
            rows = _never_masked(rows, call, words)
        resolved = find_graph(rows, call.treated_as_input(words, words_source))
        if not isinstance(resolved, ResolvedIds) or resolved.sources != (words_source,):
            continue
        assert resolved.rule is not None  # noqa: S101 - of find_graph

        if not split.counts_words(splits):
            return None
        text = _find_text(split.text, call)
        if text is None:
            return None
        builder = GraphBuilder(graph=text.rule)
        builder.split(builder.last, split.rule)
        builder.then(resolved.rule)
        return ResolvedIds(text.source, builder.graph(), keys=(*text.keys, *resolved.keys))
    return None


def uniform_rows(values: Any) -> Any:
    """Returns [batch, length] values of a known length as a RaggedTensor, all of whose rows have
    this length.
    """
    length = tf.constant(values.shape.as_list()[1], tf.int64)
    row_count = tf.shape(values, tf.int64)[0]
    splits = tf.range(row_count + 1) * length
    return tf.RaggedTensor.from_row_splits(tf.reshape(values, [-1]), splits, validate=False)


def _uniform_length(splits: Any) -> int | None:
    """Returns the length of all rows of splits that `uniform_rows` made; None for others."""
    if splits.op.type != "Mul" or splits.op.inputs[0].op.type != "Range":
        return None
    return int(tf.get_static_value(splits.op.inputs[1]))


def _never_masked(rows: Values, call: CallGraph, words: Any) -> Values:
    """Returns rows without Keras' mask for "", which is no word where whitespace separates them."""
    select = call.origin(rows)
    if isinstance(select, Source) or select.type != "SelectV2":
        return rows
    condition, _, unmasked_rows = select.inputs
    if condition.type != "Equal" or condition.inputs[0].tensor is not words:
        return rows
    masked_word = tf.get_static_value(condition.inputs[1].tensor)
    if masked_word != b"":
        return rows
    return unmasked_rows


def _split(words: Any) -> _Split | None:
    """Returns the split that words come from; None if it is not known."""
    operation = words.op
    if operation.type == "StringNGrams":
        return _split_into_runs(operation)
    if operation.type == "StringSplitV2":
        separator = _constant_text(operation.inputs[1])
        if separator is None or operation.get_attr("maxsplit") != -1:
            return None
        rule = SplitNode(inputs=(0,), split="whitespace")
        if separator:
            rule = SplitNode(inputs=(0,), split="separator", separator=separator)
        return _Split(operation.inputs[0], operation.outputs[0], rule)
    if operation.type == "GatherV2":
        return _padded_split(operation)
    return _split_into_characters(operation)


def _padded_split(gather: Any) -> _Split | None:
    """Returns the split of a text whose words were padded to a length; None for other gathers."""
    padded = gather.outputs[0]
    is_padding = gather.name.rpartition("/")[2].startswith(PADDED)
    if not is_padding or padded.dtype != tf.string or padded.shape.rank != 2:
        return None
    # Behind the padding stand all words.
    padding, words, _axis = gather.inputs[0].op.inputs
    split = _split(words)
    word = _constant_text(padding.op.inputs[0])
    length = padded.shape.as_list()[1]
    if split is None or length is None or word is None:
        return None
    return split.with_rule(length=length, padding=word)


def _constant_text(tensor: Any) -> str | None:
    """Returns the text that a tensor always holds; None for other tensors."""
    value = tf.get_static_value(tensor)
    if value is None:
        return None
    return text_of(np.asarray(value).item())


def _split_into_characters(encoding: Any) -> _Split | None:
    """Returns the split of a text by `tf.strings.unicode_split`, which decodes the text and encodes
    each character again; None for any other split.
    """
    if encoding.type != "UnicodeEncode" or encoding.get_attr("output_encoding") != b"UTF-8":
        return None
    operations = needed(encoding.outputs, []).operations
    decodings = [operation for operation in operations if operation.type == "UnicodeDecode"]
    if len(decodings) != 1 or not _encodes_each_character(encoding, decodings[0]):
        return None
    (decoding,) = decodings
    if decoding.get_attr("input_encoding") != b"UTF-8":
        return None
    if decoding.get_attr("replace_control_characters"):
        return None
    rule = SplitNode(inputs=(0,), split="characters")
    return _Split(decoding.inputs[0], decoding.outputs[0], rule)


def _encodes_each_character(encoding: Any, decoding: Any) -> bool:
    """Returns whether each decoded code point is encoded again on its own."""
    values, starts = encoding.inputs
    while values.op.type in ("Reshape", "ExpandDims"):
        values = values.op.inputs[0]
    # The starts of texts are multiples of the number of code points in each.
    if values is not decoding.outputs[1] or starts.op.type != "Mul":
        return False
    return bool(tf.get_static_value(starts.op.inputs[1]) == 1)


def _split_into_runs(operation: Any) -> _Split | None:
    """Returns the split of a text into words that `tf.strings.ngrams` joins to runs; None for runs
    of runs, and for options that a bundle does not have.
    """
    words, starts = operation.inputs
    if words.op.type == "StringNGrams":
        return None
    split = _split(words)
    expected = {"separator": b" ", "pad_width": 0, "preserve_short_sequences": False}
    actual = {name: operation.get_attr(name) for name in expected}
    if split is None or actual != expected or not _only_counts(starts, split.starts):
        return None
    widths = tuple(operation.get_attr("ngram_widths"))
    return split.with_rule(ngrams=widths)._replace(starts=operation.outputs[1])


def _only_counts(splits: Any, starts: Any) -> bool:
    """Returns whether splits depend only on the number of words of each text."""
    if splits is starts:
        return True
    subgraph = needed([splits], starts.op.outputs)
    if not subgraph.stops or subgraph.placeholders:
        return False
    types = {operation.type for operation in subgraph.operations}
    return "Cumsum" in types and types <= _COUNTING_OPERATIONS


def _find_text(text: Any, call: CallGraph) -> ResolvedIds | None:
    """Returns the input of a text, one per example, and the graph that computes the text; None if
    no single input has the text.
    """
    resolved = find_graph(Values(text), call)
    if not isinstance(resolved, ResolvedIds) or resolved.other_sources:
        return None
    source = resolved.source
    is_whole = source.part == "dense" and source.position is None
    if not is_whole or per_example(call.tensor_of(source, text.graph)) != 1:
        return None
    return resolved
