"""The layout file: how tables lie in variables, where a checkpoint does not say it (docs/reference/checkpoints.md).

TOML or JSON, written by hand; or jax-tpu-embedding's EmbeddingSpecProto, as its trainer wrote it.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from export.checkpoint.formats.coding import Malformed
from export.checkpoint.formats.protos import decode, parse_text
from export.checkpoint.inventory.specs import StatedTable
from export.errors import UsageError

FILE_BYTES_MAX = 64 << 20
_TEXT, _BINARY = (".textproto", ".pbtxt", ".txtpb"), (".pb", ".binpb")


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    key: str
    rows: PositiveInt | None = None
    dim: PositiveInt | None = None


class _Plain(_Table):
    kind: Literal["plain"]


class _Mod(_Table):
    kind: Literal["mod"]
    partitions: PositiveInt | None = None


class _SparseCore(_Table):
    kind: Literal["sparse_core"]
    rows: PositiveInt
    dim: PositiveInt
    cores: PositiveInt
    core_rows: PositiveInt | None = None
    offset: NonNegativeInt = 0
    rotation: NonNegativeInt = 0


_KINDS: dict[str, type[_Table]] = {"plain": _Plain, "mod": _Mod, "sparse_core": _SparseCore}


class _Page(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    tables: dict[str, Annotated[_Plain | _Mod | _SparseCore, Field(discriminator="kind")]]


def read_layouts(path: Path) -> tuple[StatedTable, ...]:
    """Reads a layout file, by its suffix: .toml, .json, or an EmbeddingSpecProto (.textproto, .pb).

    Raises:
      UsageError: it is not there, too large, or not what its suffix says; names the place and the value.
    """
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise UsageError(f"layout file {path} has more than {FILE_BYTES_MAX} bytes")
        data = path.read_bytes()
        if path.suffix in (*_TEXT, *_BINARY):
            return _once(path, _stacked((parse_text if path.suffix in _TEXT else decode)("EmbeddingSpecProto", data)))
        return _stated(_page(path, data))
    except OSError as problem:
        raise UsageError(f"layout file {path} cannot be read: {problem.strerror}") from problem
    except (ValueError, RecursionError, Malformed) as problem:  # of tomllib, json and pydantic too
        told = _first(problem) if isinstance(problem, ValidationError) else str(problem)
        raise UsageError(f"layout file {path}: {told}; see docs/reference/checkpoints.md") from problem


def _page(path: Path, data: bytes) -> _Page:
    if path.suffix == ".toml":
        return _Page.model_validate(tomllib.loads(data.decode()))
    if path.suffix == ".json":
        return _Page.model_validate(json.loads(data, object_pairs_hook=_without_repeats))
    raise UsageError(
        f"layout file {path} ends in {path.suffix!r}; .toml, .json, {', '.join((*_TEXT, *_BINARY))} are read"
    )


def _stated(page: _Page) -> tuple[StatedTable, ...]:
    return tuple(StatedTable(name=name, **table.model_dump()) for name, table in page.tables.items())


def _stacked(spec: Any) -> tuple[StatedTable, ...]:
    """Returns the tables that an EmbeddingSpecProto tells; the key of each is the name of its stack."""
    tables = []
    for stack in spec.stacked_table_specs:
        cores, rows = stack.num_sparsecores, stack.stack_vocab_size
        if not stack.stack_name or cores < 1 or rows < 1 or rows % cores:
            raise Malformed(f"stack {stack.stack_name!r} of {rows} rows on {cores} cores")
        for table in stack.table_specs:
            if not table.table_name:
                raise Malformed(f"a table without table_name in stack {stack.stack_name!r}")
            tables.append(
                StatedTable(
                    name=table.table_name,
                    key=stack.stack_name,
                    kind="sparse_core",
                    rows=table.vocab_size,
                    dim=table.embedding_dim,
                    cores=cores,
                    core_rows=rows // cores,
                    offset=table.row_offset_in_shard,
                    rotation=table.shard_rotation,
                    stack=True,
                )
            )
    return tuple(tables)


def _once(path: Path, tables: tuple[StatedTable, ...]) -> tuple[StatedTable, ...]:
    for name, times in Counter(table.name for table in tables).items():
        if times > 1:
            raise UsageError(f"layout file {path} tells table {name!r} twice")
    return tables


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    page = dict(pairs)
    if len(page) < len(pairs):
        raise ValueError(f"key {Counter(name for name, _ in pairs).most_common(1)[0][0]!r} stands there twice")
    return page


def _first(problem: ValidationError) -> str:
    error = problem.errors()[0]
    parts = [str(part) for part in error["loc"]]
    where = ".".join(parts[:2] + parts[3:])  # the third is the kind, which is no part of a key's name
    kinds = ", ".join(repr(kind) for kind in _KINDS)
    if error["type"].startswith("union_tag"):
        return f"{where}.kind is one of {kinds}"
    if error["type"] == "missing":
        return f"key {where!r} is missing"
    if error["type"] == "extra_forbidden":
        known = list(_KINDS[parts[2]].model_fields) if len(parts) > 3 else ["tables"]
        return f"unknown key {where!r}; known here: {', '.join(known)}"
    return f"{where}: {error['msg']} (got {error['input']!r})"
