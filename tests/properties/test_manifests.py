"""A manifest survives its bytes, whatever it holds."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from bundle.format import manifest as entries
from bundle.format.checksums import crc32c
from bundle.format.manifest import dump, parse
from bundle.storage.staging import read_manifest

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


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
