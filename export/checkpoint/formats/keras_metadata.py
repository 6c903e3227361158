"""What tf-keras saves beside a SavedModel: the configuration of each layer (`keras_metadata.pb`).

Source: tf-keras, src/saving/legacy/saved_model/{save,load,constants}.py.
"""

from __future__ import annotations

import json
from typing import Any

from export.checkpoint.formats.coding import Malformed
from export.checkpoint.formats.keras_archive import CONFIG_BYTES_MAX
from export.checkpoint.formats.protos import decode
from export.checkpoint.formats.upstreams import UnknownFields
from export.errors import CheckpointError
from object_store.locations import Location, read_range, stamp_of

_FILE = "keras_metadata.pb"
_VARIABLES = "variables"
_ROOT = "root"
_LAYERS = frozenset(
    f"_tf_keras_{kind}"
    for kind in ("layer", "input_layer", "rnn_layer", "model", "network", "sequential")
)


def read_saved_layers(prefix: Location) -> dict[str, dict[str, Any]]:
    """Returns the configuration of each layer of a SavedModel of tf-keras.

    Args:
      prefix: The prefix of a checkpoint, which may be the variables of a SavedModel.

    Returns:
      `class_name`, `config` and `build_input_shape` by the path of attributes, which is "" for the
      model itself; {} if the checkpoint does not belong to a SavedModel of tf-keras.

    Raises:
      CheckpointError: The file is damaged or too large.
    """
    file = prefix.parent.parent / _FILE
    if (prefix.name, prefix.parent.name) != (_VARIABLES, _VARIABLES) or not file.is_file():
        return {}
    size = stamp_of(file).bytes
    if size > CONFIG_BYTES_MAX:
        raise CheckpointError(
            f"{file} has {size} bytes; at most {CONFIG_BYTES_MAX} were expected of the description "
            "of a model"
        )
    try:
        layers = {}
        for node in decode("SavedMetadata", read_range(file, 0, size)).nodes:
            # The nodes of metrics describe no layers.
            if node.identifier not in _LAYERS:
                continue
            metadata = json.loads(node.metadata)
            # A layer of a class without `get_config` has no configuration.
            if isinstance(metadata.get("config"), dict):
                path = node.node_path.removeprefix(_ROOT).removeprefix(".")
                layers[path] = {
                    "class_name": metadata["class_name"],
                    "config": metadata["config"],
                    "build_input_shape": metadata.get("build_input_shape"),
                }
        return layers
    except UnknownFields as problem:
        raise CheckpointError(f"{file}: {problem}") from problem
    except (Malformed, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise CheckpointError(
            f"{file} does not describe a model of tf-keras: {problem}; copy the SavedModel anew"
        ) from problem
