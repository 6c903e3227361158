"""Lets embedding layers that TensorFlow makes on TPUs only be made and asked on a CPU.

`TPUEmbeddingV0` and `TPUEmbeddingV2` refuse to be without a TPUStrategy. What they hold is what
`TPUEmbeddingForServing` holds, and what they look up is what `cpu_embedding_lookup` does.
Source: TensorFlow 2.20, python/tpu/tpu_embedding_base.py, tpu_embedding_v1.py and tpu_embedding_v3.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from export.frameworks.loading import load_tensorflow


@contextlib.contextmanager
def tpu_layers_on_cpu(create: Callable[[Any], Any]) -> Iterator[None]:
    """Replaces the methods of both classes that need TPUs, within the `with`.

    Args:
      create: returns a layer's variables: a dict by the tables' names.
    """
    load_tensorflow()
    from tensorflow.python.distribute import distribute_lib
    from tensorflow.python.tpu import tpu_embedding_base, tpu_embedding_for_serving, tpu_embedding_v1, tpu_embedding_v3

    def init(layer: Any, feature_config: Any, optimizer: Any = None, *_more: Any, **_how: Any) -> None:
        tpu_embedding_base.TPUEmbeddingBase.__init__(layer, feature_config, optimizer)
        layer._strategy = distribute_lib.get_strategy()

    def build(layer: Any) -> None:
        if not layer._built:
            layer._variables = create(layer)
            layer._built = True

    def tables(layer: Any) -> Any:
        build(layer)
        return {table: layer._variables[table.name]["parameters"] for table in layer._table_config}

    def look_up(layer: Any, features: Any, weights: Any = None) -> Any:
        return tpu_embedding_for_serving.cpu_embedding_lookup(features, weights, tables(layer), layer._feature_config)

    def look_up_with_rest(layer: Any, features: Any, weights: Any = None) -> Any:
        return look_up(layer, features, weights), {}

    old, new = tpu_embedding_v1.TPUEmbeddingV0, tpu_embedding_v3.TPUEmbeddingV2
    methods: dict[Any, dict[str, Any]] = {
        old: {"embedding_lookup": look_up, "__call__": look_up},
        new: {"embedding_lookup": look_up_with_rest, "__call__": look_up_with_rest},
    }
    with contextlib.ExitStack() as replaced:
        for layer, own in methods.items():
            all_of = {
                "__init__": init,
                "build": build,
                "_maybe_build": build,
                "embedding_tables": property(tables),
                **own,
            }
            for name, method in all_of.items():
                replaced.enter_context(_replaced(layer, name, method))
        yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, method: Any) -> Iterator[None]:
    before = owner.__dict__.get(name)
    setattr(owner, name, method)
    try:
        yield
    finally:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
