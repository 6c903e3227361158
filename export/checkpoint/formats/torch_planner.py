"""What a planner of torch.distributed.checkpoint recorded beside the tensors of a checkpoint.

The default planner records where each tensor lay in the state dict, which changes nothing. TorchRec
on TPU shards the rows of each embedding table over the SparseCores of all devices, row by row, and
records under `sparsecore` over how many, and which tables share a variable (a stack).

Source: TorchRec, torchrec/experimental/torch_tpu/checkpoint/planners.py (SparseCoreSavePlanner) and
modules/embedding_configs.py (StackedSparseCoreEmbeddingConfig.to_dict).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from export.checkpoint.variables import ModSharding, ShardedTable

_SPARSECORE = "sparsecore"
_OF_ALL = {"world_size", "num_sc_per_device"}
_OF_A_STACK = {
    "row_offsets_in_shard",
    "shard_rotations",
    "stack_embedding_dim",
    "stack_num_embeddings",
    "tables",
    "padded_vocab_sizes",
}
_ABOUT_STACKS = {  # which of its values no row depends on
    "feature_names",
    "padded_embedding_dims",
    "stack_name",
    "stack_table_name",
    "total_sample_count_multiplier",
}
_OF_A_TABLE = {"name", "num_embeddings", "embedding_dim"}
_ABOUT_TABLES = {
    "feature_names",
    "is_bag",
    "max_seq_len",
    "padded_embedding_dim",
    "padded_vocab_size",
    "pooling",
    "row_offset_in_shard",
    "shard_rotation",
}
_SHOWN_MAX = 200
"""Characters of the metadata that a message shows."""


class NotUnderstood(ValueError):
    """A planner recorded something whose meaning is not known."""


def read_planner_data(planner_data: Any, tensors: Collection[str]) -> ModSharding | None:
    """Reads what a planner recorded.

    Args:
      planner_data: As it was saved.
      tensors: The names of the tensors.

    Returns:
      How rows of embedding tables are sharded; None: it says nothing of that.
    Raises:
      NotUnderstood: It recorded something else, or contradicts itself; names what.
    """
    sharding = None
    for name, recorded in (planner_data or {}).items():
        is_path = isinstance(recorded, tuple | list) and all(
            isinstance(step, str | int) for step in recorded
        )
        if name == _SPARSECORE and isinstance(recorded, dict):
            sharding = _sharding(recorded)
        elif not (is_path and name in tensors):
            shown = str(name)[:_SHOWN_MAX]
            raise NotUnderstood(f"planner_data[{shown!r}] ({_summary(recorded)})")
    return sharding


def _sharding(recorded: Mapping[Any, Any]) -> ModSharding:
    where = f"planner_data[{_SPARSECORE!r}]"
    _check_keys(recorded, _OF_ALL, {"stacked_configs"}, where)
    cores = _count(recorded, "world_size", where) * _count(recorded, "num_sc_per_device", where)
    configs = recorded.get("stacked_configs") or {}
    if isinstance(configs, dict):
        configs = list(configs.values())
    if not isinstance(configs, list):
        raise NotUnderstood(f"{where}['stacked_configs'] ({_summary(configs)})")
    tables: list[ShardedTable] = []
    for config in configs:
        tables += _stack(config, cores, f"{where}['stacked_configs']")
    _check_distinct([table.name for table in tables], where)
    return ModSharding(cores, tuple(tables))


def _stack(config: Any, cores: int, where: str) -> Iterator[ShardedTable]:
    _check_keys(config, _OF_A_STACK, _ABOUT_STACKS, where)
    stack = config.get("stack_table_name") or config.get("stack_name")
    if not isinstance(stack, str):
        raise NotUnderstood(f"{where}: a stack without a name")
    where = f"{where}[{stack[:_SHOWN_MAX]!r}]"
    stored = (
        _count(config, "stack_num_embeddings", where),
        _count(config, "stack_embedding_dim", where),
    )
    for table in config["tables"]:
        _check_keys(table, _OF_A_TABLE, _ABOUT_TABLES, f"{where}: a table")
        name = table["name"]
        if not isinstance(name, str):
            raise NotUnderstood(f"{where}: a table without a name")
        placed = {
            key: _of_table(config, key, name, where)
            for key in ("padded_vocab_sizes", "row_offsets_in_shard", "shard_rotations")
        }
        _check_same(table, "padded_vocab_size", placed["padded_vocab_sizes"], where)
        _check_same(table, "row_offset_in_shard", placed["row_offsets_in_shard"], where)
        _check_same(table, "shard_rotation", placed["shard_rotations"], where)
        rows = _count(table, "num_embeddings", where)
        padded = placed["padded_vocab_sizes"]
        if padded % cores or padded < rows:
            raise NotUnderstood(
                f"{where}: table {name!r} of {rows} rows is padded to {padded}, which are no rows "
                f"for each of {cores} SparseCores"
            )
        yield ShardedTable(
            name=name,
            stack=stack,
            rows=rows,
            dim=_count(table, "embedding_dim", where),
            stored=stored,
            offset=placed["row_offsets_in_shard"],
            rotation=placed["shard_rotations"] % cores,
        )


def _of_table(config: Mapping[str, Any], key: str, table: str, where: str) -> int:
    values = config[key]
    if not isinstance(values, dict) or table not in values:
        raise NotUnderstood(f"{where}[{key!r}] has nothing of table {table!r}")
    return _count(values, table, f"{where}[{key!r}]", least=0)


def _check_same(table: Mapping[str, Any], key: str, value: int, where: str) -> None:
    if table.get(key, value) != value:
        raise NotUnderstood(
            f"{where}: table {table['name']!r} has {key} {table[key]!r} in one place and {value} "
            "in another"
        )


def _check_keys(
    recorded: Any, required: Collection[str], others: Collection[str], where: str
) -> None:
    if not isinstance(recorded, dict):
        raise NotUnderstood(f"{where} ({_summary(recorded)})")
    for key in required:
        if key not in recorded:
            raise NotUnderstood(f"{where} without {key!r} ({_summary(recorded)})")
    for key in recorded:
        if key not in {*required, *others}:
            raise NotUnderstood(f"{where}[{str(key)[:_SHOWN_MAX]!r}] ({_summary(recorded[key])})")


def _check_distinct(names: list[str], where: str) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise NotUnderstood(f"{where}: table {name!r} lies in two stacks")


def _count(recorded: Mapping[str, Any], key: str, where: str, least: int = 1) -> int:
    value = recorded[key]
    if type(value) is not int or value < least:
        shown = value if isinstance(value, int | float) else type(value).__name__
        raise NotUnderstood(f"{where}[{key!r}] is {shown}; an integer from {least} was expected")
    return value


def _summary(recorded: Any) -> str:
    """Returns the type of a value, and the keys of a dict."""
    kind = type(recorded).__name__
    if not isinstance(recorded, dict):
        return kind
    keys = ", ".join(sorted(key for key in recorded if isinstance(key, str)))
    return f"{kind} of {keys[:_SHOWN_MAX]}"
