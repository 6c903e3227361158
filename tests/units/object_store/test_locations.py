from __future__ import annotations

from pathlib import Path

import pytest

from object_store.locations import location_of
from object_store.remote_path import RemotePath


def test_located_of_a_url_a_path_and_a_file_url(tmp_path: Path) -> None:
    assert location_of("s3://bucket/dir/") == RemotePath("s3://bucket/dir")
    assert location_of("a/b", tmp_path) == tmp_path / "a/b"
    assert location_of(f"file://{tmp_path}") == tmp_path


@pytest.mark.parametrize(
    "url",
    ["s3://key:secret@bucket/x", "s3://key@bucket/x", "https://host/x?X-Amz-Signature=secret"],
)
def test_located_url_with_credentials_is_rejected_without_showing_them(url: str) -> None:
    with pytest.raises(ValueError, match="credentials") as problem:
        location_of(url)
    assert "secret" not in str(problem.value)


@pytest.mark.parametrize("url", ["s3://", "gs:///"])
def test_located_url_without_a_bucket_is_rejected(url: str) -> None:
    with pytest.raises(
        ValueError, match=f"URL {url} names no bucket; {url[:2]}://BUCKET/PATH was expected"
    ):
        location_of(url)


def test_located_unknown_scheme_is_rejected() -> None:
    with pytest.raises(ValueError, match="scheme 'foo'"):
        location_of("foo://bucket/x")
