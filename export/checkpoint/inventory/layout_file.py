"""The layout file: how tables lie in variables, where a checkpoint does not say it
(docs/reference/checkpoints.md).

A file in TOML or JSON is written by hand: a statement. jax-tpu-embedding's EmbeddingSpecProto was
written by its trainer: a record.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from export.checkpoint.formats.coding import Malformed
from export.checkpoint.formats.protos import decode, parse_text
from export.checkpoint.inventory.specs import RecordedTable, StatedTable
from export.errors import UsageError
from export.recipe.schema import explain

FILE_BYTES_MAX = 64 << 20
"""The maximum size of a layout file, which has a few lines for each table."""
_TEXT = (".textproto", ".pbtxt", ".txtpb")
_BINARY = (".pb", ".binpb")


class _LayoutFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    tables: dict[str, StatedTable]


def read_layouts(path: Path) -> Mapping[str, StatedTable]:
    """Reads a layout file, by its suffix: .toml, .json, or an EmbeddingSpecProto (.textproto, .pb).

    Returns:
      The tables by their names; the tables of an EmbeddingSpecProto are RecordedTables.
    Raises:
      UsageError: The file does not exist, is too large, or is not what its suffix says; the error
        names the key and the value.
    """
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise UsageError(f"layout file {path} has more than {FILE_BYTES_MAX} bytes")
        data = path.read_bytes()
        if path.suffix in (*_TEXT, *_BINARY):
            return read_embedding_spec(data, text=path.suffix in _TEXT)
        if path.suffix == ".toml":
            return _LayoutFile.model_validate(tomllib.loads(data.decode())).tables
        # tomllib itself rejects a repeated key, where json keeps the last value.
        if path.suffix == ".json":
            return _LayoutFile.model_validate(
                json.loads(data, object_pairs_hook=_without_repeats)
            ).tables
    except OSError as problem:
        raise UsageError(f"layout file {path} cannot be read: {problem.strerror}") from problem
    # A ValidationError of pydantic is a ValueError, too.
    except (ValueError, RecursionError, Malformed) as problem:
        message = str(problem)
        if isinstance(problem, ValidationError):
            message = explain(problem, _LayoutFile)
        raise UsageError(
            f"layout file {path}: {message}; see docs/reference/checkpoints.md"
        ) from problem
    raise UsageError(
        f"layout file {path} ends in {path.suffix!r}; .toml, .json, "
        f"{', '.join((*_TEXT, *_BINARY))} are read"
    )


def read_embedding_spec(data: bytes, *, text: bool) -> dict[str, RecordedTable]:
    """Returns the tables of an EmbeddingSpecProto; the key of each is the name of its stack.

    Args:
      data: The message.
      text: Whether it is in protobuf's text format.
    Raises:
      Malformed: The bytes are not such a message, or contradict themselves.
      ValueError: A number is one that no table can have (the error is pydantic's).
    """
    if text:
        spec = parse_text("EmbeddingSpecProto", data)
    else:
        spec = decode("EmbeddingSpecProto", data)
    tables: dict[str, RecordedTable] = {}
    for stack in spec.stacked_table_specs:
        cores = stack.num_sparsecores
        rows = stack.stack_vocab_size
        # Every core holds the same number of rows of a stack, padding included.
        if not stack.stack_name or cores < 1 or rows < 1 or rows % cores:
            raise Malformed(f"stack {stack.stack_name!r} of {rows} rows on {cores} cores")
        for table in stack.table_specs:
            if not table.table_name:
                raise Malformed(f"a table without table_name in stack {stack.stack_name!r}")
            if table.table_name in tables:
                raise Malformed(f"it lists table {table.table_name!r} twice")
            tables[table.table_name] = RecordedTable(
                key=stack.stack_name,
                kind="sparse_core",
                rows=table.vocab_size,
                dim=table.embedding_dim,
                cores=cores,
                core_rows=rows // cores,
                offset=table.row_offset_in_shard,
                rotation=table.shard_rotation,
            )
    return tables


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object, whose later members would silently replace earlier ones."""
    members = dict(pairs)
    if len(members) < len(pairs):
        repeated = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"key {repeated!r} stands there twice")
    return members
