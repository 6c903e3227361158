"""What the user's model file says of tables and towers of PyTorch; it needs no library:

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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export.errors import NotConvertible, UsageError
from export.front_end.calls import Call
from export.given_towers.tower import GivenTower, open_tower
from export.graphs.loading import tf
from export.model_code.factories import factory_of
from export.recipe.schema import ExportJob
from export.tensorflow_models.lookups.activations import (
    Activations,
    PooledTable,
    plan_activations,
)

_POOLINGS = ("sum", "mean")
_FIELDS = ("name", "num_embeddings", "embedding_dim", "feature_names", "pooling")
_EXPECTED = (
    "a factory for a checkpoint of PyTorch returns `tables, {name: file}`: tables with "
    f"{', '.join(_FIELDS)}, as TorchRec's EmbeddingBagConfig has them, and the file of each tower"
)


@dataclass(frozen=True)
class GivenTowers:
    """The towers as attributes, by the names that the recipe's calls have.

    Attributes:
      towers: by name; "" where there is only one.
      activations: how features are looked up.
    """

    towers: Mapping[str, GivenTower]
    activations: Activations

    def __getattr__(self, name: str) -> Any:
        towers = self.__dict__.get("towers", {})
        if name not in towers:
            raise AttributeError(name)
        return self

    def with_call(self, call: Call) -> Any:
        """Returns what a call runs: the tower of its name, with inputs by their names.

        Raises:
          UsageError: the recipe states arguments.
        """
        if call.arguments is not None:
            raise UsageError(
                f"{call} is a tower in a file, which takes inputs by their names; leave "
                "'arguments' of its tower out"
            )
        return self._tower(call.path)

    def _tower(self, name: str) -> Any:
        tower = self.towers[name]

        def call(inputs: Mapping[str, Any]) -> Any:
            found = self.activations.looked_up(inputs)
            for key, spec in tower.inputs.items():
                if key not in found:
                    raise UsageError(
                        f"tower {name!r} takes {key!r}, which its call is not given; it is given "
                        f"{', '.join(sorted(found))}: name features and inputs as the tower does"
                    )
                given = found[key]
                if given.dtype != spec.dtype or not spec.shape.is_compatible_with(given.shape):
                    raise UsageError(
                        f"tower {name!r} takes {key!r} as {_described(spec)}, and its call gives "
                        f"{_described(given)}: correct inputs.{key}, or name the table whose "
                        f"activations it takes among the tables, with {key!r} in feature_names"
                    )
            return tower(found)

        return tf.autograph.experimental.do_not_convert(call)


def read_model_file(job: ExportJob, base: Path) -> GivenTowers:
    """Returns what the recipe's factory describes.

    Raises:
      UsageError: there is no such factory or file, or no tower that the recipe calls.
      NotConvertible: it returns something else, or a tower cannot be read.
    """
    reference = job.code.factory
    made = factory_of(job, base)()
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], Mapping)):
        raise NotConvertible(
            f"factory {reference} returned a {type(made).__name__}, and PyTorch saved the "
            f"checkpoint; {_EXPECTED}"
        )
    tables, files = made
    for name, part in job.towers.items():
        if part.call not in files:
            known = ", ".join(repr(each) for each in files)
            raise UsageError(
                f"towers.{name}.call is {part.call!r}; factory {reference} returned the towers "
                f"{known}"
            )
    table_of = dict(_features(tables))
    _check_weights(table_of, job)
    towers = {
        name: open_tower(base / file, job.checkpoint.allow_non_finite)
        for name, file in files.items()
    }
    return GivenTowers(towers, plan_activations(table_of, job.inputs))


def _described(tensor: Any) -> str:
    sizes = ["?" if size is None else size for size in tensor.shape.as_list()]
    return f"{tensor.dtype.name} [{', '.join(map(str, sizes))}]"


def _features(tables: Any) -> Iterator[tuple[str, PooledTable]]:
    """Yields each feature and the table that it reads."""
    if not isinstance(tables, (list, tuple)):
        raise NotConvertible(f"the tables are a {type(tables).__name__}; {_EXPECTED}")
    read: dict[str, str] = {}
    for place, config in enumerate(tables):
        where = f"tables[{place}]"
        table = PooledTable(
            _field(config, "name", where, str, "a text"),
            _field(config, "num_embeddings", where, int, "an integer"),
            _field(config, "embedding_dim", where, int, "an integer"),
            _pooling(config, where),
        )
        for feature in _field(config, "feature_names", where, (list, tuple), "a list"):
            if feature in read:
                raise NotConvertible(
                    f"{where}.feature_names has {feature!r}, which {read[feature]} has, too: give "
                    "each feature a name of its own, in the recipe and in the tower"
                )
            read[feature] = where
            yield feature, table


def _field(config: Any, name: str, where: str, kind: Any, wanted: str) -> Any:
    value = _value(config, name)
    if isinstance(value, kind) and not isinstance(value, bool):
        return value
    raise NotConvertible(f"{where}.{name} is {value!r}; {wanted} was expected: {_EXPECTED}")


def _value(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def _pooling(config: Any, where: str) -> Any:
    value = _value(config, "pooling")
    name = str(getattr(value, "value", value)).lower()
    if name not in _POOLINGS:
        raise NotConvertible(
            f"{where}.pooling is {value!r}; {' or '.join(_POOLINGS)} was expected: towers take one "
            "vector for each feature"
        )
    return name


def _check_weights(table_of: Mapping[str, PooledTable], job: ExportJob) -> None:
    for name, part in job.inputs.items():
        table = table_of.get(part.weights_for or "")
        if table is not None and table.combiner == "mean":
            raise NotConvertible(
                f"input {name!r} holds weights of {part.weights_for!r}, whose table "
                f"{table.name!r} has pooling 'mean': PyTorch divides such a sum by the number of "
                "ids and not by the sum of their weights, which a bundle cannot describe; train "
                "with pooling 'sum', or multiply the weights in the client"
            )
