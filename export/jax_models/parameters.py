"""Finds the parameters of a model in an Orbax checkpoint, by their paths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from export.checkpoint.left_out import left_out_siblings
from export.checkpoint.reader import Checkpoint
from export.errors import CheckpointError
from export.jax_models.functions import JaxFunctions

_SHOWN = 5
_STATE = {
    "opt",
    "opt_state",
    "opt_states",
    "optimizer",
    "optimizer_state",
    "optimizer_states",
    "optimizer_variables",
}
"""Names of what holds an optimizer's state, whose trees repeat the parameters' paths."""


@dataclass(frozen=True)
class StoredParameters:
    """The parameters of a model beside its checkpoint.

    Attributes:
      model: the functions.
      checkpoint: an Orbax checkpoint: keys are dotted paths.
      object_path: where the tree of parameters begins in it, the recipe's
        `checkpoint.object_path`; "": found by its parameters.
    """

    model: JaxFunctions
    checkpoint: Checkpoint
    object_path: str

    def key(self, path: str) -> str:
        """Returns the key of a parameter's array; "" if it is not in the checkpoint."""
        return self._key_in(self.beginning, path)

    def find(self, paths: Iterable[str]) -> dict[str, str]:
        """Returns the key of each parameter.

        Raises:
          CheckpointError: parameters are missing, or of another shape or dtype; names them.
        """
        keys = {path: self.key(path) for path in paths}
        problems = [problem for path, key in keys.items() if (problem := self._problem(path, key))]
        if problems:
            more = f" and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
            raise CheckpointError(
                f"checkpoint {self.checkpoint.prefix}: {'; '.join(problems[:_SHOWN])}{more}. "
                f"{self._cause()}"
            )
        return keys

    def read(self, path: str) -> Any:
        """Returns the array of a parameter.

        Raises:
          CheckpointError: it is not in the checkpoint, or damaged.
        """
        return self.checkpoint.read_all(self.find([path])[path])

    @cached_property
    def beginning(self) -> str:
        """Where the tree of parameters begins: a key without the path of its parameter.

        Raises:
          CheckpointError: several trees of the checkpoint have these parameters.
        """
        if self.object_path:
            return ".".join(step for step in self.object_path.replace("/", ".").split(".") if step)
        found: Counter[str] = Counter()
        for key in self.checkpoint.entries:
            for beginning, _ in self._ends_of(key):
                found[beginning] += 1
        most = max(found.values(), default=0)
        best = sorted(beginning for beginning, count in found.items() if count == most)
        if len(best) > 1:
            places = " or ".join(repr(place) for place in best[:4])
            raise CheckpointError(
                f"checkpoint {self.checkpoint.prefix} has the model's parameters in several "
                f"places: {places}; write the one to export as checkpoint.object_path"
            )
        return best[0] if best else ""

    def unread(self, dense: Collection[str]) -> dict[str, str]:
        """Returns matrices beside the parameters that the model lacks, by key.

        Args:
          dense: keys of variables that are neither tables nor an optimizer's.
        """
        known = {self.key(path) for path in self.model.leaves}
        beside = f"{self.beginning}." if self.beginning else ""
        return {
            key: key
            for key in sorted(dense)
            if key not in known
            and key.startswith(beside)
            and len(self.checkpoint.entries[key].shape) > 1
        }

    def left_out(self, dense: Collection[str]) -> dict[str, str]:
        """Returns the keys of arrays that lie in the same module as one of the model's parameters,
        and that the model lacks. The tree itself is no module: in a flat one, the parameters of all
        towers lie beside each other.

        Args:
          dense: keys of variables that are neither tables nor an optimizer's.
        """
        known = {self.key(path) for path in self.model.leaves} - {""}

        def module(key: str) -> str:
            dotted = key.removesuffix(".value").rpartition(".")[0]
            return "" if dotted == self.beginning else dotted

        return left_out_siblings(known, {*dense} - known, module)

    def _key_in(self, beginning: str, path: str) -> str:
        dotted = path.replace("/", ".")
        whole = f"{beginning}.{dotted}" if beginning else dotted
        held = self.checkpoint.entries
        return next((key for key in (whole, f"{whole}.value") if key in held), "")

    def _ends_of(self, key: str) -> Iterable[tuple[str, str]]:
        """Yields where a tree begins if an array is one of the parameters, and which."""
        steps = key.removesuffix(".value").split(".")
        if not _STATE.isdisjoint(steps):
            return
        for cut in range(len(steps)):
            path = ".".join(steps[cut:])
            leaf = self._dotted.get(path)
            if leaf is not None and tuple(self.checkpoint.entries[key].shape) == leaf.shape:
                yield ".".join(steps[:cut]), path

    def _cause(self) -> str:
        """Returns why parameters may be missing, and a remedy."""
        keys = self.checkpoint.entries
        if all(step.isdecimal() for key in keys for step in key.split(".")):
            return (
                "It holds the parameters as lists, without their names: if they are those of a "
                "model of Keras, as RecML's KerasTrainer saves them, let the factory return the "
                "model; else save them as a dict by name in the training program, or return lists "
                "of shapes in the same order"
            )
        return (
            "The model code is not the one that was saved, or checkpoint.object_path "
            f"({self.object_path!r}) is not where its parameters begin"
        )

    @cached_property
    def _dotted(self) -> Mapping[str, Any]:
        return {path.replace("/", "."): leaf for path, leaf in self.model.leaves.items()}

    def _problem(self, path: str, key: str) -> str:
        leaf = self.model.leaves[path]
        what = f"parameter {path.replace('/', '.')}"
        if not key:
            return f"{what} {list(leaf.shape)} is not in the checkpoint"
        entry = self.checkpoint.entries[key]
        if tuple(entry.shape) == leaf.shape and entry.dtype == str(leaf.dtype):
            return ""
        return (
            f"{what} is {leaf.dtype} {list(leaf.shape)} in the model and {entry.dtype} "
            f"{list(entry.shape)} there"
        )
