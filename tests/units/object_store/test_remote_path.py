"""Places in stores: what a URL means, what is reported of a file, and that no credential leaves the
environment.
"""

from __future__ import annotations

import errno
import importlib
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from object_store.locations import location_of
from object_store.remote_path import RemotePath
from object_store.store_errors import StoreUnavailable
from tests.units.object_store.memory_stores import SleepingClock, TroubledStore


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> RemotePath:
    path = location_of(f"{request.param}://{tmp_path}/store/")
    assert isinstance(path, RemotePath)
    return path


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


def test_remote_path_missing_file_is_reported_with_its_url(store: RemotePath) -> None:
    with pytest.raises(FileNotFoundError) as problem:
        (store / "a").read(0, 1)
    assert (problem.value.errno, problem.value.filename) == (errno.ENOENT, f"{store}/a")


class CreatingStore(MemoryFileSystem):  # type: ignore[misc]
    """Creates a file only if there is none at the time of the request; it lists none before.

    As a store looks to an exporter that was frozen between its look and its request.
    """

    protocol = "gs"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("gs://", "memory:///")))

    def exists(self, path: str, **options: Any) -> bool:
        return False

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        if mode == "create" and path in self.store:
            raise FileExistsError(path)
        super().pipe_file(path, value)


def test_remote_path_new_file_in_google_cloud_storage_lets_the_store_decide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = importlib.import_module("fsspec.registry")
    monkeypatch.setitem(registry._registry, "gs", CreatingStore)
    path = RemotePath("gs://bucket/a")
    path.write(b"one", new=True)
    with pytest.raises(FileExistsError):
        path.write(b"two", new=True)
    assert path.read(0, 10) == b"one"


def client_error(code: str) -> Exception:
    problem = Exception(f"An error occurred ({code})")
    problem.response = {"Error": {"Code": code}}  # type: ignore[attr-defined] # as botocore's
    return problem


class HTTPClientError(Exception):
    """Called as botocore's."""


class Closed(HTTPClientError):
    """A kind of it."""


@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.EBUSY, "Please reduce your request rate."),
        OSError(errno.EREMOTEIO, "We encountered an internal error."),
        ConnectionResetError(errno.ECONNRESET, "reset"),
        TimeoutError(),
        client_error("SlowDown"),
        client_error("429"),
        client_error("ConditionalRequestConflict"),
        Closed("Connection was closed"),
    ],
    ids=str,
)
def test_request_that_may_succeed_later_is_repeated_with_backoff(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    path = RemotePath("troubled://store/a")
    path.write(b"one")
    TroubledStore.failures.extend([failure] * 4)
    assert path.read(0, 3) == b"one"
    assert len(pauses) == 4
    assert pauses[3] > pauses[0] > 0


@pytest.mark.parametrize(
    "failure",
    [
        PermissionError("denied"),
        OSError(errno.EINVAL, "bad request"),
        client_error("AccessDenied"),
        ValueError("odd"),
    ],
    ids=str,
)
def test_request_that_is_denied_is_not_repeated(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it paused"))
    path = RemotePath("troubled://store/b")
    TroubledStore.failures.append(failure)
    with pytest.raises(OSError, match="troubled://store/b"):
        path.read(0, 3)


@pytest.mark.parametrize(
    ("store_name", "failure", "least_s", "most_s"),
    [
        ("unreached", ConnectionRefusedError(errno.ECONNREFUSED, "refused"), 5, 20),
        ("throttling", client_error("SlowDown"), 200, 300),
    ],
)
def test_store_that_stays_unavailable_is_reported_with_its_url(
    store_name: str,
    failure: Exception,
    least_s: float,
    most_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SleepingClock(monkeypatch)
    TroubledStore.failures.extend([failure] * 100)
    try:
        with pytest.raises(StoreUnavailable, match="tries in") as problem:
            RemotePath(f"troubled://{store_name}/a").read(0, 1)
    finally:
        TroubledStore.reset()
    assert problem.value.filename == f"troubled://{store_name}/a"
    assert least_s < clock.passed_s < most_s
