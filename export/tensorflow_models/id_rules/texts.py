"""Texts: ids of the words of a text that is changed and split.

Source: TensorFlow 2.20: the operations of `tf.strings.lower`, `upper`, `strip`, `regex_replace`,
`split`, `unicode_split` and `ngrams`, which the layer TextVectorization of tf-keras 2.20 and Keras
3.15 consists of.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from bundle.format.manifest import HashIds, TextIds, TextStep, VocabularyIds
from export.graphs.loading import tf
from export.graphs.walks import needed
from export.tensorflow_models.graph.input_paths import CallGraph, Values, per_example, run
from export.tensorflow_models.graph.origins import Source
from export.tensorflow_models.id_rules.resolved_ids import ResolvedIds
from export.tensorflow_models.id_rules.rules import Find, find_ids, find_ids_after

CHANGES = frozenset({"StringLower", "StringUpper", "StringStrip", "StaticRegexReplace"})
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


Changed = tuple[ResolvedIds, tuple[TextStep, ...]]
"""Ids of a changed text, and the changes."""


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


def find(ids: Any, call: CallGraph, rows: int | None, splits: Any = None) -> ResolvedIds | None:
    """Returns the input whose words ids are, and the rule; None for other ids.

    Args:
      ids: a tensor, flat if texts have several words.
      call: the traced call.
      rows: of the table.
      splits: where the words of each text begin; None: each text is one word.
    """
    if splits is None:
        whole = find_changed(ids, call, rows)
        return None if whole is None else _text_rule(*whole)
    for operation in needed([ids], []).operations:
        if operation.type in _WORDS:
            words = operation.outputs[_WORDS[operation.type]]
            found = find_ids_after(words, _never_masked(Values(ids), call, words), call, rows)
            if found is not None:
                split = _split(words)
                changed = None if split is None else changed_text(split.text, call)
                if split is None or changed is None or not _only_counts(splits, split.starts):
                    return None
                return _text_rule(
                    replace(found, source=changed[0]),
                    changed[1],
                    split=split.at,
                    ngrams=split.ngrams,
                )
    return None


def find_changed(
    values: Any, call: CallGraph, rows: int | None, how: Find = find_ids
) -> Changed | None:
    """Returns the input and rule of values computed from a changed text, and the changes; None for
    others.
    """
    for operation in needed([values], []).operations:
        changed = changed_text(operation.outputs[0], call) if operation.type in CHANGES else None
        if changed is None:
            continue
        found = find_ids_after(operation.outputs[0], Values(values), call, rows, how)
        if found is not None:
            return replace(found, source=changed[0]), changed[1]
    return None


def _text_rule(found: ResolvedIds, steps: tuple[TextStep, ...], **how: Any) -> ResolvedIds | None:
    if not isinstance(found.rule, HashIds | VocabularyIds):
        return None
    return replace(found, rule=TextIds(steps=steps, ids=found.rule, **how))


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


def changed_text(text: Any, call: CallGraph) -> tuple[Source, tuple[TextStep, ...]] | None:
    """Returns the input of a text, and its changes in order."""
    steps: list[TextStep] = []
    while True:
        made = call.origin(Values(text))
        if isinstance(made, Source):
            whole = made.part == "dense" and made.place is None
            one = whole and per_example(call.tensor_of(made, text.graph)) == 1
            return (made, tuple(steps[::-1])) if one else None
        step = _step(made.tensor.op) if made.type in CHANGES else None
        if step is None:
            return None
        steps.append(step)
        text = made.tensor.op.inputs[0]


def _step(change: Any) -> TextStep | None:
    if change.type == "StringStrip":
        return TextStep(do="strip")
    if change.type in ("StringLower", "StringUpper"):
        if change.get_attr("encoding") != b"":  # else only ASCII letters change
            return None
        return TextStep(do="lower" if change.type == "StringLower" else "upper")
    pattern = change.get_attr("pattern")
    by = change.get_attr("rewrite")
    if not change.get_attr("replace_global") or b"\\" in by or not by.isascii():
        return None
    return _replaced(pattern, by, change)


def _replaced(pattern: bytes, by: bytes, change: Any) -> TextStep | None:
    """Returns a replacement of ASCII characters or of one text, tested with TensorFlow's own
    operation.
    """
    text = pattern.decode(errors="replace")
    plain = re.sub(r"\\(\W)", r"\1", text)  # without the backslashes of re.escape
    if re.fullmatch(r"(?:[^\\.^$*+?{}\[\]|()]|\\\W)+", text):
        step = TextStep(do="replace", what=plain, by=by.decode())
        (done,) = run(change, [_strings([f"a{plain * 2}b"])])
        return step if done.tolist() == [f"a{step.by * 2}b".encode()] else None
    if not re.fullmatch(r"\[(?!\^)(?:[^\\\[\]]|\\\W)+\]", text):
        return None
    tried = [chr(code) for code in range(128)]
    (done,) = run(change, [_strings(tried)])
    gone = [
        each for each, after in zip(tried, done.tolist(), strict=True) if after != each.encode()
    ]
    what = "".join(gone)
    return (
        TextStep(do="replace_any", what=what, by=by.decode()) if what and plain.isascii() else None
    )


def _strings(texts: list[str]) -> Any:
    return np.array([text.encode() for text in texts], object)
