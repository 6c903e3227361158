"""The tables and towers of PyTorch that the user's model file describes, which needs no library:

    def build():
        tables = [
            {
                "name": "users",
                "num_embeddings": 1_000_000,
                "embedding_dim": 64,
                "feature_names": ["user"],
                "pooling": "sum",
            },
        ]
        return tables, {"": "ranker.npz"}

Tables have the fields of TorchRec's `EmbeddingBagConfig`, and may be objects of that class. Towers
are files, by the name that a tower's `call` has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export.errors import NotConvertible, UsageError
from export.front_end.calls import Call
from export.front_end.interface import OfferedCall
from export.front_end.named_functions import functions_called
from export.given_towers.tower import GivenTower, open_tower
from export.model_code.factories import factory_of
from export.partition.lookups.activations import (
    Activations,
    PooledTable,
    plan_activations,
)
from export.partition.traceable_model import TraceableModel
from export.recipe.schema import INPUT_DTYPES, ExportJob, InputSection

_POOLINGS = ("sum", "mean")
_FIELDS = ("name", "num_embeddings", "embedding_dim", "feature_names", "pooling")
_EXPECTED = (
    "a factory for a checkpoint of PyTorch returns `tables, {name: file}`: tables with "
    f"{', '.join(_FIELDS)}, as TorchRec's EmbeddingBagConfig has them, and the file of each tower"
)


@dataclass(frozen=True)
class GivenTowers(TraceableModel):
    """The towers, by the names that the recipe's calls have.

    Attributes:
      towers: Towers by name; "" for a single tower.
      activations: The lookups of the features.
    """

    towers: Mapping[str, GivenTower]
    activations: Activations

    def function(self, call: Call) -> Callable[[Mapping[str, Any]], Any]:
        """See TraceableModel.function: the tower of the call's name, which takes no arguments."""
        if call.arguments is not None:
            raise UsageError(
                f"{call} is a tower in a file, which takes inputs by their names; leave "
                "'arguments' of its tower out"
            )
        name = call.path
        tower = self.towers[name]

        def run(inputs: Mapping[str, Any]) -> Any:
            tensors = self.activations.looked_up(inputs)
            for key, spec in tower.inputs.items():
                if key not in tensors:
                    raise UsageError(
                        f"tower {name!r} reads {key!r}, which its call does not have; the call has "
                        f"{', '.join(sorted(tensors))}: name features and inputs as the tower does"
                    )
                tensor = tensors[key]
                if tensor.dtype != spec.dtype or not spec.shape.is_compatible_with(tensor.shape):
                    raise UsageError(
                        f"tower {name!r} takes {key!r} as {_describe(spec)}, and its call gives "
                        f"{_describe(tensor)}: correct inputs.{key}, or name the table whose "
                        f"activations it takes among the tables, with {key!r} in feature_names"
                    )
            return tower(tensors)

        return run


def read_model_file(job: ExportJob, base: Path) -> GivenTowers:
    """Returns the towers that the recipe's factory describes.

    Raises:
      UsageError: There is no such factory or file, or no tower that the recipe calls.
      NotConvertible: The factory returns something else, or a tower cannot be read.
    """
    table_of, files = _described_towers(job, base)
    _check_weights(table_of, job)
    calls = dict.fromkeys(section.call for section in job.towers.values())
    towers = {
        call: open_tower(base / files[call], job.checkpoint.allow_non_finite) for call in calls
    }
    return GivenTowers(towers, plan_activations(table_of, job.inputs))


