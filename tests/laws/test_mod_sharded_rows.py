"""Tables that TorchRec shards over the SparseCores of TPUs are copied in the order of ids.

They are sharded by operations on whole arrays, as TorchRec does it, and share no formula with the
code that reads them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from tests.differential.copies import copied
from tests.laws.trained_stacks import dealt, packed
from tests.units.export.checkpoint.formats.torch_files import Part, write_torch

BAGS = "model.ebc.embedding_bags"
Tables = dict[str, NDArray[np.float32]]


def stacked(
    tables: Tables, cores: int, per_device: int
) -> tuple[NDArray[np.float32], dict[str, Any]]:
    """Stacks tables as TorchRec does; returns the variable, and what a planner records of it."""
    columns = max(ceil_div(values.shape[1], 8) * 8 for values in tables.values())
    rotations = [number * per_device % cores for number in range(len(tables))]
    places = packed([*map(len, tables.values())], cores, rotations)
    blocks = {
        name: dealt(np.pad(values, ((0, 0), (0, columns - values.shape[1]))), cores, rotation, 0)
        for (name, values), rotation in zip(tables.items(), rotations, strict=True)
    }
    variable = np.concatenate([*blocks.values()], 1).reshape(-1, columns)
    offset_of = {name: place.offset for name, place in zip(tables, places, strict=True)}
    rotation_of = dict(zip(tables, rotations, strict=True))
    padded_rows = {name: cores * block.shape[1] for name, block in blocks.items()}
    described = [
        {
            "name": name,
            "num_embeddings": values.shape[0],
            "embedding_dim": values.shape[1],
            "is_bag": True,
            "pooling": "SUM",
            "max_seq_len": None,
            "feature_names": [name],
            "padded_vocab_size": padded_rows[name],
            "padded_embedding_dim": columns,
            "row_offset_in_shard": offset_of[name],
            "shard_rotation": rotation_of[name],
        }
        for name, values in tables.items()
    ]
    return variable, {
        "stack_name": "s",
        "stack_table_name": "s",
        "feature_names": list(tables),
        "stack_num_embeddings": len(variable),
        "stack_embedding_dim": columns,
        "total_sample_count_multiplier": len(tables),
        "row_offsets_in_shard": offset_of,
        "shard_rotations": rotation_of,
        "padded_vocab_sizes": padded_rows,
        "padded_embedding_dims": dict.fromkeys(tables, columns),
        "tables": described,
    }


def save(directory: Path, variables: Tables, devices: int, recorded: dict[str, Any]) -> Path:
    """Saves variables in a part for each device."""
    directory.mkdir()
    parts = [
        Part(name, (device * len(values) // devices, 0), part, f"__{device}_0.distcp")
        for name, values in variables.items()
        for device, part in enumerate(np.split(values, devices))
    ]
    write_torch(directory, variables, parts, {"sparsecore": recorded})
    return directory


@pytest.mark.parametrize("seed", range(6))
def test_rows_sharded_over_cores_are_copied_in_the_order_of_ids(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    devices = int(random.integers(1, 5))
    per_device = int(random.integers(1, 5))
    cores = devices * per_device

    def table(columns: int) -> NDArray[np.float32]:
        rows = int(random.integers(1, 40 * cores))
        return random.standard_normal((rows, columns), np.float32)

    tables = {f"t{place}": table(int(random.integers(1, 20))) for place in range(3)}
    stack, config = stacked(tables, cores, per_device)
    alone = random.standard_normal((8 * cores, 4), np.float32)
    variables = {
        f"{BAGS}.s.weight": stack,
        f"{BAGS}.alone.weight": dealt(alone, cores, 0, 0).reshape(-1, 4),
        "model.ebc.accumulators.s": np.ones_like(stack),
        "model.over.weight": random.standard_normal((devices, 3), np.float32),
    }
    recorded: dict[str, Any] = {"world_size": devices, "num_sc_per_device": per_device}
    recorded["stacked_configs"] = {"s": config} if seed % 2 else [config]
    checkpoint = open_checkpoint(save(tmp_path / "c", variables, devices, recorded))

    actual = recognize(checkpoint)

    assert {spec.name: (spec.rows, spec.dim) for spec in actual.tables} == {
        **{name: values.shape for name, values in tables.items()},
        "alone": alone.shape,
    }
    assert [slot.key for slot in actual.slots] == ["model.ebc.accumulators.s"]
    assert [entry.key for entry in actual.dense] == ["model.over.weight"]
    expected = {name: values.tobytes() for name, values in (tables | {"alone": alone}).items()}
    assert copied(checkpoint, actual, tmp_path) == expected


CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    # what is recorded otherwise of a stack of the tables a and b; None: nothing
    "more columns": ({"stack_embedding_dim": 24}, r"'a' is recorded as \[32, 24\]"),
    "an offset beyond the core": ({"row_offsets_in_shard": {"a": 0, "b": 13}}, "'b' .* 13 to 17"),
    "overlapping tables": ({"row_offsets_in_shard": {"a": 0, "b": 2}}, "'a' and 'b' overlap"),
    "no offset": ({"row_offsets_in_shard": {"a": 0}}, "nothing of table 'b'"),
    "fewer padded rows": ({"padded_vocab_sizes": {"a": 6, "b": 16}}, "'a' .* padded to 6"),
    "an unknown key": ({"column_order": [1, 0]}, r"unknown: .*\['column_order'\]"),
    "a number of tables": ({"tables": 3}, r"\['tables'\] \(int\)"),
    "no tables": ({"tables": None}, "without 'tables'"),
    "a rotation that is no number": ({"shard_rotations": {"a": "1", "b": 0}}, r"\['a'\] is '1'"),
}
OF_TABLES: dict[str, tuple[dict[str, Any], str]] = {
    # what is recorded otherwise of each table
    "two offsets of a table": ({"row_offset_in_shard": 4}, "'a' has row_offset_in_shard 4 .* 0"),
    "an unknown key of a table": ({"hash": 1}, r"unknown: .*a table\['hash'\]"),
}


def bare(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The tables of a stack, without what is recorded of them twice."""
    kept = ("name", "num_embeddings", "embedding_dim")
    return [{key: table[key] for key in kept} for table in config["tables"]]


