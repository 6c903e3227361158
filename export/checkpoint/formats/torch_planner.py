"""What a planner of torch.distributed.checkpoint recorded beside the tensors of a checkpoint.

The default planner records where each tensor lay in the state dict, which changes nothing. TorchRec
on TPU shards the rows of each embedding table over the SparseCores of all devices, row by row, and
records under `sparsecore` over how many, and which tables share a variable (a stack).

Source: TorchRec, torchrec/experimental/torch_tpu/checkpoint/planners.py (SparseCoreSavePlanner) and
modules/embedding_configs.py (StackedSparseCoreEmbeddingConfig.to_dict).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from bundle.shown_values import SHOWN_MAX, shown
from export.checkpoint.formats.upstreams import TORCHREC, UnknownFields
from export.checkpoint.layouts import SparseCore
from export.checkpoint.variables import ModSharding, StackedTable

_SPARSECORE = "sparsecore"
_REQUIRED_KEYS = {"world_size", "num_sc_per_device"}
_STACK_KEYS = {
    "row_offsets_in_shard",
    "shard_rotations",
    "stack_embedding_dim",
    "stack_num_embeddings",
    "tables",
    "padded_vocab_sizes",
}
_OTHER_STACK_KEYS = {
    "feature_names",
    "padded_embedding_dims",
    "stack_name",
    "stack_table_name",
    "total_sample_count_multiplier",
}
"""Keys of a stack's configuration on which no row depends."""
_TABLE_KEYS = {"name", "num_embeddings", "embedding_dim"}
_OTHER_TABLE_KEYS = {
    "feature_names",
    "is_bag",
    "max_seq_len",
    "padded_embedding_dim",
    "padded_vocab_size",
    "pooling",
    "row_offset_in_shard",
    "shard_rotation",
}
"""Keys of a table's configuration on which no row depends, or which repeat those of its stack."""
_PATH_STEPS_MAX = 100
"""The maximum number of steps of the path to a tensor. Tensors may share a path."""


class NotUnderstood(ValueError):
    """A planner recorded something whose meaning is not known."""


def read_planner_data(planner_data: Any, tensors: Collection[str]) -> ModSharding | None:
    """Reads what a planner recorded.

    Args:
      planner_data: The planner's data, as it was saved.
      tensors: The names of the tensors.

    Returns:
      The sharding of the rows of embedding tables; None if nothing was recorded about it.
    Raises:
      NotUnderstood: The planner recorded something else, or contradicts itself; the error names it.
      UnknownFields: TorchRec recorded something unknown about tables.
    """
    sharding = None
    for name, recorded in (planner_data or {}).items():
        is_path = (
            isinstance(recorded, tuple | list)
            and len(recorded) <= _PATH_STEPS_MAX
            and all(isinstance(step, str | int) for step in recorded)
        )
        if name == _SPARSECORE and isinstance(recorded, dict):
            sharding = _sharding(recorded)
        # The default planner records the path of each tensor, which moves no rows.
        elif not (is_path and name in tensors):
            raise NotUnderstood(f"planner_data[{shown(name)}] ({_summary(recorded)})")
    return sharding


def _sharding(recorded: Mapping[Any, Any]) -> ModSharding:
    path = f"planner_data[{_SPARSECORE!r}]"
    _check_keys(recorded, _REQUIRED_KEYS, {"stacked_configs"}, path)
    cores = _count(recorded, "world_size", path) * _count(recorded, "num_sc_per_device", path)
    # A dict by the names of stacks, or a list.
    configs = recorded.get("stacked_configs") or {}
    if isinstance(configs, dict):
        configs = list(configs.values())
    if not isinstance(configs, list):
        raise NotUnderstood(f"{path}['stacked_configs'] ({_summary(configs)})")
    tables: dict[str, StackedTable] = {}
    for config in configs:
        for table in _stack(config, cores, f"{path}['stacked_configs']"):
            # At once: stacks may share their configuration, so that few bytes name many.
            if table.name in tables:
                raise NotUnderstood(f"{path}: table {shown(table.name)} lies in two stacks")
            tables[table.name] = table
    return ModSharding(cores, tuple(tables.values()))


