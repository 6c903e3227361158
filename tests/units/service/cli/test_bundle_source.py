"""Bundles are found by the URL of a root, a model or a bundle."""

from __future__ import annotations

from pathlib import Path

import pytest

from object_store.remote_path import RemotePath
from service.cli.bundle_source import EXIT_DAMAGED, EXIT_SOURCE, PullError, find_bundle
from service.exit_codes import EXIT_USAGE
from tests.units.object_store.memory_stores import published_as_objects


@pytest.mark.parametrize(
    ("location", "model", "version", "exit_code", "message"),
    [
        ("none", None, None, EXIT_SOURCE, "is empty or does not exist"),
        ("", "other", None, EXIT_USAGE, "holds no model 'other'; it holds m"),
        ("", "m", 9, EXIT_USAGE, "its versions: 3, 2, 1"),
        ("m/1", "m", 2, EXIT_USAGE, "is version 1 of model 'm'; correct"),
    ],
)
def test_bundle_that_does_not_exist_is_reported(
    store: RemotePath,
    location: str,
    model: str | None,
    version: int | None,
    exit_code: int,
    message: str,
) -> None:
    with pytest.raises(PullError, match=message) as stopped:
        find_bundle(f"{store}/{location}", model, version)
    assert stopped.value.exit_code == exit_code


def test_model_is_chosen_where_a_root_holds_several(store: RemotePath) -> None:
    (store / "n/1/manifest.json").write(b"{}")
    with pytest.raises(PullError, match="holds m, n; choose one with --model"):
        find_bundle(str(store))
    assert find_bundle(str(store), "m", 1).manifest.version == 1


def test_invalid_manifest_is_reported(store: RemotePath) -> None:
    manifest = store / "m/2/manifest.json"
    changed = manifest.read(0, 1 << 20).replace(b"ckpt-2", b"ckpt-1")
    for content, exit_code in ((changed, EXIT_DAMAGED), (b"{}", EXIT_SOURCE)):
        manifest.write(content)
        with pytest.raises(PullError, match=r"manifest\.json: ") as stopped:
            find_bundle(str(store))
        assert stopped.value.exit_code == exit_code


@pytest.fixture
def as_objects(published: Path, tmp_path: Path) -> RemotePath:
    """Version 2 as an exporter publishes it."""
    root = RemotePath(f"counted://{tmp_path.name}/objects")
    published_as_objects(published / "m/2", root / "m/2")
    return root


@pytest.mark.parametrize("location", ["", "m", "m/2"])
def test_bundle_of_objects_is_found_by_root_model_or_version(
    as_objects: RemotePath, published: Path, location: str
) -> None:
    (as_objects / "m/3/started").write(b"unfinished")
    source = find_bundle(f"{as_objects}/{location}".rstrip("/"))
    assert source.directory == as_objects / "m/2"
    assert source.data == (published / "m/2/manifest.json").read_bytes()
    for path in ("manifest.json", "indexes/vectors.bin"):
        content = (published / "m/2" / path).read_bytes()
        assert source.file(path).read(0, 1 << 30) == content


def test_bundle_of_objects_whose_manifest_is_another_is_rejected(as_objects: RemotePath) -> None:
    manifest = find_bundle(str(as_objects)).file("manifest.json").object_at(0)
    manifest.write(manifest.read(0, 1 << 20).replace(b"ckpt-2", b"ckpt-3"))
    with pytest.raises(PullError, match="is not what its name says") as stopped:
        find_bundle(str(as_objects))
    assert stopped.value.exit_code == EXIT_DAMAGED


def test_bundle_of_objects_that_names_too_few_is_rejected(as_objects: RemotePath) -> None:
    listed = as_objects / "m/2/objects.json"
    listed.write(listed.read(0, 1 << 20).replace(b"indexes/vectors.bin", b"indexes/other.bin"))
    with pytest.raises(PullError, match=r"names no object for 'indexes/vectors\.bin'") as stopped:
        find_bundle(str(as_objects)).file("indexes/vectors.bin")
    assert stopped.value.exit_code == EXIT_DAMAGED
    listed.write(b"torn")
    with pytest.raises(PullError, match=r"objects\.json is no JSON") as stopped:
        find_bundle(str(as_objects))
    assert stopped.value.exit_code == EXIT_DAMAGED
