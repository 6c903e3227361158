"""Finds the parameters of a model in an Orbax checkpoint, by their paths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bundle.shown_values import shown_first
from export.checkpoint.left_out import left_out_siblings
from export.checkpoint.reader import Checkpoint
from export.errors import CheckpointError
from export.jax_models.functions import JaxFunctions

_LISTED_MAX = 5
"""Maximum number of problems that a message lists."""
_OPTIMIZER_BRANCHES = {
    "opt",
    "opt_state",
    "opt_states",
    "optimizer",
    "optimizer_state",
    "optimizer_states",
    "optimizer_variables",
}
"""Names of branches that hold an optimizer's state, whose trees repeat the parameters' paths."""


@dataclass(frozen=True)
class StoredParameters:
    """The parameters of a model, and its checkpoint.

    Attributes:
      model: The model's functions.
      checkpoint: An Orbax checkpoint, whose keys are dotted paths.
      object_path: The path of the tree of parameters in the checkpoint, the recipe's
        `checkpoint.object_path`; "" if the tree is found by its parameters.
    """

    model: JaxFunctions
    checkpoint: Checkpoint
    object_path: str

    def key(self, path: str) -> str:
        """Returns the key of a parameter's array; "" if the checkpoint lacks it."""
        key = self._stored_paths[path]
        if self.beginning:
            key = f"{self.beginning}.{key}"
        # nnx stores a parameter as the `value` of a variable.
        for stored_key in (key, f"{key}.value"):
            if stored_key in self.checkpoint.entries:
                return stored_key
        return ""

    def find(self, paths: Iterable[str]) -> dict[str, str]:
        """Returns the key of each parameter.

        Raises:
          CheckpointError: Parameters are missing, or have another shape or dtype; the message names
            them.
        """
        keys = {path: self.key(path) for path in paths}
        # All problems are reported together: many missing parameters have one cause.
        problems = [problem for path, key in keys.items() if (problem := self._problem(path, key))]
        if problems:
            listed = shown_first(problems, _LISTED_MAX, "; ")
            raise CheckpointError(f"checkpoint {self.checkpoint.prefix}: {listed}. {self._cause()}")
        return keys

    def read(self, path: str) -> Any:
        """Returns the array of a parameter.

        Raises:
          CheckpointError: The array is not in the checkpoint, or damaged.
        """
        return self.checkpoint.read_all(self.find([path])[path])

    @cached_property
    def beginning(self) -> str:
        """The key under which the tree of parameters begins: a parameter's key without its path.

        Raises:
          CheckpointError: Several trees of the checkpoint have these parameters.
        """
        beginnings = self._beginnings(self._stored_paths)
        if len(beginnings) > 1:
            paths = " or ".join(repr(beginning) for beginning in beginnings[:4])
            raise CheckpointError(
                f"checkpoint {self.checkpoint.prefix} has the model's parameters under several "
                f"paths: {paths}; write the one to export as checkpoint.object_path"
            )
        return beginnings[0] if beginnings else _with_dots(self.object_path)

    def unread(self, dense: Collection[str]) -> dict[str, str]:
        """Returns the keys of the matrices in the tree of parameters that the model lacks, each as
        its own value.

        Args:
          dense: Keys of variables that are neither tables nor an optimizer's.
        """
        parameter_keys = {self.key(path) for path in self.model.leaves}
        tree_prefix = f"{self.beginning}." if self.beginning else ""
        unread = {}
        for key in sorted(dense):
            if key in parameter_keys or not key.startswith(tree_prefix):
                continue
            if len(self.checkpoint.entries[key].shape) > 1:
                unread[key] = key
        return unread

    def left_out(self, dense: Collection[str]) -> dict[str, str]:
        """Returns the keys of arrays that lie in the same module as one of the model's parameters,
        and that the model lacks.

        Args:
          dense: Keys of variables that are neither tables nor an optimizer's.
        """
        parameter_keys = {self.key(path) for path in self.model.leaves} - {""}

        def module(key: str) -> str:
            dotted = key.removesuffix(".value").rpartition(".")[0]
            # The tree itself is no module: a flat one holds the parameters of all towers.
            return "" if dotted == self.beginning else dotted

        return left_out_siblings(parameter_keys, {*dense} - parameter_keys, module)

    @cached_property
    def _stored_paths(self) -> Mapping[str, str]:
        """The path of each parameter in the checkpoint's tree of parameters.

        `init` of Flax linen returns the parameters in a branch, `params`. A `TrainState` holds what
        is in that branch, and a program may save this alone.
        """
        paths = {path: path for path in self.model.leaves}
        inner_paths = {path: path.removeprefix("params.") for path in paths}
        # A branch of another name, such as `ema`, may be one of several with the same paths.
        has_branch = all(path.startswith("params.") for path in paths)
        if has_branch and self._beginnings(inner_paths) and not self._beginnings(paths):
            return inner_paths
        return paths

    def _beginnings(self, paths: Mapping[str, str]) -> list[str]:
        """Returns the keys at which the tree of parameters may begin: where the recipe's
        object_path is, or else the trees that have the largest number of the parameters.

        Args:
          paths: The path of each parameter in such a tree.
        """
        parameter_counts = self._parameter_counts(paths)
        if not self.object_path:
            largest = max(parameter_counts.values(), default=0)
            return sorted(
                beginning for beginning, count in parameter_counts.items() if count == largest
            )
        if self.object_path in parameter_counts:
            return [self.object_path]
        # A slash in it separates two steps, or is part of a key, as in trees of dm-haiku.
        stated = _with_dots(self.object_path)
        return sorted(
            beginning for beginning in parameter_counts if _with_dots(beginning) == stated
        )

    def _parameter_counts(self, paths: Mapping[str, str]) -> Counter[str]:
        """Returns the number of parameters in each tree of the checkpoint, by the key at which it
        begins.

        Args:
          paths: The path of each parameter in such a tree.
        """
        leaves = {stored: self.model.leaves[path] for path, stored in paths.items()}
        counts: Counter[str] = Counter()
        for key, entry in self.checkpoint.entries.items():
            steps = key.removesuffix(".value").split(".")
            # The trees of an optimizer repeat the paths and shapes of the parameters.
            if not _OPTIMIZER_BRANCHES.isdisjoint(steps):
                continue
            for depth in range(len(steps)):
                leaf = leaves.get(".".join(steps[depth:]))
                if leaf is not None and tuple(entry.shape) == leaf.shape:
                    counts[".".join(steps[:depth])] += 1
        return counts

    def _cause(self) -> str:
        """Returns a possible cause of missing parameters, and a remedy."""
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

    def _problem(self, path: str, key: str) -> str:
        """Returns the reason why an array cannot be a parameter; "" if it can be."""
        leaf = self.model.leaves[path]
        parameter = f"parameter {path}"
        if not key:
            return f"{parameter} {list(leaf.shape)} is not in the checkpoint"
        entry = self.checkpoint.entries[key]
        if tuple(entry.shape) == leaf.shape and entry.dtype == str(leaf.dtype):
            return ""
        return (
            f"{parameter} is {leaf.dtype} {list(leaf.shape)} in the model and {entry.dtype} "
            f"{list(entry.shape)} there"
        )


def _with_dots(object_path: str) -> str:
    """Returns an object path whose steps dots separate, wherever it has slashes."""
    return ".".join(filter(None, object_path.replace("/", ".").split(".")))
