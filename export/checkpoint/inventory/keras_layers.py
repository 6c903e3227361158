"""What a Keras file records about its datasets: which are tables of Embedding layers, and which
belong to an optimizer.

    layers/embedding_1/vars/0            Keras 3, tf-keras: the class is the name in a list
    tower/query_table/vars/0                an attribute of the model: the class is not recorded
    model_weights/<layer>/.../embeddings:0  a whole model in .h5: the variable is named
    optimizer/vars/3, optimizer_weights/...

The configuration in a `.keras` archive or a whole model names the class of every layer, and Keras 3
names the layer of every dataset: together they are exact. Without them, an Embedding that is an
attribute of a model is a candidate.

Source: Keras 3.15, src/saving/saving_lib.py and src/legacy/saving/legacy_h5_format.py; tf-keras
2.20, the same files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from export.checkpoint.inventory.findings import Findings, table_spec
from export.checkpoint.inventory.specs import may_be_table

_STATE = re.compile(r"(?:.*/)?optimizer(?:_weights)?/(?:vars/)?(.+)")
_WEIGHT = re.compile(r"(?P<path>(?:.*/)?[^/]+)/vars/0")
_NAMED_WEIGHT = re.compile(r"(?:model_weights/)?(?P<path>(?:.*/)?[^/]+)/embeddings(?::0)?")
_LISTED_LAYER = re.compile(r"(?:.*/)?(?:layers|_layer_checkpoint_dependencies)/embedding(?:_\d+)?")
_DEFAULT_NAME = re.compile(r"embedding(?:_\d+)?")
_STEP = re.compile(
    r"optimizer/(?:inner_optimizer/)?vars/0|optimizer_weights/(?:.*/)?iterations?(?::0)?"
)
_DEPTH_MAX = 32
"""The maximum depth of nested models in a configuration, which may be hostile."""


def find_in_layers(findings: Findings) -> None:
    """Finds slot variables and the tables of Embedding layers."""
    storage = findings.checkpoint.storage
    classes = dict(_classes(storage.model))
    embedding_names = [name for name, kind in classes.items() if kind == "Embedding"]
    tables = []
    for key, entry in findings.checkpoint.entries.items():
        state = _STATE.fullmatch(key)
        if state:
            findings.add_slot(state[1].removesuffix(":0"), key, "")
            continue
        match = _WEIGHT.fullmatch(key) or _NAMED_WEIGHT.fullmatch(key)
        if match is None or not may_be_table(entry):
            continue

        path = match["path"]
        name = storage.layer_names.get(key, "")
        is_listed = _LISTED_LAYER.fullmatch(path) is not None
        # From the surest to the weakest sign: the variable's own name, the configuration, the class
        # as the name in a list of layers, and the name that Keras gives by default.
        if (
            match.re is _NAMED_WEIGHT
            or classes.get(name) == "Embedding"
            or (is_listed and name not in classes)
            or _has_default_name(name, classes)
        ):
            short_name = name or _name_by_position(path, embedding_names, findings)
            short_name = short_name or path.rpartition("/")[2]
            spec = table_spec(short_name, entry, "Keras Embedding", path)
            tables.append((spec, path.replace("/", ".")))
    findings.add_tables(tables)


def step_keys(keys: Iterable[str]) -> list[str]:
    """Returns the datasets that may hold the training step: an optimizer's first variable, or its
    `iteration`.
    """
    return list(filter(_STEP.fullmatch, keys))


def _has_default_name(name: str, classes: Mapping[str, str]) -> bool:
    """Returns whether a layer has the name that Keras gives an Embedding, and no configuration
    gives it another class.
    """
    return _DEFAULT_NAME.fullmatch(name) is not None and not classes


def _name_by_position(path: str, embedding_names: list[str], findings: Findings) -> str:
    """Returns the name of an Embedding in the model's own list of layers, by its position among the
    Embeddings there; "" if the list and the configuration do not correspond.
    """
    parent, _, attribute = path.rpartition("/")
    # Keras counts the layers of one class: `embedding`, `embedding_1`, ...
    suffix = attribute.rpartition("_")[2]
    position = 0
    if suffix.isdigit():
        position = int(suffix)
    listed_count = 0
    for key in findings.checkpoint.entries:
        listed_count += re.fullmatch(r"layers/embedding(_\d+)?/vars/0", key) is not None
    if parent != "layers" or len(embedding_names) != listed_count or position >= listed_count:
        return ""
    return embedding_names[position]


def _classes(config: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yields the name and the class of every layer in a model's configuration, including the layers
    of nested models.
    """
    layers = None
    if isinstance(config, Mapping) and isinstance(config.get("config"), Mapping):
        layers = config["config"].get("layers")
    if not isinstance(layers, list) or depth >= _DEPTH_MAX:
        return
    for layer in layers:
        if isinstance(layer, Mapping) and isinstance(layer.get("config"), Mapping):
            yield str(layer["config"].get("name")), str(layer.get("class_name"))
            yield from _classes(layer, depth + 1)
