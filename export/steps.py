"""Steps of a job: functions whose results stay staged, and whose arguments decide whether they run
again.

The key of a step is a digest of its arguments, so that a step has no other inputs than its key.
Contents count, and never the size or the times of a file: a file that was edited with its times
kept is another input.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, get_type_hints, runtime_checkable

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, TypeAdapter

from bundle.format.fields import StrictModel
from bundle.storage.staging import Staging
from export.errors import UsageError

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

LIBRARIES = ("numpy", "tensorflow", "tf-keras", "scann", "faiss-cpu", "ai-edge-litert")
"""The libraries that write towers and indexes."""


@runtime_checkable
class Keyed(Protocol):
    """An argument that knows what of it decides the result of a step."""

    def key_parts(self) -> Any:
        """Returns what the key of a step contains in its place."""


@dataclass(frozen=True)
class Written:
    """A file or directory of the bundle, as an argument: its content counts.

    Attributes:
      path: The path in the bundle. A step of this name has finished.
    """

    path: str


@dataclass(frozen=True)
class Step:
    """A place in the journal of a job, where the result of a function is kept.

    Attributes:
      name: The path of the file or directory that the function makes, or any other name.
      libraries: Libraries whose versions decide what the function makes.
      path: The path of what the function makes, if that is not `name`.
      rewritten: A file there that later steps write to. The journal does not vouch for it.
    """

    name: str
    libraries: Sequence[str] = ()
    path: str = ""
    rewritten: str = ""

    def run(
        self,
        stage: Staging,
        function: Callable[Concatenate[Path, Arguments], Result],
        /,
        *inputs: Arguments.args,
        **reporting: Arguments.kwargs,
    ) -> Result:
        """Calls a function, unless an earlier run of the job did with the same inputs.

        Args:
          stage: The staging directory with its journal.
          function: A function of a module, which takes the staging directory and the arguments.
            The type of its result is annotated: JSON, or a model of pydantic.
          inputs: All that decides what the function makes: JSON, dataclasses, models of pydantic,
            arrays, files of the user as paths, `Written`, and `Keyed`.
          reporting: What decides nothing, such as whom the function tells its progress.

        Returns:
          The result of the function, in this run or in the earlier one.

        Raises:
          UsageError: A file of the user changed between the moment it was digested and the end of
            the step.
        """
        # A closure, a method and a partial function hold values that the key would lack.
        if not inspect.isfunction(function) or function.__closure__:
            raise TypeError(f"{function} may hold inputs that are no arguments")
        digested = _Inputs(stage)
        key = digested.key(self, inputs)
        adapter = TypeAdapter(get_type_hints(function)["return"])
        finished = stage.finished(self.name, key)
        if finished is not None:
            kept_result: Result = adapter.validate_python(finished.payload)
            return kept_result

        result: Result = function(stage.directory, *inputs, **reporting)
        for file, stamp in digested.stamps.items():
            if _stamp(file) != stamp:
                raise UsageError(
                    f"{file} changed while it was read; run again once nothing writes to it"
                )
        written = stage.digests(self.path or self.name)
        final = [file for file in written if file.path != self.rewritten]
        stage.finish(self.name, key, adapter.dump_python(result, mode="json"), final)
        return result

    def key(self, stage: Staging, *inputs: Any) -> str:
        """Returns the digest of all that decides the result; see `run`."""
        return _Inputs(stage).key(self, inputs)


class _Inputs:
    """Arguments that are being digested.

    Attributes:
      stamps: What a write changes of each of the user's files, before it was read.
    """

    def __init__(self, stage: Staging) -> None:
        self._stage = stage
        self.stamps: dict[Path, tuple[int, ...]] = {}

    def key(self, step: Step, inputs: Sequence[Any]) -> str:
        parts = {
            "exporter": installed_version("rowcast"),
            "step": step.name,
            "inputs": inputs,
            "libraries": versions(step.libraries),
        }
        # Dataclasses come to `_plain`, which knows those that have a key of their own.
        options = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS
        try:
            return hashlib.sha256(orjson.dumps(parts, self._plain, options)).hexdigest()
        except orjson.JSONEncodeError as problem:
            # A file that cannot be read, for example.
            raise problem.__cause__ or problem from None

    def _plain(self, value: Any) -> Any:
        """Returns what orjson writes in the place of a value that it does not know."""
        parts: Any
        if isinstance(value, Path):
            self.stamps[value] = _stamp(value)
            parts = content_of([value])
        elif isinstance(value, Written):
            parts = self._written(value.path)
        elif isinstance(value, Keyed):
            parts = value.key_parts()
        elif isinstance(value, BaseModel):
            # Not `dict(value)`: a model may have a field called `keys`.
            parts = {name: field for name, field in value}  # noqa: C416
            # An entry of the manifest stands for its file, unless it has the checksum itself.
            file = parts.get("file", parts.get("path"))
            if isinstance(value, StrictModel) and file and "crc32c" not in parts:
                parts["content"] = self._written(file)
        elif is_dataclass(value):
            parts = {part.name: getattr(value, part.name) for part in fields(value)}
        elif isinstance(value, np.ndarray):
            parts = _array(value)
        elif isinstance(value, set | frozenset):
            parts = sorted(value)
        elif isinstance(value, tuple):
            # A named tuple, which orjson does not write.
            parts = list(value)
        else:
            raise TypeError(f"a {type(value).__name__} has no digest")
        return parts

    def _written(self, path: str) -> list[Any]:
        files = self._stage.files(path)
        if not files:
            raise ValueError(f"no step has written {path}")
        return [[file.path, file.bytes, file.crc32c] for file in files]


def content_of(paths: Iterable[Path]) -> list[str]:
    """Returns a digest of the content of each file."""
    digests = []
    for path in paths:
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    return digests


def _stamp(file: Path) -> tuple[int, ...]:
    """Returns what a write to a file changes. That includes the time of the last change of the
    inode: a program that keeps times sets the other one back.
    """
    status = file.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


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


def _array(values: NDArray[Any]) -> list[Any]:
    if values.dtype == object:
        data = repr(values.tolist()).encode()
    else:
        data = np.ascontiguousarray(values).tobytes()
    return [values.dtype.str, values.shape, hashlib.sha256(data).hexdigest()]