def _stack(config: Any, cores: int, path: str) -> Iterator[StackedTable]:
    _check_keys(config, _STACK_KEYS, _OTHER_STACK_KEYS, path)
    stack = config.get("stack_table_name") or config.get("stack_name")
    if not isinstance(stack, str):
        raise NotUnderstood(f"{path}: a stack without a name")
    path = f"{path}[{shown(stack)}]"
    stored_shape = (
        _count(config, "stack_num_embeddings", path),
        _count(config, "stack_embedding_dim", path),
    )
    if not isinstance(config["tables"], list | tuple):
        raise NotUnderstood(f"{path}['tables'] ({_summary(config['tables'])})")
    for table in config["tables"]:
        _check_keys(table, _TABLE_KEYS, _OTHER_TABLE_KEYS, f"{path}: a table")
        name = table["name"]
        if not isinstance(name, str):
            raise NotUnderstood(f"{path}: a table without a name")
        position = {
            key: _number_of_table(config, key, name, path)
            for key in ("padded_vocab_sizes", "row_offsets_in_shard", "shard_rotations")
        }
        # Tables may repeat these numbers of their stack: nothing shows which of two is right.
        _check_same(table, "padded_vocab_size", position["padded_vocab_sizes"], path)
        _check_same(table, "row_offset_in_shard", position["row_offsets_in_shard"], path)
        _check_same(table, "shard_rotation", position["shard_rotations"], path)
        pooling = table.get("pooling")
        if not isinstance(pooling, str | None):
            raise NotUnderstood(f"{path}: table {shown(name)} has the pooling {shown(pooling)}")
        rows = _count(table, "num_embeddings", path)
        padded_rows = position["padded_vocab_sizes"]
        if padded_rows % cores or padded_rows < rows:
            raise NotUnderstood(
                f"{path}: table {shown(name)} of {rows} rows is padded to {padded_rows}, which are "
                f"no rows for each of {cores} SparseCores"
            )
        # A planner may count on past the number of cores; only the remainder turns rows.
        rotation = position["shard_rotations"] % cores
        # A stack whose rows do not divide among the cores is rejected when its variable is read.
        core_rows = stored_shape[0] // cores
        yield StackedTable(
            name=name,
            stack=stack,
            rows=rows,
            dim=_count(table, "embedding_dim", path),
            layout=SparseCore(cores, core_rows, position["row_offsets_in_shard"], rotation),
            stored=stored_shape,
            # Tables of sequences have none.
            combiner=(pooling or "").lower(),
        )


def _number_of_table(config: Mapping[str, Any], key: str, table: str, path: str) -> int:
    values = config[key]
    if not isinstance(values, dict) or table not in values:
        raise NotUnderstood(f"{path}[{key!r}] has nothing of table {shown(table)}")
    return _count(values, table, f"{path}[{key!r}]", minimum=0)


def _check_same(table: Mapping[str, Any], key: str, value: int, path: str) -> None:
    if table.get(key, value) != value:
        raise NotUnderstood(
            f"{path}: table {shown(table['name'])} has {key} {shown(table[key])} in one place and "
            f"{value} in another"
        )


def _check_keys(
    recorded: Any, required: Collection[str], optional: Collection[str], path: str
) -> None:
    if not isinstance(recorded, dict):
        raise NotUnderstood(f"{path} ({_summary(recorded)})")
    for key in required:
        if key not in recorded:
            raise NotUnderstood(f"{path} without {key!r} ({_summary(recorded)})")
    unknown = [f"{path}[{shown(key)}]" for key in recorded if key not in {*required, *optional}]
    if unknown:
        raise UnknownFields(TORCHREC, unknown)


def _count(recorded: Mapping[str, Any], key: str, path: str, minimum: int = 1) -> int:
    value = recorded[key]
    # `True` is an instance of int, too.
    if type(value) is not int or value < minimum:
        raise NotUnderstood(
            f"{path}[{key!r}] is {shown(value)}; an integer from {minimum} was expected"
        )
    return value


def _summary(recorded: Any) -> str:
    """Returns the type of a value, and the keys of a dict."""
    kind = type(recorded).__name__
    if not isinstance(recorded, dict):
        return kind
    keys = ", ".join(sorted(key for key in recorded if isinstance(key, str)))
    return f"{kind} of {keys[:SHOWN_MAX]}"
