from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from bundle.features.reader import open_features
from bundle.format import manifest as entries
from bundle.format.fields import StrictModel
from bundle.storage.staging import read_manifest
from bundle.tables.reader import TableReader

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "format.md").read_text()


def models() -> list[type[BaseModel]]:
    found = [value for value in vars(entries).values() if isinstance(value, type) and issubclass(value, StrictModel)]
    return [model for model in found if model is not StrictModel]


@pytest.mark.parametrize("model", models(), ids=lambda model: model.__name__)
def test_page_names_every_field_of_the_manifest(model: type[BaseModel]) -> None:
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    words = set(re.findall(r"[a-z0-9_]+", " ".join(re.findall(r"`([^`]+)`", prose))))
    assert set(model.model_fields) <= words


def test_page_names_every_value_that_a_field_may_have() -> None:
    schema = entries.Manifest.model_json_schema()
    literals = {value for part in schema["$defs"].values() for value in values_of(part) if isinstance(value, str)}
    assert {"tree_ah", "bfloat16", "refuse", "sqrtn"} <= literals
    assert {value for value in literals if f"`{value}`" not in PAGE} == set()


def values_of(part: Any) -> list[Any]:
    if isinstance(part, list):
        return [value for inner in part for value in values_of(inner)]
    if not isinstance(part, dict):
        return []
    return [*part.get("enum", []), *([part["const"]] if "const" in part else []), *values_of(list(part.values()))]


def test_page_tells_the_format_version_and_block_size() -> None:
    assert PAGE.startswith(f"# The bundle format, version {entries.FORMAT_VERSION}\n")
    assert f"{entries.BLOCK_BYTES >> 20} MiB block" in PAGE


def test_page_example_reads_every_row_with_manifest_and_mmap_alone(committed_bundle: Path) -> None:
    example = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert example is not None
    assert "bundle." not in example[1]
    assert "import bundle" not in example[1]
    names: dict[str, Any] = {}
    exec(example[1], names)
    manifest = read_manifest(committed_bundle)
    for name, table in manifest.tables.items():
        rows = [names["read_row"](committed_bundle, name, row) for row in range(table.rows)]
        assert b"".join(rows) == TableReader(committed_bundle, table).read(0, table.rows).tobytes()
    users = np.frombuffer(names["read_row"](committed_bundle, "users", 21), "<f4")
    reader = open_features(committed_bundle, manifest)
    assert (users == reader.tables["users"].gather(np.array([21]))[0]).all()


def test_page_example_reads_int8_rows_with_their_scales(committed_bundle: Path) -> None:
    example = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert example is not None
    names: dict[str, Any] = {}
    exec(example[1], names)
    reader = TableReader(committed_bundle, read_manifest(committed_bundle).tables["brands"])
    for row in range(reader.rows):
        stored = np.frombuffer(names["read_row"](committed_bundle, "brands", row), np.int8)
        scale = np.frombuffer(names["read_row"](committed_bundle, "brands", row, "scales"), "<f4")
        assert (stored * scale == reader.gather(np.array([row]))[0]).all()


def test_page_example_has_about_ten_lines() -> None:
    example = re.search(r"def open_table.*?(?=\n\n)", PAGE, re.DOTALL)
    assert example is not None
    assert len(example[0].splitlines()) <= 10
