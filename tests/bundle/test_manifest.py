from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from bundle import manifest as pages
from bundle.manifest import dump, parse
from bundle.staging import read_manifest


def test_manifest_written_twice_has_the_same_bytes(committed_bundle: Path) -> None:
    manifest = read_manifest(committed_bundle)
    data = (committed_bundle / "manifest.json").read_bytes()
    assert dump(manifest) == dump(parse(data)) == data
    assert data.endswith(b"}\n")


def test_manifest_begins_with_its_format_version(committed_bundle: Path) -> None:
    assert (committed_bundle / "manifest.json").read_text().startswith('{\n  "format_version": 3,\n  "digest": ')


def test_manifest_is_frozen(committed_bundle: Path) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        read_manifest(committed_bundle).version = 2  # type: ignore[misc]


def test_unknown_rule_row_needs_its_row() -> None:
    assert pages.Unknown(rule="row", row=0).row == 0
    with pytest.raises(ValidationError, match="'row' is given with rule 'row'"):
        pages.Unknown(rule="row")


def test_bucket_boundaries_may_repeat_but_never_fall() -> None:
    assert pages.BucketIds(boundaries=(0.0, 0.0, 1.0)).boundaries == (0.0, 0.0, 1.0)
    for wrong in ((1.0, 0.0), (float("nan"),), (0.0, float("inf"))):
        with pytest.raises(ValidationError, match="ascend"):
            pages.BucketIds(boundaries=wrong)
