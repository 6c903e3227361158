from __future__ import annotations

from pathlib import Path

import pytest

from bundle.errors import FormatError
from bundle.format.manifest import (
    MANIFEST_BYTES_MAX,
    Manifest,
    ScoreDistribution,
    dump,
    parse,
)
from bundle.storage.catalog import read_manifest

GOLDEN = Path(__file__).parents[3] / "differential/bundle/root/movies/1"


def test_manifest_written_twice_has_the_same_bytes(committed_bundle: Path) -> None:
    manifest = read_manifest(committed_bundle)
    data = (committed_bundle / "manifest.json").read_bytes()
    assert dump(manifest) == dump(parse(data)) == data
    assert data.startswith(b'{\n  "format_version": 2,\n  "digest": ')


@pytest.mark.parametrize(
    ("unread", "message"),
    [
        (("length", "length"), "unread_inputs lists an input twice"),
        (("user",), "unread_inputs lists 'user', which feature 'user' reads"),
    ],
)
def test_manifest_with_a_wrong_list_of_unread_inputs_is_rejected(
    unread: tuple[str, ...], message: str, committed_bundle: Path
) -> None:
    manifest = read_manifest(committed_bundle)
    wrong = manifest.model_copy(update={"unread_inputs": unread})
    with pytest.raises(FormatError, match=message):
        parse(dump(wrong))


def with_scores(manifest: Manifest, **changed: object) -> Manifest:
    """Returns a manifest whose ranking tower has a distribution of scores."""
    scores = ScoreDistribution(edges=(-0.5, 1.5), shares=(0.25, 0.5, 0.25), examples=100)
    scores = scores.model_copy(update=changed)
    ranking = manifest.towers["ranking"].model_copy(update={"scores": scores})
    return manifest.model_copy(update={"towers": {**manifest.towers, "ranking": ranking}})


def test_manifest_with_the_distribution_of_scores_is_read_as_it_was_written() -> None:
    manifest = read_manifest(GOLDEN)
    assert b'"scores": {' not in dump(manifest), "bundles without it are written as before"
    scores = parse(dump(with_scores(manifest))).towers["ranking"].scores
    assert scores is not None
    assert scores.edges == (-0.5, 1.5)
    assert scores.shares == (0.25, 0.5, 0.25)
    assert scores.examples == 100


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"edges": (1.5, -0.5)}, "edges of scores must be finite and ascend"),
        ({"edges": (1.5, 1.5)}, "edges of scores must be finite and ascend"),
        ({"edges": ()}, "scores have 0 edges; 1 to 9 were expected"),
        ({"edges": tuple(range(10))}, "scores have 10 edges; 1 to 9 were expected"),
        ({"shares": (0.5, 0.5)}, "2 shares for 2 edges; one more share was expected"),
        ({"shares": (0.0, 0.5, 0.5)}, "a share of the examples must be above 0"),
        ({"shares": (0.5, 0.5, 0.5)}, "the shares add up to 1.5; 1 was expected"),
        ({"examples": 0}, "greater than or equal to 1"),
    ],
)
def test_manifest_with_a_wrong_distribution_of_scores_is_rejected(
    changed: dict[str, object], message: str
) -> None:
    wrong = with_scores(read_manifest(GOLDEN), **changed)
    with pytest.raises(FormatError, match=message):
        parse(dump(wrong))


def test_manifest_larger_than_the_limit_of_readers_is_not_written(committed_bundle: Path) -> None:
    manifest = read_manifest(committed_bundle)
    large = manifest.model_copy(update={"created": "x" * MANIFEST_BYTES_MAX})
    with pytest.raises(FormatError, match=f"readers take {MANIFEST_BYTES_MAX}"):
        dump(large)
