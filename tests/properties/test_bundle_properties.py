"""Manifests and stores survive their files."""

from __future__ import annotations

import json
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bundle.features.reader import Column
from bundle.format import manifest as entries
from bundle.format.checksums import crc32c
from bundle.format.manifest import dump, parse
from bundle.storage.staging import read_manifest
from bundle.stores.reader import CandidateStore
from bundle.stores.writer import write_store

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def objects(values: list[Any]) -> NDArray[Any]:
    result = np.empty(len(values), object)
    result[:] = values
    return result


@settings(max_examples=40)
@given(
    st.data(),
    st.lists(INT64, unique=True, min_size=1, max_size=12) | st.lists(TEXT, unique=True, min_size=1, max_size=12),
)
def test_store_returns_what_was_written(data: st.DataObject, ids: list[Any]) -> None:
    size = len(ids)
    lists = data.draw(st.lists(st.lists(TEXT, max_size=4), min_size=size, max_size=size))
    titles = data.draw(st.lists(st.none() | TEXT, min_size=size, max_size=size))
    positions = np.array(data.draw(st.lists(st.integers(0, size - 1), max_size=20)), np.int64)
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in lists])]).astype(np.int64)
    column = Column(objects([text for one in lists for text in one]), offsets)
    keys = np.array(ids, np.int64) if isinstance(ids[0], int) else objects(ids)
    with tempfile.TemporaryDirectory() as root:
        written = write_store(Path(root) / "s", keys, {"g": column}, {"title": pa.array(titles, pa.string())})
        store = CandidateStore(Path(root) / "s", entries.Corpus(file="s", **vars(written)))
        assert store.ids(positions).tolist() == [ids[place] for place in positions]
        assert store.positions(store.ids(positions)).tolist() == positions.tolist()
        found = store.features(positions, ["g"])["g"]
        assert found.offsets is not None
        bounds = pairwise(found.offsets)
        assert [found.values[a:b].tolist() for a, b in bounds] == [lists[place] for place in positions]
        assert store.attributes(positions, ["title"])["title"] == [titles[place] for place in positions]


@settings(max_examples=40)
@given(st.data())
def test_manifest_survives_its_bytes(committed_bundle: Path, data: st.DataObject) -> None:
    manifest = read_manifest(committed_bundle)
    default = data.draw(st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | TEXT | st.lists(st.integers(0, 9)))
    feature = entries.EmbeddedFeature(
        kind="bag",
        table=data.draw(st.sampled_from(sorted(manifest.tables))),
        role=data.draw(st.sampled_from(["context", "candidate"])),
        ids=data.draw(
            st.builds(entries.HashIds, buckets=st.integers(1, (1 << 62) - 1))
            | st.builds(
                entries.BucketIds, boundaries=st.lists(st.floats(-1e9, 1e9, width=32)).map(lambda b: tuple(sorted(b)))
            )
            | st.just(entries.IdentityIds())
        ),
        combiner=data.draw(st.sampled_from(["sum", "mean", "sqrtn"])),
        default=default,
    )
    changed = manifest.model_copy(
        update={
            "created": data.draw(TEXT),
            "version": data.draw(st.integers(1, (1 << 62) - 1)),
            "features": {**manifest.features, data.draw(TEXT): feature},
        }
    )
    again = parse(dump(changed))
    assert again == changed
    assert dump(again) == dump(changed)
    page = json.loads(dump(again))
    digest = page.pop("digest")
    assert digest == crc32c(dump(again).replace(b'"digest": %d' % digest, b'"digest": 0', 1))
    assert page == changed.model_dump(mode="json", exclude_none=True)
