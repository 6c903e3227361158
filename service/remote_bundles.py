"""Finds a bundle in a store: by its own URL, its model's, or that of a root."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bundle import paths
from bundle.errors import BundleError, DigestMismatch
from bundle.manifest import MANIFEST_BYTES_MAX, Manifest, parse
from runtime.remote import RemotePath, located

_VERSION = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
_NAMES_TOLD = 10


class PullError(Exception):
    """What stops a pull; the message names the thing and the cure."""

    exit_code = 1


class UsageProblem(PullError):
    """What cannot be meant: a URL, a model or a version that is not there."""

    exit_code = 2


class SourceUnreadable(PullError):
    """The store or a bundle in it cannot be read."""

    exit_code = 3


class Damaged(PullError):
    """What the store holds is not what the manifest says; nothing is committed."""

    exit_code = 5


@dataclass(frozen=True)
class Found:
    """A bundle in a store: its directory, its manifest and the manifest's very bytes."""

    directory: RemotePath
    page: Manifest
    data: bytes


def find_bundle(url: str, model: str | None = None, version: int | None = None) -> Found:
    """Finds a bundle and reads its manifest.

    Args:
      url: of a bundle, of a model's directory, or of a root; a path of this machine too.
      model: which of a root; None: the only one.
      version: None: the newest that is complete.
    Raises:
      PullError: there is none, more than one could be meant, or it cannot be read.
    """
    try:
        place = located(url)
    except ValueError as problem:
        raise UsageProblem(str(problem)) from problem
    if isinstance(place, Path):
        place = RemotePath(f"local://{place.absolute()}")
    with _told_as_unreadable():
        directory = _directory(place, model, version)
        manifest = directory / paths.MANIFEST
        size = manifest.stamp().bytes
        if size > MANIFEST_BYTES_MAX:
            raise SourceUnreadable(f"{manifest} has {size} bytes; at most {MANIFEST_BYTES_MAX} are read")
        data = manifest.read(0, size)
    try:
        page = parse(data)
    except DigestMismatch as problem:
        raise Damaged(f"{manifest}: {problem}") from problem
    except BundleError as problem:
        raise SourceUnreadable(f"{manifest}: {problem}") from problem
    if model not in (None, page.model) or version not in (None, page.version):
        raise UsageProblem(f"{directory} is model {page.model!r} version {page.version}, which was not asked for")
    return Found(directory, page, data)


def _directory(place: RemotePath, model: str | None, version: int | None) -> RemotePath:
    if (place / paths.MANIFEST).is_file():
        return place
    names = place.listing()
    if not names:
        raise SourceUnreadable(f"{place} is empty, or is not there")
    if model is not None and model in names:
        place /= model
    elif not any(_VERSION.fullmatch(name) for name in names):
        models = sorted(name for name in names if paths.is_name(name))
        told = ", ".join(models[:_NAMES_TOLD]) + (", ..." if len(models) > _NAMES_TOLD else "")
        if model is not None:
            raise UsageProblem(f"{place} holds no model {model!r}; it holds {told or 'none'}")
        if len(models) != 1:
            raise UsageProblem(f"{place} holds {told or 'no model'}; say which one with --model")
        place /= models[0]
    versions = sorted((int(name) for name in place.listing() if _VERSION.fullmatch(name)), reverse=True)
    for number in [version] if version is not None else versions:
        if (place / str(number) / paths.MANIFEST).is_file():
            return place / str(number)
    told = ", ".join(map(str, versions[:_NAMES_TOLD])) or "none"
    asked = "a complete version" if version is None else f"version {version}, or it is not complete"
    raise UsageProblem(f"{place} does not hold {asked}; there are: {told}")


@contextmanager
def _told_as_unreadable() -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise SourceUnreadable(f"{problem.filename or 'the store'} cannot be read: {problem.strerror}") from problem