@pytest.mark.parametrize("case", CONTRADICTIONS | OF_TABLES)
def test_record_that_contradicts_itself_or_the_variable_is_rejected(
    case: str, tmp_path: Path
) -> None:
    tables = {"a": np.ones((8, 4), np.float32), "b": np.ones((8, 4), np.float32)}
    stack, config = stacked(tables, 2, 1)
    if case in OF_TABLES:
        changes, message = OF_TABLES[case]
        config["tables"] = [table | changes for table in config["tables"]]
    else:
        changes, message = CONTRADICTIONS[case]
        changed = config | {"tables": bare(config)} | changes
        config = {key: value for key, value in changed.items() if value is not None}
    recorded = {"world_size": 2, "num_sc_per_device": 1, "stacked_configs": [config]}
    directory = save(tmp_path / "c", {f"{BAGS}.s.weight": stack}, 2, recorded)
    with pytest.raises(CheckpointError, match=message):
        recognize(open_checkpoint(directory))


@pytest.mark.parametrize(
    ("recorded", "message"),
    [
        ({"world_size": 0, "num_sc_per_device": 1}, r"\['world_size'\] is 0; an integer from 1"),
        ({"world_size": 2, "num_sc_per_device": True}, r"\['num_sc_per_device'\] is True"),
        ({"world_size": 2, "num_sc_per_device": 1, "order": "div"}, r"unknown: .*\['order'\]\."),
        ({"world_size": 3, "num_sc_per_device": 1}, "its 32 rows do not divide among 3 Sparse"),
    ],
)
def test_record_of_the_cores_that_is_not_understood_is_rejected(
    recorded: dict[str, Any], message: str, tmp_path: Path
) -> None:
    values = {f"{BAGS}.s.weight": np.ones((32, 8), np.float32)}
    directory = save(tmp_path / "c", values, 2, recorded)
    with pytest.raises(CheckpointError, match=message):
        recognize(open_checkpoint(directory))
