"""Intercepts Keras' encodings of ids as numbers: one_hot, multi_hot and count, of every layer that has an output_mode.

Ids that a rule tells become an indicator: a service counts them, where a tower would need strings, hashes or lookup
tables, or a count of ids, which LiteRT does not have.
Source: tf-keras 2.20, layers/preprocessing/preprocessing_utils.py, and Keras 3.15, src/utils/numerical_utils.py:
encode_categorical_inputs.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from export.frameworks.hooks import hooked
from export.frameworks.loading import load_tensorflow
from export.graph.input_paths import Followed, Values, per_example
from export.graph.origins import Source, needed
from export.graph.specs import TableFacts
from export.id_rules.arithmetic import FoundIds
from export.id_rules.chains import find_chain
from export.id_rules.crosses import find_several
from export.lookups.filled_ids import words_of
from export.lookups.indicator_columns import WIDTH_MAX
from export.lookups.records import Answer, Lookup

_MODULES = ("tf_keras.src.layers.preprocessing.preprocessing_utils", "keras.src.utils.numerical_utils")


@contextlib.contextmanager
def encodings_intercepted(answer: Answer) -> Iterator[None]:
    """Answers encodings of ids that a rule tells by `answer` within the `with`; Keras does all others."""

    def encoded(original: Callable[..., Any], **how: Any) -> Any:
        lookup = _lookup(**how)
        if lookup is None:
            return original(**how)
        tf = load_tensorflow()
        with tf.control_dependencies(None):  # what Keras asserts of ids
            found = answer(lookup)
            if how["output_mode"] == "multi_hot" and lookup.kind == "bag":
                found = tf.minimum(found, 1.0)
            found = tf.cast(found, how["dtype"])
            return found if how["output_mode"] != "tf_idf" else found * how["idf_weights"]

    with contextlib.ExitStack() as entered:
        for name in _MODULES:
            if name in sys.modules:
                entered.enter_context(hooked(sys.modules[name].encode_categorical_inputs, encoded))
        yield


def _lookup(inputs: Any, output_mode: str, depth: int, **how: Any) -> Lookup | None:
    """Returns what an encoding counts; None where no rule tells its ids, or a tower does it as well."""
    tf = load_tensorflow()
    graph = tf.compat.v1.get_default_graph()
    traced = not tf.executing_eagerly() and getattr(graph, "name", "").startswith("wrapped_function")
    beside = [how.get("sparse"), how.get("count_weights")]
    if not traced or any(each is not None and each is not False for each in beside) or depth > WIDTH_MAX:
        return None
    if isinstance(inputs, tf.Tensor) and inputs.op.type == "Cast" and inputs.op.inputs[0].dtype.is_integer:
        inputs = inputs.op.inputs[0]  # rows, of which there are few, as Keras 3 gives them to another layer
    if isinstance(inputs, tf.RaggedTensor):
        return _of_words(inputs, depth)
    dense = isinstance(inputs, tf.Tensor) and inputs.dtype.is_integer and inputs.shape.rank in (1, 2)
    size = per_example(inputs) if dense else None
    counted = output_mode in ("multi_hot", "count") and dense and inputs.shape.rank == 2
    if size is None or not (counted or (output_mode == "one_hot" and size == 1)):
        return None
    with tf.init_scope():  # tables are asked for their keys
        told = _is_told(inputs, size, depth, graph)
    if not told:
        return None
    return Lookup(
        path=inputs.op.name,
        table=TableFacts("", inputs.op.name, depth, depth),
        variable=None,
        ids=(inputs,),
        weights=None,
        kind="single" if size == 1 else "bag",
        encoding="dense",
        combiner=None if size == 1 else "sum",
        length=None,
    )


def _of_words(ids: Any, depth: int) -> Lookup | None:
    """Returns what an encoding counts of texts; None where no rule tells their words."""
    if words_of(ids) is None:
        return None
    table = TableFacts("", ids.values.op.name, depth, depth)
    how: dict[str, Any] = {"kind": "bag", "encoding": "ragged", "combiner": "sum", "length": None}
    return Lookup(path=ids.values.op.name, table=table, variable=None, ids=(ids,), weights=None, **how)


def _is_told(ids: Any, size: int, depth: int, graph: Any) -> bool:
    """Tells whether a rule makes these of an input, all of its values, or one of each of some."""
    captured = {inner.name: outer for outer, inner in graph.captures}
    inputs = [each for each in needed([ids], []).placeholders if each.name not in captured]
    call = Followed({each.name: Source(each.name, "dense") for each in inputs}, captured)
    found = find_chain(Values(ids), call, depth)
    if not isinstance(found, FoundIds):
        return size == 1 and find_several(ids, call, depth) is not None
    own = graph.get_tensor_by_name(found.source.name)
    odd = own.dtype.name == "string" or found.rule is not None or size > 1  # LiteRT makes one of one integer
    return odd and (found.source.place is not None or per_example(own) == size)
