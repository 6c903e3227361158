"""Steps of a job and their keys: digests of all that decides what a step makes, so that a rerun
redoes what changed.

Contents count, never a file's size and times: what was edited with its times kept is another input.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, TypeAdapter

from bundle.storage.staging import Staging
from export.errors import UsageError

Made = TypeVar("Made")

LIBRARIES = ("numpy", "tensorflow", "tf-keras", "scann", "ai-edge-litert")
"""What writes towers and indexes."""


@dataclass(frozen=True)
class Step(Generic[Made]):
    """Work whose result stays staged: done once, and again when its inputs are others.

    Attributes:
      name: path of the file or directory that it makes.
      inputs: all that decides what it makes, as `key_of` takes it.
      made: type of what is to be known of it: JSON, or a model of pydantic.
      make: does it.
      files: that it reads, whose contents are inputs, too.
    """

    name: str
    inputs: Sequence[Any]
    made: type[Made]
    make: Callable[[], Made]
    files: Sequence[Path] = ()

    def run(self, stage: Staging) -> Made:
        """Does the step, unless an earlier run finished it with the same inputs; returns what is to
        be known of it.

        Raises:
          UsageError: A file changed between the moment it was digested and the end of the step.
        """
        before = _stamps(self.files)
        key = key_of(*self.inputs, content_of(self.files))
        payload = TypeAdapter(self.made)
        finished = stage.finished(self.name, key)
        if finished is not None:
            return payload.validate_python(finished.payload)
        made = self.make()
        for file, stamp, now in zip(self.files, before, _stamps(self.files), strict=True):
            if stamp != now:
                raise UsageError(
                    f"{file} changed while it was read; run again once nothing writes to it"
                )
        stage.finish(self.name, key, payload.dump_python(made, mode="json"))
        return made


def key_of(*parts: Any) -> str:
    """Returns the digest of JSON values, dataclasses, models of pydantic, arrays and this release
    of the exporter.
    """
    content = orjson.dumps(
        [installed_version("rowcast"), *parts], default=_plain, option=orjson.OPT_SORT_KEYS
    )
    return hashlib.sha256(content).hexdigest()


def content_of(paths: Iterable[Path]) -> list[str]:
    """Returns a digest of the content of each file."""
    found = []
    for path in paths:
        with path.open("rb") as file:
            found.append(hashlib.file_digest(file, "sha256").hexdigest())
    return found


def _stamps(files: Sequence[Path]) -> list[tuple[int, ...]]:
    """Returns what a write to a file changes. The time of the last change of the inode, too: a
    program that keeps times sets the other one back.
    """
    found = (file.stat() for file in files)
    return [(each.st_size, each.st_mtime_ns, each.st_ctime_ns, each.st_ino) for each in found]


def versions(libraries: Iterable[str] = LIBRARIES) -> dict[str, str]:
    """Returns the version of each library that is installed."""
    found = {}
    for name in libraries:
        try:
            found[name] = installed_version(name)
        except PackageNotFoundError:
            # Distributions of other names, such as tensorflow-cpu, hold the same module.
            module = sys.modules.get(name.replace("-", "_"))
            held = getattr(module, "__version__", None)
            if held is not None:
                found[name] = str(held)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, tuple):  # a named one
        return list(value)
    raise TypeError(f"a {type(value).__name__} has no digest")


def _array(values: NDArray[Any]) -> list[Any]:
    data = (
        repr(values.tolist()).encode()
        if values.dtype == object
        else np.ascontiguousarray(values).tobytes()
    )
    return [values.dtype.str, values.shape, hashlib.sha256(data).hexdigest()]
