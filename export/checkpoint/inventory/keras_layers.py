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

from export.checkpoint.inventory.findings import Findings, Found, table_spec
from export.checkpoint.inventory.specs import may_be_table

_STATE = re.compile(r"(?:.*/)?optimizer(?:_weights)?/(?:vars/)?(.+)")
_WEIGHT = re.compile(r"(?P<path>(?:.*/)?[^/]+)/vars/0")
_NAMED = re.compile(r"(?:model_weights/)?(?P<path>(?:.*/)?[^/]+)/embeddings(?::0)?")
_LISTED = re.compile(r"(?:.*/)?(?:layers|_layer_checkpoint_dependencies)/embedding(?:_\d+)?")
_DEFAULT_NAME = re.compile(r"embedding(?:_\d+)?")
_STEP = re.compile(
    r"optimizer/(?:inner_optimizer/)?vars/0|optimizer_weights/(?:.*/)?iterations?(?::0)?"
)
_DEPTH_MAX = 32


def find_in_layers(found: Findings) -> None:
    """Finds slot variables and the tables of Embedding layers."""
    storage = found.checkpoint.storage
    classes = dict(_classes(storage.model))
    ordered = [name for name, kind in classes.items() if kind == "Embedding"]
    tables = []
    for key, entry in found.checkpoint.entries.items():
        state = _STATE.fullmatch(key)
        if state:
            found.add_slot(state[1].removesuffix(":0"), key, "")
            continue
        matched = _WEIGHT.fullmatch(key) or _NAMED.fullmatch(key)
        if matched is None or not may_be_table(entry):
            continue
        path = matched["path"]
        name = storage.layer_names.get(key, "")
        listed = _LISTED.fullmatch(path) is not None
        if (
            matched.re is _NAMED
            or classes.get(name) == "Embedding"
            or (listed and name not in classes)
            or _is_default(name, classes)
        ):
            short = name or _by_place(path, ordered, found) or path.rpartition("/")[2]
            tables.append(
                Found(table_spec(short, entry, "Keras Embedding", path), path.replace("/", "."))
            )
    found.add_tables(tables)


def step_keys(keys: Iterable[str]) -> list[str]:
    """Returns the datasets that may hold the training step: an optimizer's first variable, or its
    `iteration`.
    """
    return list(filter(_STEP.fullmatch, keys))


def _is_default(name: str, classes: Mapping[str, str]) -> bool:
    """Returns whether a layer has the name that Keras gives an Embedding, and no configuration
    gives it another class.
    """
    return _DEFAULT_NAME.fullmatch(name) is not None and not classes


def _by_place(path: str, ordered: list[str], found: Findings) -> str:
    """Returns the name of an Embedding in the model's own list of layers, by its position among the
    Embeddings there.
    """
    head, _, place = path.rpartition("/")
    count = place.rpartition("_")[2]
    number = int(count) if count.isdigit() else 0
    listed = sum(
        1
        for key in found.checkpoint.entries
        if re.fullmatch(r"layers/embedding(_\d+)?/vars/0", key)
    )
    return (
        ordered[number] if head == "layers" and len(ordered) == listed and number < listed else ""
    )


def _classes(config: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yields the name and the class of every layer in a model's configuration, including the layers
    of nested models.
    """
    inner = config.get("config") if isinstance(config, Mapping) else None
    layers = inner.get("layers") if isinstance(inner, Mapping) else None
    for layer in layers if isinstance(layers, list) and depth < _DEPTH_MAX else ():
        if isinstance(layer, Mapping) and isinstance(layer.get("config"), Mapping):
            yield str(layer["config"].get("name")), str(layer.get("class_name"))
            yield from _classes(layer, depth + 1)
