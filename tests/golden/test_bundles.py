"""Bundles of every format version there ever was are opened by this reader, and answer as they did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bundle.format.manifest import FORMAT_VERSION
from bundle.storage.staging import check_files, read_manifest
from tests.golden.write_bundle import BUNDLES, answers

VERSIONS = sorted(BUNDLES.iterdir())


def test_golden_bundles_include_todays_format() -> None:
    assert BUNDLES / f"format-{FORMAT_VERSION}" in VERSIONS


@pytest.mark.parametrize("place", VERSIONS, ids=lambda place: place.name)
def test_golden_bundle_answers_as_when_it_was_written(place: Path) -> None:
    bundle = place / "root" / "movies" / "1"
    check_files(bundle, read_manifest(bundle), tables="full")
    expected, found = json.loads((place / "answers.json").read_text()), answers(place / "root")
    assert (found["version"], found["neighbors"]) == (expected["version"], expected["neighbors"])
    assert set(found) == set(expected)
    for name in set(found) - {"version", "neighbors"}:
        assert found[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-5)
