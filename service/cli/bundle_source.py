"""Finds a bundle in an object store: by its own URL, its model's, or that of a root.

An exporter publishes a version as objects and an `objects.json` that names them. A bundle that was
copied to the store as it lies on a disk is read too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bundle.errors import BundleError, DigestMismatch
from bundle.format import objects, paths
from bundle.format.manifest import MANIFEST_BYTES_MAX, Manifest, parse
from bundle.format.objects import OBJECTS, OBJECTS_BYTES_MAX, ObjectMap
from bundle.storage.signatures import SIGNATURE_BYTES_MAX, Signature
from command_line.program import INVALID_ARGUMENT, CommandError
from object_store.locations import location_of
from object_store.remote_path import RemotePath
from object_store.stored_content import StoredContent, content_of, is_committed
from service.exit_codes import EXIT_USAGE

EXIT_SOURCE = 3
EXIT_DAMAGED = 5
EXIT_DESTINATION = 6
_CODES = {
    EXIT_USAGE: INVALID_ARGUMENT,
    EXIT_SOURCE: "SOURCE",
    EXIT_DAMAGED: "DATA_LOSS",
    EXIT_DESTINATION: "DESTINATION",
}
"""The code of each error, by its exit code."""

_VERSION = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
_MAX_NAMES = 10
"""Maximum number of names that one error message lists."""


class PullError(CommandError):
    """A failure that stops a pull. The message names the cause and the remedy."""

    def __init__(self, message: str, exit_code: int) -> None:
        # A path is read like a store, and is shown as the user wrote it.
        readable = message.replace("local://", "")
        super().__init__(readable, exit_code, _CODES[exit_code], command="rowcast-serve pull")


@dataclass(frozen=True)
class BundleSource:
    """A bundle in a store.

    Attributes:
      directory: The version's directory.
      manifest: The bundle's manifest.
      data: The bytes of the manifest as they are in the store.
      objects: The objects of each file; None: the files lie under their own names.
      signature: The signature of the bundle; None: it has none.
    """

    directory: RemotePath
    manifest: Manifest
    data: bytes
    objects: ObjectMap | None = None
    signature: Signature | None = None

    def file(self, path: str) -> StoredContent:
        """Returns the content of a file of the bundle.

        Raises:
          PullError: The version has no object for the file.
        """
        return _file(self.directory, self.objects, path)


def find_bundle(url: str, model: str | None = None, version: int | None = None) -> BundleSource:
    """Finds a bundle and reads its manifest.

    Args:
      url: The URL of a bundle, of a model's directory, or of a root; or a path of this machine.
      model: The model of a root; None: the only one.
      version: The version; None: the newest complete one.

    Raises:
      PullError: There is no such bundle, the choice is ambiguous, or the bundle cannot be read.
    """
    try:
        location = location_of(url)
    except ValueError as problem:
        raise PullError(str(problem), EXIT_USAGE) from problem
    # A path is read like a store.
    if isinstance(location, Path):
        location = RemotePath(f"local://{location.absolute()}")
    with reading():
        directory = _version_directory(location, model, version)
        stored = _read_objects(directory)
        data = _read_manifest(directory, stored)
        signature = _read_signature(directory, stored)
    try:
        manifest = parse(data)
    except BundleError as problem:
        exit_code = EXIT_SOURCE
        if isinstance(problem, DigestMismatch):
            exit_code = EXIT_DAMAGED
        raise PullError(f"{directory / paths.MANIFEST}: {problem}", exit_code) from problem
    # The URL of a bundle names a model and a version, too.
    if model not in (None, manifest.model) or version not in (None, manifest.version):
        raise PullError(
            f"{directory} is version {manifest.version} of model {manifest.model!r}; correct the "
            "URL, --model or --version",
            EXIT_USAGE,
        )
    return BundleSource(directory, manifest, data, stored, signature)


@contextmanager
def reading() -> Iterator[None]:
    """Turns errors of the store into PullError."""
    try:
        yield
    except OSError as problem:
        message = (
            f"{problem.filename or 'the store'} cannot be read: {problem.strerror}; run the "
            "same command again"
        )
        raise PullError(message, EXIT_SOURCE) from problem


def _read_small(file: RemotePath, bytes_max: int) -> bytes:
    """Reads a file whose size has a limit, before it is in memory."""
    size = file.stamp().bytes
    if size > bytes_max:
        raise PullError(f"{file} has {size} bytes; the limit is {bytes_max}", EXIT_SOURCE)
    return file.read(0, size)


def _read_objects(directory: RemotePath) -> ObjectMap | None:
    """Returns the objects of each file of a bundle; None: files lie under their own names."""
    # A bundle that was copied to the store as it lies on a disk has none.
    file = directory / OBJECTS
    if not file.is_file():
        return None
    try:
        return objects.parse(_read_small(file, OBJECTS_BYTES_MAX))
    except BundleError as problem:
        raise PullError(f"{file}: {problem}; publish the bundle again", EXIT_DAMAGED) from problem


def _read_manifest(directory: RemotePath, stored: ObjectMap | None) -> bytes:
    """Reads the manifest of a bundle, and compares it with the names of its objects."""
    if stored is None:
        return _read_small(directory / paths.MANIFEST, MANIFEST_BYTES_MAX)
    content = _file(directory, stored, paths.MANIFEST)
    file = stored.files[paths.MANIFEST]
    if file.bytes > MANIFEST_BYTES_MAX:
        raise PullError(
            f"the manifest of {directory} has {file.bytes} bytes; the limit is "
            f"{MANIFEST_BYTES_MAX}",
            EXIT_SOURCE,
        )
    # The names of objects are the SHA-256 of their contents: nothing else vouches for a manifest,
    # which has the checksums of all other files.
    data = content.read(0, file.bytes)
    for block in file.blocks:
        part = data[block.offset : block.offset + block.bytes]
        if hashlib.sha256(part).hexdigest() != block.sha256:
            raise PullError(
                f"{content.object_at(block.offset)} is not what its name says; publish the bundle "
                "again",
                EXIT_DAMAGED,
            )
    return data


def _read_signature(directory: RemotePath, stored: ObjectMap | None) -> Signature | None:
    """Reads the signature of a bundle; None: it has none."""
    contents = []
    limits = {paths.SIGNED_FILES: OBJECTS_BYTES_MAX, paths.SIGNATURE: SIGNATURE_BYTES_MAX}
    for path, limit in limits.items():
        if stored is None:
            if not (directory / path).is_file():
                return None
            contents.append(_read_small(directory / path, limit))
            continue
        if path not in stored.files:
            return None
        size = stored.files[path].bytes
        if size > limit:
            raise PullError(
                f"{path!r} of {directory} has {size} bytes; the limit is {limit}", EXIT_SOURCE
            )
        contents.append(_file(directory, stored, path).read(0, size))
    return Signature(*contents)


def _file(directory: RemotePath, stored: ObjectMap | None, path: str) -> StoredContent:
    if stored is None:
        return StoredContent((directory / path,))
    if path not in stored.files:
        raise PullError(
            f"{directory / OBJECTS} names no object for {path!r}; publish the bundle again",
            EXIT_DAMAGED,
        )
    return content_of(directory.parent, stored.files[path])


def _version_directory(location: RemotePath, model: str | None, version: int | None) -> RemotePath:
    """Returns the directory of a version.

    Args:
      location: The directory of the version, of its model, or of a root.
      model: See `find_bundle`.
      version: See `find_bundle`.

    Raises:
      PullError: There is no such version, or the choice is ambiguous.
    """
    if is_committed(location):
        return location
    names = location.listing()
    if not names:
        raise PullError(f"{location} is empty or does not exist", EXIT_SOURCE)

    # A directory with versions is that of a model; any other one is a root.
    if model is not None and model in names:
        location /= model
    elif not any(_VERSION.fullmatch(name) for name in names):
        location /= _only_model(location, names, model)

    # Versions that are still being published are passed over: the newest complete one counts.
    numbers = [int(name) for name in location.listing() if _VERSION.fullmatch(name)]
    versions = sorted(numbers, reverse=True)
    candidates = versions
    missing = "complete version"
    if version is not None:
        candidates = [version]
        missing = f"complete version {version}"
    for number in candidates:
        if is_committed(location / str(number)):
            return location / str(number)
    listed = ", ".join(map(str, versions[:_MAX_NAMES])) or "none"
    raise PullError(f"{location} holds no {missing}; its versions: {listed}", EXIT_USAGE)


def _only_model(root: RemotePath, names: Iterable[str], model: str | None) -> str:
    """Returns the only model of a root; `model` is one that it does not have, or None.

    Raises:
      PullError: The root does not have the model, or has several.
    """
    models = sorted(name for name in names if paths.is_name(name))
    listed = ", ".join(models[:_MAX_NAMES])
    if len(models) > _MAX_NAMES:
        listed += ", ..."
    if model is not None:
        raise PullError(f"{root} holds no model {model!r}; it holds {listed or 'none'}", EXIT_USAGE)
    if len(models) != 1:
        raise PullError(f"{root} holds {listed or 'no model'}; choose one with --model", EXIT_USAGE)
    return models[0]
