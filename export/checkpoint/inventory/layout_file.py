"""The layout file: how tables lie in variables, where a checkpoint does not say it
(docs/reference/layouts.md).

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

from bundle.shown_values import similar_file
from bundle.storage.regular_files import read_regular
from export.checkpoint.formats.coding import Malformed
from export.checkpoint.formats.protos import decode, parse_text
from export.checkpoint.inventory.specs import FileTable, StatedTable
from export.checkpoint.layouts import SparseCore
from export.checkpoint.variables import StackedTable
from export.errors import UsageError
from export.recipe.schema import explain

FILE_BYTES_MAX = 64 << 20
"""The maximum size of a layout file, which has a few lines for each table."""
_TEXT_SUFFIXES = (".textproto", ".pbtxt", ".txtpb")
_BINARY_SUFFIXES = (".pb", ".binpb")


class _LayoutFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    tables: dict[str, StatedTable]


def read_layouts(path: Path) -> Mapping[str, FileTable]:
    """Reads a layout file, by its suffix: .toml, .json, or an EmbeddingSpecProto (.textproto, .pb).

    Returns:
      The tables by their names: those of an EmbeddingSpecProto as its trainer recorded them, all
      others as the user states them.
    Raises:
      UsageError: The file does not exist, is too large, or is not what its suffix says; the error
        names the key and the value.
    """
    try:
        data = read_regular(path, FILE_BYTES_MAX)
        if path.suffix in (*_TEXT_SUFFIXES, *_BINARY_SUFFIXES):
            return read_embedding_spec(data, text=path.suffix in _TEXT_SUFFIXES)
        if path.suffix == ".toml":
            return _LayoutFile.model_validate(tomllib.loads(data.decode("utf-8-sig"))).tables
        # tomllib itself rejects a repeated key, where json keeps the last value.
        if path.suffix == ".json":
            return _LayoutFile.model_validate(
                json.loads(data, object_pairs_hook=_reject_repeats)
            ).tables
    except OSError as problem:
        raise UsageError(
            f"layout file {path} cannot be read: {problem.strerror}{similar_file(path)}"
        ) from problem
    # A ValidationError of pydantic is a ValueError, too.
    except (ValueError, RecursionError, Malformed) as problem:
        message = str(problem)
        if isinstance(problem, ValidationError):
            message = explain(problem, _LayoutFile)
        raise UsageError(
            f"layout file {path}: {message}; see docs/reference/layouts.md"
        ) from problem
    raise UsageError(
        f"layout file {path} ends in {path.suffix!r}; .toml, .json, "
        f"{', '.join((*_TEXT_SUFFIXES, *_BINARY_SUFFIXES))} are read"
    )


def read_embedding_spec(data: bytes, *, text: bool) -> dict[str, StackedTable]:
    """Returns the tables of an EmbeddingSpecProto by their names.

    Args:
      data: The message.
      text: Whether the message is in protobuf's text format.
    Raises:
      Malformed: The bytes are not such a message, contradict themselves, or have a number that no
        table can have.
    """
    if text:
        spec = parse_text("EmbeddingSpecProto", data)
    else:
        spec = decode("EmbeddingSpecProto", data)
    tables: dict[str, StackedTable] = {}
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
            _check_numbers(table)
            tables[table.table_name] = StackedTable(
                name=table.table_name,
                stack=stack.stack_name,
                rows=table.vocab_size,
                dim=table.embedding_dim,
                layout=SparseCore(
                    cores, rows // cores, table.row_offset_in_shard, table.shard_rotation
                ),
                stored=(rows, stack.stack_embedding_dim),
                combiner=table.combiner,
            )
    return tables


def _check_numbers(table: Any) -> None:
    """Checks the numbers of a TableSpecProto alone; the stack is checked once its variable is
    known.
    """
    if table.vocab_size < 1 or table.embedding_dim < 1:
        raise Malformed(
            f"table {table.table_name!r} has the shape [{table.vocab_size}, "
            f"{table.embedding_dim}]; 1 row or more and 1 column or more were expected"
        )
    if table.row_offset_in_shard < 0 or table.shard_rotation < 0:
        raise Malformed(
            f"table {table.table_name!r} has row_offset_in_shard {table.row_offset_in_shard} and "
            f"shard_rotation {table.shard_rotation}; 0 or more were expected"
        )


def _reject_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object. Rejects a repeated name, whose later member would silently replace the
    earlier one.
    """
    members = dict(pairs)
    if len(members) < len(pairs):
        repeated_name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"key {repeated_name!r} stands there twice")
    return members
