"""Steps of a job and their keys. A key holds all that decides what a step makes, so that a rerun
redoes what changed.

Contents count, and never the size or the times of a file: a file that was edited with its times
kept is another input.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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

Result = TypeVar("Result")

LIBRARIES = ("numpy", "tensorflow", "tf-keras", "scann", "faiss-cpu", "ai-edge-litert")
"""The libraries that write towers and indexes."""


@dataclass(frozen=True)
class StepKey:
    """All that decides what a step makes. Entries of a journal are found by it.

    Attributes:
      step: The name of the step: the path of the file or directory that it makes, or any other
        name.
      inputs: Values by name, such as parts of the recipe: JSON, dataclasses, models of pydantic
        and arrays.
      content: Digests or checksums of what the step reads, in a fixed order.
      files: Files that the step reads and that no checksum is known of. Their contents are inputs.
      libraries: Libraries whose versions decide what the step writes.
    """

    step: str
    inputs: Mapping[str, Any] = field(default_factory=dict)
    content: Sequence[Any] = ()
    files: Sequence[Path] = ()
    libraries: Sequence[str] = ()

    def digest(self) -> str:
        """Reads the files, and returns the digest of everything, including the exporter's
        version.
        """
        parts = {
            "exporter": installed_version("rowcast"),
            "step": self.step,
            "inputs": self.inputs,
            "content": self.content,
            "files": content_of(self.files),
            "libraries": versions(self.libraries),
        }
        text = orjson.dumps(parts, default=_plain, option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(text).hexdigest()


@dataclass(frozen=True)
class Step(Generic[Result]):
    """Work whose result stays staged: done once, and again when its key changes.

    Attributes:
      key: All that decides what it makes.
      result_type: The type of the result that the journal keeps: JSON, or a model of pydantic.
      make: Does the work.
    """

    key: StepKey
    result_type: type[Result]
    make: Callable[[], Result]

    def run(self, stage: Staging) -> Result:
        """Does the step, unless an earlier run finished it with the same key; returns its result.

        Raises:
          UsageError: A file changed between the moment it was digested and the end of the step.
        """
        files = self.key.files
        before = _stamps(files)
        digest = self.key.digest()
        adapter = TypeAdapter(self.result_type)
        finished = stage.finished(self.key.step, digest)
        if finished is not None:
            return adapter.validate_python(finished.payload)

        result = self.make()
        for file, stamp, now in zip(files, before, _stamps(files), strict=True):
            if stamp != now:
                raise UsageError(
                    f"{file} changed while it was read; run again once nothing writes to it"
                )
        stage.finish(self.key.step, digest, adapter.dump_python(result, mode="json"))
        return result


def content_of(paths: Iterable[Path]) -> list[str]:
    """Returns a digest of the content of each file."""
    digests = []
    for path in paths:
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    return digests


def _stamps(files: Sequence[Path]) -> list[tuple[int, ...]]:
    """Returns what a write to a file changes. That includes the time of the last change of the
    inode: a program that keeps times sets the other one back.
    """
    stamps: list[tuple[int, ...]] = []
    for file in files:
        status = file.stat()
        stamps.append((status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino))
    return stamps


def versions(libraries: Iterable[str]) -> dict[str, str]:
    """Returns the version of each library that is installed."""
    installed = {}
    for name in libraries:
        try:
            installed[name] = installed_version(name)
        except PackageNotFoundError:
            # Distributions of other names, such as tensorflow-cpu, hold the same module.
            module = sys.modules.get(name.replace("-", "_"))
            module_version = getattr(module, "__version__", None)
            if module_version is not None:
                installed[name] = str(module_version)
    return installed


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, tuple):
        # A named tuple, which orjson does not write.
        return list(value)
    raise TypeError(f"a {type(value).__name__} has no digest")


def _array(values: NDArray[Any]) -> list[Any]:
    if values.dtype == object:
        data = repr(values.tolist()).encode()
    else:
        data = np.ascontiguousarray(values).tobytes()
    return [values.dtype.str, values.shape, hashlib.sha256(data).hexdigest()]
