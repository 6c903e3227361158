"""A store of candidates passes the check against its files, whatever pads, cuts or fills its lists;
and with a file that says something else, it does not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from bundle.format.manifest import IDENTITY, DenseFeature, EmbeddedFeature, Feature
from bundle.stores.reader import MappedColumns
from export.corpora.changes import StoreChanges
from export.corpora.files import locate_corpus
from export.errors import VerificationFailed
from export.recipe.schema import CorpusSection
from export.verify.candidate_checks import CheckedStore, check_store, stored_inputs
from tests.bundles.tfrecords import example, write_as_tensorflow
from tests.id_graphs import hash_ids
from tests.units.export.corpora.written import write

Lists = Sequence[Sequence[Any]]
VALUES: Mapping[str, tuple[st.SearchStrategy[Any], Any, Any]] = {
    "int64": (st.integers(-(1 << 63), (1 << 63) - 1), 0, pa.int64()),
    "string": (st.text("ab/", min_size=1, max_size=3).map("w{}".format), "", pa.string()),
    "float32": (st.floats(width=32, allow_nan=False, allow_infinity=False), 0.1, pa.float64()),
}
"""The values of lists, what pads them, and their type in Parquet, by type."""


def _parquet(lists: Lists, dtype: str, path: Path) -> None:
    cells = pa.array(lists, pa.list_(VALUES[dtype][2]))
    pq.write_table(pa.table({"id": [*range(len(lists))], "c": cells}), path)


def _csv(lists: Lists, _dtype: str, path: Path) -> None:
    lines = [f"{row},{'|'.join(map(str, cell))}\n" for row, cell in enumerate(lists)]
    path.write_text("".join(["id,c\n", *lines]))


def _jsonl(lists: Lists, _dtype: str, path: Path) -> None:
    lines = [json.dumps({"id": row, "c": cell}) + "\n" for row, cell in enumerate(lists)]
    path.write_text("".join(lines))


def _nested(lists: Lists, dtype: str, path: Path) -> None:
    _jsonl([[cell[:1], cell[1:]] for cell in lists], dtype, path)


def _tfrecord(lists: Lists, _dtype: str, path: Path) -> None:
    records = [example({"id": [row], "c": [*cell]}) for row, cell in enumerate(lists)]
    write_as_tensorflow(path, [record.SerializeToString() for record in records])


WRITERS: Mapping[str, Callable[[Lists, str, Path], None]] = {
    "parquet": _parquet,
    "csv": _csv,
    "jsonl": _jsonl,
    "nested.jsonl": _nested,
    "tfrecord": _tfrecord,
}


def feature_of(dtype: str, length: Mapping[str, Any], default: Any) -> Feature:
    """Returns the feature of a list of a fixed number of values."""
    stated = {"input_length": length, "default": default, "role": "candidate"}
    size = length["values"]
    if dtype == "float32":
        return DenseFeature.model_validate({"kind": "dense", "shape": (size,), **stated})
    ids = hash_ids(10, "string") if dtype == "string" else IDENTITY
    return EmbeddedFeature.model_validate(
        {"kind": "sequence", "length": size, "table": "t", "ids": ids, **stated}
    )


@st.composite
def stored_lists(draw: st.DrawFn) -> tuple[str, Mapping[str, Any], Any, Lists]:
    """Draws a type, an input's length, its default, and lists that it takes."""
    dtype = draw(st.sampled_from(sorted(VALUES)))
    values, pad, _ = VALUES[dtype]
    size = draw(st.integers(2, 4))
    length: dict[str, Any] = {"values": size}
    default = None
    shortest = size
    if draw(st.booleans()):
        length |= {"pad": pad, "pad_side": draw(st.sampled_from(["start", "end"]))}
        shortest = 0
    elif draw(st.booleans()):
        default = draw(st.lists(values, min_size=size, max_size=size))
    if draw(st.booleans()):
        length["keep"] = draw(st.sampled_from(["first", "last"]))
    longest = size + 2 if "keep" in length else size
    cells = st.lists(values, min_size=shortest, max_size=longest)
    if default is not None:
        cells = st.just([]) | cells
    lists = draw(st.lists(cells, min_size=1, max_size=6))
    # A column has a value somewhere, which gives it a type.
    full = draw(st.lists(values, min_size=size, max_size=size, unique=True))
    return dtype, length, default, [full, *lists]


@pytest.mark.parametrize("kind", sorted(WRITERS))
@settings(max_examples=settings().max_examples // 16, phases=[Phase.generate])
@given(case=stored_lists())
def test_store_equals_its_file_whatever_becomes_of_lists(
    kind: str,
    case: tuple[str, Mapping[str, Any], Any, Lists],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    dtype, length, default, lists = case
    directory = tmp_path_factory.mktemp("items")
    path = directory / f"a.{kind}"
    features = {"tags": feature_of(dtype, length, default)}
    section = CorpusSection(file="a.*", id="id", features={"tags": "c"})
    WRITERS[kind](lists, dtype, path)
    corpus = write(directory / "bundle", section, features, directory, "items")
    checked = CheckedStore(
        MappedColumns(directory / "bundle" / corpus.file, corpus),
        "corpora",
        "items",
        section,
        locate_corpus(directory, "items", section),
        stored_inputs(features, ["tags"]),
        corpus.file,
    )
    check_store(checked, StoreChanges())

    WRITERS[kind]([lists[0][::-1], *lists[1:]], dtype, path)
    with pytest.raises(VerificationFailed, match=r"corpora.items, row 1: feature 'tags'"):
        check_store(checked, StoreChanges())
