"""Finds a bundle in an object store: by its own URL, its model's, or that of a root."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bundle.errors import BundleError, DigestMismatch
from bundle.format import paths
from bundle.format.manifest import MANIFEST_BYTES_MAX, Manifest, parse
from runtime.object_store import RemotePath, located
from service.exit_codes import EXIT_USAGE

EXIT_SOURCE, EXIT_DAMAGED, EXIT_DESTINATION = 3, 5, 6

_VERSION = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
_MAX_NAMES = 10
"""Names listed in one error message."""


class PullError(Exception):
    """What stops a pull. The message names the cause and the remedy."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True)
class BundleSource:
    """A bundle in a store: its directory, its manifest, and the manifest's very bytes."""

    directory: RemotePath
    manifest: Manifest
    data: bytes


def find_bundle(url: str, model: str | None = None, version: int | None = None) -> BundleSource:
    """Finds a bundle and reads its manifest.

    Args:
      url: of a bundle, of a model's directory, or of a root; or a path of this machine.
      model: which model of a root; None: the only one.
      version: None: the newest complete one.
    Raises:
      PullError: there is none, the choice is ambiguous, or it cannot be read.
    """
    try:
        place = located(url)
    except ValueError as problem:
        raise PullError(str(problem), EXIT_USAGE) from problem
    if isinstance(place, Path):
        place = RemotePath(f"local://{place.absolute()}")
    with reading():
        directory = _directory(place, model, version)
        file = directory / paths.MANIFEST
        size = file.stamp().bytes
        if size > MANIFEST_BYTES_MAX:
            raise PullError(
                f"{file} has {size} bytes; the limit is {MANIFEST_BYTES_MAX}", EXIT_SOURCE
            )
        data = file.read(0, size)
    try:
        manifest = parse(data)
    except BundleError as problem:
        damaged = isinstance(problem, DigestMismatch)
        raise PullError(f"{file}: {problem}", EXIT_DAMAGED if damaged else EXIT_SOURCE) from problem
    if model not in (None, manifest.model) or version not in (None, manifest.version):
        found = f"{directory} is version {manifest.version} of model {manifest.model!r}"
        raise PullError(f"{found}; correct the URL, --model or --version", EXIT_USAGE)
    return BundleSource(directory, manifest, data)


@contextmanager
def reading() -> Iterator[None]:
    """Turns errors of the store into PullErrors."""
    try:
        yield
    except OSError as problem:
        message = f"{problem.filename or 'the store'} cannot be read: {problem.strerror}; run the same command again"
        raise PullError(message, EXIT_SOURCE) from problem


def _directory(place: RemotePath, model: str | None, version: int | None) -> RemotePath:
    if (place / paths.MANIFEST).is_file():
        return place
    names = place.listing()
    if not names:
        raise PullError(f"{place} is empty or does not exist", EXIT_SOURCE)
    if model is not None and model in names:
        place /= model
    elif not any(_VERSION.fullmatch(name) for name in names):
        models = sorted(name for name in names if paths.is_name(name))
        listed = ", ".join(models[:_MAX_NAMES]) + (", ..." if len(models) > _MAX_NAMES else "")
        if model is not None:
            raise PullError(
                f"{place} holds no model {model!r}; it holds {listed or 'none'}", EXIT_USAGE
            )
        if len(models) != 1:
            raise PullError(
                f"{place} holds {listed or 'no model'}; choose one with --model", EXIT_USAGE
            )
        place /= models[0]
    versions = sorted(
        (int(name) for name in place.listing() if _VERSION.fullmatch(name)), reverse=True
    )
    for number in versions if version is None else [version]:
        if (place / str(number) / paths.MANIFEST).is_file():
            return place / str(number)
    wanted = "complete version" if version is None else f"complete version {version}"
    listed = ", ".join(map(str, versions[:_MAX_NAMES])) or "none"
    raise PullError(f"{place} holds no {wanted}; its versions: {listed}", EXIT_USAGE)
