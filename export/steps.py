"""Steps of a job and their keys: digests of all that decides what a step makes, so that a rerun redoes what changed.

Contents count, never a file's size and times: what was edited with its times kept is another input.
"""

from __future__ import annotations

import hashlib
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
    """

    name: str
    inputs: Sequence[Any]
    made: type[Made]
    make: Callable[[], Made]

    def run(self, stage: Staging) -> Made:
        """Does the step, unless an earlier run finished it with the same inputs; returns what is to be known of it."""
        key, payload = key_of(*self.inputs), TypeAdapter(self.made)
        finished = stage.finished(self.name, key)
        if finished is not None:
            return payload.validate_python(finished.payload)
        made = self.make()
        stage.finish(self.name, key, payload.dump_python(made, mode="json"))
        return made


def key_of(*parts: Any) -> str:
    """Returns the digest of JSON values, dataclasses, models of pydantic, arrays and this release of the exporter."""
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


def versions() -> dict[str, str]:
    """Returns the version of each installed library that writes towers and indexes."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = installed_version(name)
        except PackageNotFoundError:
            continue
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
