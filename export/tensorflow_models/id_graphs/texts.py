"""Texts: ids of the words of a text that is changed and split.

Source: TensorFlow 2.20: the operations of `tf.strings.lower`, `upper`, `strip`, `regex_replace`,
`split`, `unicode_split` and `ngrams`, which the layer TextVectorization of tf-keras 2.20 and Keras
3.15 consists of.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from bundle.format.manifest import GraphIds, TextIds
from export.front_end.specs import Keys
from export.graphs.loading import tf
from export.graphs.walks import needed
from export.tensorflow_models.graph.input_paths import CallGraph, Values, per_example
from export.tensorflow_models.graph.origins import Source
from export.tensorflow_models.id_graphs.capture import find_graph
from export.tensorflow_models.id_graphs.resolved_ids import ResolvedIds

_WORDS = {"StringSplitV2": 1, "UnicodeEncode": 0, "StringNGrams": 0}
"""The output of each operation that holds the words."""
_COUNTED = frozenset(
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
    """A text that is split at whitespace or into characters, perhaps into runs of `ngrams`.

    Attributes:
      text: the text.
      starts: the tensor from which the words of each text are counted.
    """

    at: Literal["whitespace", "characters"]
    text: Any
    starts: Any
    ngrams: tuple[int, ...] = ()


def find(ids: Any, call: CallGraph, splits: Any) -> ResolvedIds | None:
    """Returns the input whose words ids are, and the rule; None for other ids.

    Args:
      ids: a flat tensor.
      call: the traced call.
      splits: where the words of each text begin.
    """
    for operation in needed([ids], []).operations:
        if operation.type not in _WORDS:
            continue
        words = operation.outputs[_WORDS[operation.type]]
        link = Source(words.name, "dense")
        found = find_graph(
            _never_masked(Values(ids), call, words), call.treated_as_input(words, link)
        )
        if not isinstance(found, ResolvedIds) or found.sources != (link,):
            continue
        split = _split(words)
        computed = None if split is None else _text_of(split.text, call)
        if split is None or computed is None or not _only_counts(splits, split.starts):
            return None
        source, text, keys = computed
        rule = TextIds(text=text, split=split.at, ngrams=split.ngrams, ids=found.rule)
        return ResolvedIds(source, rule, keys=(*keys, *found.keys))
    return None


def _never_masked(rows: Values, call: CallGraph, words: Any) -> Values:
    """Returns rows without Keras' mask for "", which is never a word of a split text."""
    made = call.origin(rows)
    if isinstance(made, Source) or made.type != "SelectV2":
        return rows
    condition, _, others = made.inputs
    masked = condition.type == "Equal" and condition.inputs[0].tensor is words
    none = tf.get_static_value(condition.inputs[1].tensor) if masked else None
    return others if none == b"" else rows


def _split(words: Any) -> _Split | None:
    """Returns how words were split; None if it is not known."""
    made = words.op
    if made.type == "StringNGrams":
        return _runs(made)
    if made.type == "StringSplitV2":
        separator = tf.get_static_value(made.inputs[1])
        plain = separator == b"" and made.get_attr("maxsplit") == -1
        return _Split("whitespace", made.inputs[0], made.outputs[0]) if plain else None
    decoded = [each for each in needed([words], []).operations if each.type == "UnicodeDecode"]
    plain = (
        made.type == "UnicodeEncode"
        and made.get_attr("output_encoding") == b"UTF-8"
        and len(decoded) == 1
    )
    if not plain or not _one_by_one(made, decoded[0]):
        return None
    (code_points,) = decoded
    options = {
        name: code_points.get_attr(name)
        for name in ("input_encoding", "replace_control_characters")
    }
    if options != {"input_encoding": b"UTF-8", "replace_control_characters": False}:
        return None
    return _Split("characters", code_points.inputs[0], code_points.outputs[0])


def _one_by_one(encoded: Any, decoded: Any) -> bool:
    """Returns whether each decoded code point is encoded again on its own."""
    values, starts = encoded.inputs
    while values.op.type in ("Reshape", "ExpandDims"):
        values = values.op.inputs[0]
    each = tf.get_static_value(starts.op.inputs[1]) if starts.op.type == "Mul" else None
    return values is decoded.outputs[1] and each == 1


def _runs(made: Any) -> _Split | None:
    words, starts = made.inputs
    split = _split(words) if words.op.type != "StringNGrams" else None
    options = {
        name: made.get_attr(name) for name in ("separator", "pad_width", "preserve_short_sequences")
    }
    if split is None or options != {
        "separator": b" ",
        "pad_width": 0,
        "preserve_short_sequences": False,
    }:
        return None
    if not _only_counts(starts, split.starts):
        return None
    return split._replace(starts=made.outputs[1], ngrams=tuple(made.get_attr("ngram_widths")))


def _only_counts(splits: Any, starts: Any) -> bool:
    """Returns whether splits depend only on the number of words of each text."""
    found = needed([splits], starts.op.outputs)
    types = {each.type for each in found.operations}
    counted = (
        bool(found.stops) and not found.placeholders and "Cumsum" in types and types <= _COUNTED
    )
    return splits is starts or counted


def _text_of(text: Any, call: CallGraph) -> tuple[Source, GraphIds | None, tuple[Keys, ...]] | None:
    """Returns the input of a text, what computes the text of it, and the keys that this reads."""
    found = find_graph(Values(text), call)
    if not isinstance(found, ResolvedIds) or found.others:
        return None
    source = found.source
    whole = source.part == "dense" and source.place is None
    if not whole or per_example(call.tensor_of(source, text.graph)) != 1:
        return None
    assert isinstance(found.rule, GraphIds)  # noqa: S101 - of find_graph
    is_sent = len(found.rule.nodes) == 1
    return source, None if is_sent else found.rule, found.keys
