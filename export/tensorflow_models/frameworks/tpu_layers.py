"""Makes the TPU-only embedding layers of TensorFlow work on a CPU.

`TPUEmbeddingV0` and `TPUEmbeddingV2` require a TPUStrategy. Otherwise they hold and look up the
same as `TPUEmbeddingForServing` and `cpu_embedding_lookup`.
Source: TensorFlow 2.20, python/tpu/tpu_embedding_base.py, tpu_embedding_v1.py and
tpu_embedding_v3.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from export.graphs.hooks import Hooks, Replacement
from export.tensorflow_models.frameworks.hook_points import LAYER_TABLES, TPU_METHODS

TakeTables = Callable[[Any], Any]
"""(the layer's TableConfigs) -> its variables: a dict by the tables' names of dicts."""


def make_layers_on_cpu(hooks: Hooks, create: TakeTables) -> None:
    """Makes every embedding layer of the mid-level API create its tables by `create` and run on a
    CPU.
    """
    from tensorflow.python.distribute import distribute_lib
    from tensorflow.python.tpu import tpu_embedding_base, tpu_embedding_for_serving

    # Each replacement takes the original method first, and leaves it alone: it requires a
    # TPUStrategy.
    def init(
        _: Any,
        layer: Any,
        feature_config: Any,
        optimizer: Any = None,
        *_more: Any,
        **_options: Any,
    ) -> None:
        tpu_embedding_base.TPUEmbeddingBase.__init__(layer, feature_config, optimizer)
        layer._strategy = distribute_lib.get_strategy()

    def build(_: Any, layer: Any, *_more: Any) -> None:
        if not layer._built:
            layer._variables = create(layer._table_config)
            layer._built = True

    def tables(_: Any, layer: Any) -> Any:
        build(None, layer)
        return {table: layer._variables[table.name]["parameters"] for table in layer._table_config}

    def look_up(_: Any, layer: Any, features: Any, weights: Any = None) -> Any:
        lookup = tpu_embedding_for_serving.cpu_embedding_lookup
        activations = lookup(features, weights, tables(None, layer), layer._feature_config)
        # The second generation returns a pair. Its class shows which one a layer is: on a CPU, the
        # layer itself has no layouts.
        if hasattr(type(layer), "embedding_layouts"):
            return activations, {}
        return activations

    for point in LAYER_TABLES:
        hooks.replace(point, lambda _, layer: create(layer._table_config))
    replacements: dict[str, Replacement] = {
        "__init__": init,
        "embedding_tables": tables,
        "embedding_lookup": look_up,
        "__call__": look_up,
    }
    for name, points in TPU_METHODS.items():
        for point in points:
            hooks.replace(point, replacements.get(name, build))