def tower_calls(job: ExportJob, base: Path) -> Iterator[OfferedCall]:
    """Yields the call of each tower that the recipe's factory describes; raises as
    `read_model_file`.
    """
    table_of, files = _described_towers(job, base)
    for name, file in files.items():
        if len(files) > 1 and not name:
            # The only tower has its own name, too.
            continue
        inputs: dict[str, InputSection] = {}
        for key, spec in open_tower(base / file, job.checkpoint.allow_non_finite).inputs.items():
            sizes = tuple(spec.shape.as_list()[1:])
            if key in table_of:
                inputs[key] = InputSection(dtype="int64", kind="ragged")
            elif spec.dtype.name in INPUT_DTYPES and None not in sizes:
                inputs[key] = InputSection(dtype=spec.dtype.name, shape=sizes)
        yield OfferedCall(name, inputs, tuple(key for key in inputs if key in table_of))


def _described_towers(job: ExportJob, base: Path) -> tuple[dict[str, PooledTable], dict[str, str]]:
    """Returns the table that each feature reads, and the file of each tower by its call."""
    reference = job.code.factory
    model = factory_of(job, base)()
    is_pair = isinstance(model, tuple) and len(model) == 2
    if not is_pair or not isinstance(model[1], Mapping):
        raise NotConvertible(
            f"factory {reference} returned a {type(model).__name__}, and PyTorch saved the "
            f"checkpoint; {_EXPECTED}"
        )
    tables, files = model
    files = functions_called(files, job, "towers")
    # Tables are checked before files are read, which may be large.
    return dict(_features(tables)), files


def _describe(tensor: Any) -> str:
    sizes = ["?" if size is None else size for size in tensor.shape.as_list()]
    return f"{tensor.dtype.name} [{', '.join(map(str, sizes))}]"


def _features(tables: Any) -> Iterator[tuple[str, PooledTable]]:
    """Yields each feature and the table that it reads."""
    if not isinstance(tables, (list, tuple)):
        raise NotConvertible(f"the tables are a {type(tables).__name__}; {_EXPECTED}")
    readers: dict[str, str] = {}
    for position, config in enumerate(tables):
        config_path = f"tables[{position}]"
        table = PooledTable(
            _field(config, "name", config_path, str, "a text"),
            _field(config, "num_embeddings", config_path, int, "an integer"),
            _field(config, "embedding_dim", config_path, int, "an integer"),
            _pooling(config, config_path),
        )
        for feature in _field(config, "feature_names", config_path, (list, tuple), "a list"):
            if feature in readers:
                raise NotConvertible(
                    f"{config_path}.feature_names has {feature!r}, which {readers[feature]} has, "
                    "too: give each feature a name of its own, in the recipe and in the tower"
                )
            readers[feature] = config_path
            yield feature, table


def _field(config: Any, name: str, config_path: str, kind: Any, expected: str) -> Any:
    value = _value(config, name)
    # A bool is an int of Python.
    if isinstance(value, kind) and not isinstance(value, bool):
        return value
    raise NotConvertible(f"{config_path}.{name} is {value!r}; {expected} was expected: {_EXPECTED}")


def _value(config: Any, name: str) -> Any:
    if isinstance(config, Mapping):
        return config.get(name)
    return getattr(config, name, None)


def _pooling(config: Any, config_path: str) -> Any:
    value = _value(config, "pooling")
    # TorchRec's PoolingType is an enumeration, whose values are the names.
    name = str(getattr(value, "value", value)).lower()
    if name not in _POOLINGS:
        raise NotConvertible(
            f"{config_path}.pooling is {value!r}; {' or '.join(_POOLINGS)} was expected: towers "
            "take one vector for each feature"
        )
    return name


def _check_weights(table_of: Mapping[str, PooledTable], job: ExportJob) -> None:
    """Checks that no feature of a table with pooling "mean" has weights."""
    for name, section in job.inputs.items():
        table = table_of.get(section.weights_for or "")
        if table is not None and table.combiner == "mean":
            raise NotConvertible(
                f"input {name!r} holds weights of {section.weights_for!r}, whose table "
                f"{table.name!r} has pooling 'mean': PyTorch divides such a sum by the number of "
                "ids and not by the sum of their weights, which a bundle cannot describe; train "
                "with pooling 'sum', or multiply the weights in the client"
            )
