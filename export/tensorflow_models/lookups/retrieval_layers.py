"""Records what the retrieval layers of a model compare with their candidates: the vectors of
queries, which the model itself may not return.

Source: keras-rs 0.4.0, src/layers/retrieval/brute_force_retrieval.py; tensorflow-recommenders
0.7.7, layers/factorized_top_k.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from export.graphs.hooks import Hooks
from export.tensorflow_models.frameworks.hook_points import KERAS_RS_RETRIEVAL, TFRS_RETRIEVAL


@contextlib.contextmanager
def queries_recorded() -> Iterator[list[Any]]:
    """Fills a list, inside the `with` block, with the queries of each retrieval layer that is
    called.

    A layer that has candidates searches them, as it does anywhere. A layer of TFRS without an index
    returns nothing that can be an output: the index of the bundle finds the candidates.
    """
    queries: list[Any] = []

    def search(call: Callable[..., Any], layer: Any, inputs: Any, **options: Any) -> Any:
        queries.append(inputs)
        return call(layer, inputs, **options)

    def search_index(
        call: Callable[..., Any], layer: Any, inputs: Any, *options: Any, **by_name: Any
    ) -> Any:
        # The layer applies its query model itself: what it compares is not what it was given.
        query = inputs
        if layer.query_model is not None:
            query = layer.query_model(inputs)
        queries.append(query)
        if getattr(layer, "_candidates", None) is None:
            return ()
        return call(layer, inputs, *options, **by_name)

    with Hooks() as hooks:
        hooks.replace(KERAS_RS_RETRIEVAL, search)
        for point in TFRS_RETRIEVAL:
            hooks.replace(point, search_index)
        yield queries
