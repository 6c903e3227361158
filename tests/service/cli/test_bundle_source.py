"""Bundles are found by the URL of a root, a model or a bundle."""

from __future__ import annotations

import pytest

from runtime.object_store import RemotePath
from service.cli.bundle_source import EXIT_DAMAGED, EXIT_SOURCE, PullError, find_bundle
from service.exit_codes import EXIT_USAGE


@pytest.mark.parametrize(
    ("place", "model", "version", "exit_code", "message"),
    [
        ("none", None, None, EXIT_SOURCE, "is empty or does not exist"),
        ("", "other", None, EXIT_USAGE, "holds no model 'other'; it holds m"),
        ("", "m", 9, EXIT_USAGE, "its versions: 3, 2, 1"),
        ("m/1", "m", 2, EXIT_USAGE, "is version 1 of model 'm'; correct"),
    ],
)
def test_bundle_that_does_not_exist_is_reported(
    store: RemotePath,
    place: str,
    model: str | None,
    version: int | None,
    exit_code: int,
    message: str,
) -> None:
    with pytest.raises(PullError, match=message) as stopped:
        find_bundle(f"{store}/{place}", model, version)
    assert stopped.value.exit_code == exit_code


def test_model_is_chosen_where_a_root_holds_several(store: RemotePath) -> None:
    (store / "n/1/manifest.json").write(b"{}")
    with pytest.raises(PullError, match="holds m, n; choose one with --model"):
        find_bundle(str(store))
    assert find_bundle(str(store), "m", 1).manifest.version == 1


def test_invalid_manifest_is_reported(store: RemotePath) -> None:
    manifest = store / "m/2/manifest.json"
    changed = manifest.read(0, 1 << 20).replace(b"ckpt-1", b"ckpt-2")
    for content, exit_code in ((changed, EXIT_DAMAGED), (b"{}", EXIT_SOURCE)):
        manifest.write(content)
        with pytest.raises(PullError, match=r"manifest\.json: ") as stopped:
            find_bundle(str(store))
        assert stopped.value.exit_code == exit_code
