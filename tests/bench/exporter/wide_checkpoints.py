"""Checkpoints of very many small variables, valid but for their bytes: the data file is a hole that nothing reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from tests.export.checkpoint.bundles import (
    GRAPH,
    SUFFIX,
    entry,
    field,
    header,
    node,
    object_graph,
    shape_proto,
    slice_key,
    slice_proto,
    table,
    text_data,
)

PER_BLOCK = 1000
"""Entries in a block of 256 KiB, roughly as TensorFlow fills it."""
_SHAPES = {"kernel": (512, 256), "bias": (256,), "embeddings": (10_000, 32), "embedding_weights": (10_000, 32)}
_TABLE_EVERY = 50
"""Layers, of which one has a table instead of a bias."""
_SLICES = 1000

Pair = tuple[bytes, bytes]


def write_objects(directory: Path, count: int) -> Path:
    """Writes variables of a tree of layers, each with two slot variables of an optimizer of Keras' older kind."""
    layers = [f"layer-{number:05d}" for number in range(max(1, count // 6))]
    children: dict[str, int] = {"optimizer": 1}
    nodes, slots, values = [b"", b""], [], []
    for number, layer in enumerate(layers):
        children[layer] = len(nodes)
        owner, held = len(nodes), {}
        nodes.append(b"")
        for name in ("kernel", "bias" if number % _TABLE_EVERY else "embeddings"):
            held[name] = variable = len(nodes)
            path = f"{layer}/{name}"
            nodes.append(_node(key=path + SUFFIX, full_name=f"model/{layer}/{name}"))
            values.append((path + SUFFIX, _SHAPES[name]))
            for slot in ("m", "v"):
                key = f"{path}/.OPTIMIZER_SLOT/optimizer/{slot}{SUFFIX}"
                slots.append((variable, slot, len(nodes)))
                nodes.append(_node(key=key, full_name=f"model/{layer}/{name}/{slot}"))
                values.append((key, _SHAPES[name]))
        nodes[owner] = _node(held)
    nodes[0], nodes[1] = _node(children), _node(slots=slots)
    return _write(directory, values, nodes)


def write_names(directory: Path, count: int) -> Path:
    """Writes variables of TF1 by their names, each with the two states of Adam."""
    values = []
    for number in range(max(1, count // 6)):
        scope = f"tower_{number % 7}/block_{number:05d}"
        for name in ("dense/kernel", "dense/bias" if number % _TABLE_EVERY else "words_embedding/embedding_weights"):
            keys = (f"{scope}/{name}{state}" for state in ("", "/Adam", "/Adam_1"))
            values += [(key, _SHAPES[name.rpartition("/")[2]]) for key in keys]
    return _write(directory, values)


def write_slices(directory: Path, count: int) -> Path:
    """Writes tables of TF1 that are cut into a thousand slices each, with one state of Adagrad."""
    rows, dim = 8 * _SLICES, 16
    boxes = [((8 * number, 8), (0, -1)) for number in range(_SLICES)]
    whole = field(1, 1) + field(2, shape_proto((rows, dim))) + b"".join(field(7, slice_proto(box)) for box in boxes)
    pairs, at = [], 0
    for number in range(max(1, count // (2 * _SLICES))):
        for state in ("", "/Adagrad"):
            key = f"column_{number:05d}_embedding/embedding_weights{state}"
            pairs.append((key.encode(), whole))
            for box in boxes:
                pairs.append((slice_key(key, box), entry(1, (8, dim), at, 4 * 8 * dim, at)))
                at += 4 * 8 * dim
    return _write_pairs(directory, pairs, at)


def write_orbax(directory: Path, count: int) -> Path:
    """Writes a tree of parameters, each with the two moments of optax' Adam, in an OCDBT store as Orbax keeps it."""
    import tensorstore

    names = [f"layer_{number // 2:05d}.{('kernel', 'bias')[number % 2]}" for number in range(max(1, count // 3))]
    leaves = [f"{tree}.{name}" for tree in ("params", "opt_state.0.mu", "opt_state.0.nu") for name in names]
    described = orjson.dumps(
        {
            "chunks": [512, 256],
            "compressor": {"id": "zstd", "level": 1},
            "dimension_separator": ".",
            "dtype": "<f4",
            "fill_value": None,
            "filters": None,
            "order": "C",
            "shape": [512, 256],
            "zarr_format": 2,
        }
    )
    directory.mkdir(parents=True)
    config = {"max_inline_value_bytes": 1024, "max_decoded_node_bytes": 100_000_000}  # Orbax' own
    store = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{directory.absolute()}/"}, "config": config}
    with tensorstore.Transaction() as transaction:
        opened = tensorstore.KvStore.open(store).result().with_transaction(transaction)
        for leaf in leaves:
            opened.write(f"{leaf}/.zarray", described).result()
    told = {"value_type": "jax.Array", "skip_deserialize": False, "write_shape": [512, 256]}
    tree = {
        str(tuple(leaf.split("."))): {
            "key_metadata": [{"key": step, "key_type": 2} for step in leaf.split(".")],
            "value_metadata": told,
        }
        for leaf in leaves
    }
    page = {"tree_metadata": tree, "use_zarr3": False, "store_array_data_equal_to_fill_value": True}
    (directory / "_METADATA").write_text(json.dumps(page))  # as Orbax writes it
    return directory


KINDS: Mapping[str, Callable[[Path, int], Path]] = {
    "objects, two slot variables each": write_objects,
    "names of TF1, two states each": write_names,
    "tables in 1000 slices": write_slices,
    "Orbax, OCDBT": write_orbax,
}


def _node(*args: Any, **fields: Any) -> bytes:
    """A node as TensorFlow writes it: with a word on whether it has values."""
    return node(*args, **fields) + field(5, field(1, 1))


def _write(directory: Path, variables: list[tuple[str, tuple[int, ...]]], nodes: list[bytes] | None = None) -> Path:
    pairs, at = [], 0
    for key, shape in variables:
        size = 4
        for extent in shape:
            size *= extent
        pairs.append((key.encode(), entry(1, shape, at, size, at)))
        at += size
    return _write_pairs(directory, pairs, at, object_graph(*nodes) if nodes else b"")


def _write_pairs(directory: Path, pairs: list[Pair], size: int, graph: bytes = b"") -> Path:
    directory.mkdir(parents=True)
    with (directory / "c.data-00000-of-00001").open("wb") as file:
        file.truncate(size)
        if graph:
            file.seek(size)
            stored, crc = text_data(graph)
            file.write(stored)
            pairs = [*pairs, (GRAPH.encode(), entry(7, (), size, len(stored), crc))]
    (directory / "c.index").write_bytes(table([(b"", header()), *pairs], per_block=PER_BLOCK))
    return directory
