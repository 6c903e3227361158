from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from bundle.features.ids.operations import OPERATIONS
from bundle.format import manifest as entries
from bundle.format.fields import StrictModel
from bundle.storage.catalog import read_manifest
from bundle.tables.reader import TableReader
from tests.bundles.next_versions import write_next_version

REFERENCE = Path(__file__).parents[4] / "docs/reference"
NAMES = ("format.md", "format-features.md", "format-files.md")
PAGE = "".join((REFERENCE / name).read_text() for name in NAMES)
"""The pages of the format, one behind the other."""


def models() -> list[type[BaseModel]]:
    table_rows = [
        value
        for value in vars(entries).values()
        if isinstance(value, type) and issubclass(value, StrictModel)
    ]
    return [model for model in table_rows if model is not StrictModel]


@pytest.mark.parametrize("model", models(), ids=lambda model: model.__name__)
def test_page_names_every_field_of_the_manifest(model: type[BaseModel]) -> None:
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    words = set(re.findall(r"[a-z0-9_]+", " ".join(re.findall(r"`([^`]+)`", prose))))
    assert set(model.model_fields) <= words


def test_page_names_every_value_that_a_field_may_have() -> None:
    schema = entries.Manifest.model_json_schema()
    literals = {
        value
        for part in schema["$defs"].values()
        for value in values_of(part)
        if isinstance(value, str)
    }
    assert {"tree_ah", "bfloat16", "refuse", "sqrtn"} <= literals
    assert {value for value in literals if f"`{value}`" not in PAGE} == set()


@pytest.mark.parametrize("name", [*OPERATIONS, "LookupTableFindV2"])
def test_page_names_every_operation_and_its_attributes(name: str) -> None:
    row = next(line for line in PAGE.splitlines() if f"`{name}`" in line and line[0] == "|")
    operation = OPERATIONS.get(name)
    attributes = operation.attributes if operation is not None else ("table",)
    assert tuple(re.findall("`([^`]+)`", row.split("|")[2])) == attributes


def values_of(part: Any) -> list[Any]:
    if isinstance(part, list):
        return [value for inner in part for value in values_of(inner)]
    if not isinstance(part, dict):
        return []
    return [
        *part.get("enum", []),
        *([part["const"]] if "const" in part else []),
        *values_of(list(part.values())),
    ]


def test_format_page_states_the_format_version_and_the_block_size() -> None:
    assert PAGE.startswith(f"# The bundle format, version {entries.FORMAT_VERSION}\n")
    assert f"{entries.BLOCK_BYTES >> 20} MiB block" in PAGE


def test_page_example_reads_every_row_with_manifest_and_mmap_alone(sample_bundle: Path) -> None:
    example = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert example is not None
    assert "import bundle" not in example[1]
    assert "bundle." not in example[1]
    names: dict[str, Any] = {}
    exec(example[1], names)
    bundle = sample_bundle
    tables = read_manifest(bundle).tables
    quantized = next(name for name, table in tables.items() if table.scales)
    # Other tables stay as they are.
    for seed, name in enumerate([next(iter(tables)), quantized, quantized]):
        bundle = write_next_version(bundle, 0.3, seed, name)
    manifest = read_manifest(bundle)
    for name, table in manifest.tables.items():
        rows = [names["read_row"](bundle, name, row) for row in range(table.rows)]
        reader = TableReader(bundle, table)
        assert b"".join(rows) == reader.read(0, table.rows).tobytes()
        if table.dtype == "int8":
            scales = [names["read_row"](bundle, name, row, "scales") for row in range(table.rows)]
            stored = np.frombuffer(b"".join(rows), np.int8)
            factors = np.frombuffer(b"".join(scales), "<f4")
            expected = stored.reshape(table.rows, -1) * factors[:, np.newaxis]
            assert (reader.gather(np.arange(table.rows)) == expected).all()
