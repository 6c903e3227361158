"""Places in stores: what a URL means, what is reported of a file, and that no credential leaves the environment."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path

import pytest

from runtime.object_store import RemotePath, located


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> RemotePath:
    place = located(f"{request.param}://{tmp_path}/store/")
    assert isinstance(place, RemotePath)
    return place


def test_located_url_path_and_file_url_mean_their_places(tmp_path: Path) -> None:
    assert located("s3://bucket/dir/") == RemotePath("s3://bucket/dir")
    assert located("a/b", tmp_path) == tmp_path / "a/b"
    assert located(f"file://{tmp_path}") == tmp_path


@pytest.mark.parametrize(
    "url",
    ["s3://key:secret@bucket/x", "s3://key@bucket/x", "https://host/x?X-Amz-Signature=secret"],
)
def test_located_url_with_credentials_is_rejected_without_showing_them(url: str) -> None:
    with pytest.raises(ValueError, match="credentials") as problem:
        located(url)
    assert "secret" not in str(problem.value)


@pytest.mark.parametrize("url", ["s3://", "gs:///"])
def test_located_url_without_a_bucket_is_rejected(url: str) -> None:
    with pytest.raises(
        ValueError, match=f"URL {url} names no bucket; {url[:2]}://BUCKET/PATH was expected"
    ):
        located(url)


def test_located_unknown_scheme_is_rejected() -> None:
    with pytest.raises(ValueError, match="scheme 'foo'"):
        located("foo://bucket/x")


def test_remote_path_what_was_written_is_read_and_listed(store: RemotePath) -> None:
    (store / "dir/a.bin").write(b"0123456789")
    assert (store / "dir/a.bin").read(3, 4) == b"3456"
    assert (store / "dir/a.bin").read(3, 0) == b""
    assert (store / "dir/a.bin").is_file()
    assert (store / "dir").is_dir()
    assert not (store / "dir/none").is_file()
    assert (store / "dir").listing() == {"a.bin": (store / "dir/a.bin").stamp()}
    assert (store / "none").listing() == {}


def test_remote_path_rewritten_file_has_another_stamp(store: RemotePath) -> None:
    (store / "a").write(b"one")
    before = (store / "a").stamp()
    (store / "a").write(b"two")
    assert (store / "a").stamp() != before


def test_remote_path_write_new_rejects_what_is_there(store: RemotePath) -> None:
    (store / "a").write(b"one", new=True)
    with pytest.raises(FileExistsError) as problem:
        (store / "a").write(b"two", new=True)
    assert problem.value.filename == f"{store}/a"
    assert (store / "a").read(0, 10) == b"one"


def test_remote_path_removed_twice_is_no_error(store: RemotePath) -> None:
    (store / "a").write(b"one")
    (store / "a").remove()
    (store / "a").remove()
    assert not (store / "a").is_file()


def test_remote_path_missing_file_is_reported_with_its_url(store: RemotePath) -> None:
    with pytest.raises(FileNotFoundError) as problem:
        (store / "a").read(0, 1)
    assert (problem.value.errno, problem.value.filename) == (errno.ENOENT, f"{store}/a")


def test_remote_path_store_without_checksums_vouches_for_nothing(
    store: RemotePath, tmp_path: Path
) -> None:
    (tmp_path / "source").write_bytes(hashlib.sha256(b"").digest())
    (store / "a").upload(tmp_path / "source")
    assert (store / "a").read(0, 99) == (tmp_path / "source").read_bytes()
    assert not (store / "a").vouched(tmp_path / "source")
