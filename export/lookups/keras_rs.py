"""Intercepts what keras-rs looks up: its DistributedEmbedding is, off TPUs, an EmbedReduce for each table.

An EmbedReduce of dense ids is a gather whose rows are combined in the tower; of ragged and sparse ids it is a bag.
Source: keras-rs 0.4.0, src/layers/embedding/embed_reduce.py and base_distributed_embedding.py.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from export.frameworks.loading import load_tensorflow
from export.frameworks.placeholders import stand_in_class
from export.lookups.gathers import facts_of
from export.lookups.records import Answer, Lookup


@contextlib.contextmanager
def keras_rs_intercepted(answer: Answer) -> Iterator[None]:
    """Answers bags of EmbedReduce layers within the `with`, where the model has imported keras-rs."""
    module = sys.modules.get("keras_rs.src.layers.embedding.embed_reduce")
    if module is None:
        yield
        return
    layer = module.EmbedReduce
    call = layer.call

    def combined(self: Any, inputs: Any, weights: Any = None) -> Any:
        tf = load_tensorflow()
        table = getattr(getattr(self, "_embeddings", None), "value", None)
        bag = isinstance(inputs, tf.RaggedTensor | tf.SparseTensor) and inputs.shape.rank == 2
        alike = weights is None or type(weights) is type(inputs)
        if not (bag and alike and isinstance(table, stand_in_class())):
            return call(self, inputs, weights)
        # Nothing is pruned: the divisor is whatever the weights sum up to.
        lookup = Lookup(self.name, facts_of(table), table, (inputs,), weights, "bag", "ragged", self.combiner, None)
        return tf.cast(answer(lookup), self.compute_dtype)

    layer.call = combined
    try:
        yield
    finally:
        layer.call = call
