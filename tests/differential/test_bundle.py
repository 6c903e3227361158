"""The committed bundle is opened by this reader, and gives the same responses as when it was
written.
"""

from __future__ import annotations

import json

import pytest

from bundle.storage.catalog import read_manifest
from bundle.storage.integrity import check_files
from tests.bundles.small import feature_entries
from tests.differential.write_bundle import BUNDLE, FEATURES, responses


def test_golden_bundle_gives_the_recorded_responses() -> None:
    bundle = BUNDLE / "root" / "movies" / "1"
    check_files(bundle, read_manifest(bundle), tables="full")
    expected = json.loads((BUNDLE / "responses.json").read_text())
    actual = responses(BUNDLE / "root")
    assert (actual["version"], actual["neighbors"]) == (expected["version"], expected["neighbors"])
    assert set(actual) == set(expected)
    for name in set(actual) - {"version", "neighbors"}:
        assert actual[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-5)


def test_golden_bundle_has_the_features_that_a_new_one_has() -> None:
    manifest = read_manifest(BUNDLE / "root" / "movies" / "1")
    assert manifest.features == feature_entries() | FEATURES
