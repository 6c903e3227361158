"""Intercepts what is gathered one row for each id: `tf.gather`, `tf.nn.embedding_lookup`, Embedding layers."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator
from typing import Any

from export.frameworks.loading import load_tensorflow
from export.frameworks.placeholders import Gather, early_rows, gathering, stand_in_class
from export.graph.specs import TableFacts
from export.lookups.records import Answer, Lookup


def facts_of(variable: Any) -> TableFacts:
    """Returns a table as its variable tells it; what it is called in the bundle is known when the model is built."""
    rows, dim = variable.shape.as_list()
    return TableFacts("", variable.name.partition(":")[0], rows, dim)


@contextlib.contextmanager
def gathers_intercepted(answer: Answer, first: Gather) -> Iterator[None]:
    """Answers gathers from StandIns within the `with`, where an example has a fixed number of ids.

    Args:
      answer: what it returns has the lookup's shape; where it returns None, TensorFlow gathers.
      first: is asked before.
    """

    def gather(variable: Any, ids: Any) -> Any:
        tf = load_tensorflow()
        if tf.executing_eagerly():  # a factory that calls its model: the values matter to nobody, unless they are kept
            return early_rows([*tf.convert_to_tensor(ids).shape, variable.shape[1]], variable.dtype)
        ids = tf.convert_to_tensor(ids)
        found = first(variable, ids)
        found = _of_joined_ids(variable, ids) if found is None else found
        if found is not None:
            return found
        lookup = describe_gather(variable, ids)
        found = answer(lookup) if lookup is not None else None
        if lookup is None or found is None:
            return None
        shaped = tf.reshape(found, [-1, *ids.shape.as_list()[1:], lookup.table.dim]) if lookup.length else found
        return tf.cast(shaped, variable.dtype)

    with gathering(gather), keras_3_gathers():
        yield


def _of_joined_ids(variable: Any, ids: Any) -> Any:
    """Gathers by ids that were stacked or concatenated one by one, so that each is an input's own."""
    tf = load_tensorflow()
    from tensorflow.python.framework import tensor_util

    operation = ids.op
    while operation.type in ("Identity", "Cast") and operation.inputs[0].dtype.is_integer:
        operation = operation.inputs[0].op
    rank = ids.shape.rank
    if rank is None or operation.type not in ("Pack", "ConcatV2"):
        return None
    if operation.type == "Pack":  # the rows add an axis at the end: one that is counted from there is another
        parts = [variable.sparse_read(each) for each in operation.inputs]
        return tf.stack(parts, axis=operation.get_attr("axis") % rank)
    axis = tensor_util.constant_value(operation.inputs[-1])
    if axis is None or axis % rank == 0:
        return None
    return tf.concat([variable.sparse_read(each) for each in operation.inputs[:-1]], axis=int(axis) % rank)


def describe_gather(variable: Any, ids: Any) -> Lookup | None:
    """Returns a gather as a lookup; None where its ids are not those of a batch, as of positions in a sequence."""
    tf = load_tensorflow()
    ids = tf.convert_to_tensor(ids)
    if ids.shape.rank is None or ids.shape.rank < 1 or ids.shape[0] is not None or None in ids.shape[1:]:
        return None
    length = math.prod(ids.shape[1:]) if ids.shape.rank > 1 else None
    return Lookup(
        path=variable.name.partition(":")[0],
        table=facts_of(variable),
        variable=variable,
        ids=(ids,),
        weights=None,
        kind="single" if length in (None, 1) else "sequence",
        encoding="dense",
        combiner=None,
        length=length,
    )


@contextlib.contextmanager
def keras_3_gathers() -> Iterator[None]:
    """Lets the Embedding of Keras 3 gather from a StandIn; its own way there is to read the whole table first.

    Source: Keras 3.15, src/layers/core/embedding.py and src/backend/tensorflow/numpy.py (`take`).
    """
    if "keras.src.layers.core.embedding" not in sys.modules:
        yield
        return
    layer = sys.modules["keras.src.layers.core.embedding"].Embedding
    call = layer.call

    def looked_up(self: Any, inputs: Any) -> Any:
        tf = load_tensorflow()
        table: Any = getattr(getattr(self, "_embeddings", None), "value", None)
        plain = isinstance(table, stand_in_class()) and not self.lora_enabled
        if not plain or not (tf.is_tensor(inputs) or isinstance(inputs, tf.RaggedTensor | tf.SparseTensor)):
            return call(self, inputs)
        table.from_end = True
        ids = inputs if inputs.dtype in (tf.int32, tf.int64) else tf.cast(inputs, tf.int32)
        if isinstance(ids, tf.SparseTensor):
            found = tf.nn.safe_embedding_lookup_sparse(table, tf.sparse.expand_dims(ids, -1), default_id=0)
            return tf.cast(tf.ensure_shape(found, [*ids.shape, table.shape[1]]), self.compute_dtype)
        return tf.cast(tf.nn.embedding_lookup(table, ids), self.compute_dtype)

    layer.call = looked_up
    try:
        yield
    finally:
        layer.call = call
