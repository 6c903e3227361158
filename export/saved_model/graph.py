"""The graph of a self-contained SavedModel: raw ids in, the towers' results out, lookups inside, no
table's value.

Each tower becomes one signature: what `lookups` answers goes into the tower as it was cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bundle.format import manifest
from bundle.format.identifiers import distinct_identifiers
from export.checkpoint.inventory.specs import TableSpec
from export.errors import DestinationError, UsageError
from export.front_end.interface import PartitionedModel, TracedTower
from export.front_end.specs import SIGNATURE, Keys
from export.graphs.functions import tables_of
from export.graphs.internals import save_without_variables, variable_class
from export.graphs.loading import tf
from export.graphs.tensors import input_spec
from export.graphs.walks import resource
from export.id_graphs.tensorflow_operations import positions_in_file
from export.recipe.schema import ExportJob, InputSection
from export.saved_model.lookups import Lookups


@dataclass(frozen=True)
class InlineGraph:
    """What was traced, before it is written.

    Attributes:
      lookups: of all towers, by the module's tables.
      module: what TensorFlow saves.
      signatures: by their names.
      inputs: signature -> input of the recipe -> names of the tensors that carry it.
      tables: the variable of each stored table, by its attribute.
      weights: the towers' own variables, by their attributes.
    """

    lookups: Lookups
    module: Any
    signatures: Mapping[str, Any]
    inputs: Mapping[str, Mapping[str, tuple[str, ...]]]
    tables: Mapping[str, str]
    weights: Mapping[str, Any]


def build_graph(
    job: ExportJob,
    base: Path,
    traced: PartitionedModel,
    entries: Mapping[str, manifest.Feature],
    tables: Mapping[str, TableSpec],
) -> InlineGraph:
    """Traces one signature for each tower; allocates no table.

    Args:
      job, base, traced, entries: the recipe, its folder, its model and the description of its
        features.
      tables: where the checkpoint stores each table.
    Raises:
      UsageError: inputs of the recipe cannot be told apart in a signature.
      NotConvertible: an input is read in ways that ask for different dtypes.
    """
    module = tf.Module(name=job.model)
    stored = _stored_tables(tables.values())
    weights = {
        f"weight_{number}": variable for number, variable in enumerate(_distinct(traced.towers))
    }
    for attribute, variable in {**stored.variables, **weights}.items():
        setattr(module, attribute, variable)
    known = _vocabularies(job, base, traced, entries)
    module.vocabularies = list(known.values())
    module.tables = [table for tower in traced.towers for table in tables_of(tower.function)]

    def gather(table: str, rows: Any) -> Any:
        attribute = stored.attributes[tables[table].key]
        return tf.gather(stored.variables[attribute], rows)

    lookups = Lookups(job, traced, entries, tables, known, gather)
    signatures = {}
    inputs = {}
    for tower in traced.towers:
        name = tower.spec.name
        signatures[name], inputs[name] = _signature(tower, lookups)
    default = job.output.serving_default or next(iter(signatures))
    if default not in signatures:
        raise UsageError(
            f"output.serving_default is {default!r}; the recipe's towers: {', '.join(signatures)}"
        )
    signatures[SIGNATURE] = signatures[default]
    inputs[SIGNATURE] = inputs[default]
    keys = {attribute: key for key, attribute in stored.attributes.items()}
    return InlineGraph(lookups, module, signatures, inputs, keys, weights)


class _Stored(NamedTuple):
    """The variables of stored tables, by attribute, and the attribute of each stored key."""

    variables: dict[str, Any]
    attributes: dict[str, str]


def _stored_tables(tables: Iterable[TableSpec]) -> _Stored:
    """Makes a variable without memory for each stored table; tables of a stack share one."""
    stored = _Stored({}, {})
    for spec in tables:
        if spec.key in stored.attributes:
            continue
        attribute = f"table_{len(stored.variables)}"
        dtype = tf.as_dtype(spec.dtype)
        stored.attributes[spec.key] = attribute
        stored.variables[attribute] = variable_class()(
            shape=spec.stored, dtype=dtype, trainable=False, name=attribute
        )
    return stored


def write_graph(graph: InlineGraph, directory: Path) -> bytes:
    """Writes `saved_model.pb` and `assets/`, and no variable.

    Returns:
      The object graph that the variables' checkpoint must hold, a TrackableObjectGraph.
    Raises:
      DestinationError: the directory cannot be written.
    """
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    try:
        save_without_variables(graph.module, str(directory), dict(graph.signatures))
    except (OSError, tf.errors.OpError) as problem:
        raise DestinationError(
            f"the SavedModel cannot be written to {directory}: {problem}"
        ) from problem
    objects = TrackableObjectGraph()
    root = objects.nodes.add()
    for attribute in (*graph.tables, *graph.weights):
        root.children.add(node_id=len(objects.nodes), local_name=attribute)
        variable = objects.nodes.add()
        variable.attributes.add(
            name="VARIABLE_VALUE", full_name=attribute, checkpoint_key=variable_key(attribute)
        )
    return bytes(objects.SerializeToString(deterministic=True))


def variable_key(attribute: str) -> str:
    """Returns the key of a variable that is an attribute of the module."""
    return f"{attribute}/.ATTRIBUTES/VARIABLE_VALUE"


def _vocabularies(
    job: ExportJob, base: Path, traced: PartitionedModel, entries: Mapping[str, manifest.Feature]
) -> dict[str, Any]:
    """Returns TensorFlow's lookup tables, key -> position, -1 if unknown, of all vocabularies that
    features read.
    """
    held = traced.spec.vocabularies
    embedded = [entry for entry in entries.values() if isinstance(entry, manifest.EmbeddedFeature)]
    used = {
        table.vocabulary for entry in embedded for table in manifest.lookup_tables_of(entry.ids)
    }
    return {
        name: _held(held[name]) if name in held else positions_in_file(job.vocabularies[name], base)
        for name in sorted(used)
    }


def _held(keys: Keys) -> Any:
    known = tf.constant(keys, tf.string if keys and isinstance(keys[0], str) else tf.int64)
    positions = tf.range(len(keys), dtype=tf.int64)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(known, positions), -1)


def _signature(tower: TracedTower, lookups: Lookups) -> tuple[Any, dict[str, tuple[str, ...]]]:
    """Traces one tower on raw inputs; a ragged or sparse one is several tensors, called as
    TensorFlow calls them.
    """
    parts = lookups.parts(tower)
    names = distinct_identifiers(parts)
    specs = {names[name]: input_spec(part) for name, part in parts.items()}
    inputs = {name: _tensor_names(names[name], part) for name, part in parts.items()}
    taken = [each for tensors in inputs.values() for each in tensors]
    if len(set(taken)) < len(taken):
        twice = next(each for each in taken if taken.count(each) > 1)
        raise UsageError(
            f"tower {tower.spec.name!r}: two inputs need a tensor {twice!r} (a ragged input NAME "
            "is sent as NAME and "
            "NAME_1, a sparse one as NAME, NAME_1 and NAME_2); rename one in the model and the "
            "recipe"
        )

    def serve(**inputs: Any) -> dict[str, Any]:
        return lookups.run(tower, {name: inputs[names[name]] for name in parts})

    return tf.function(serve, autograph=False).get_concrete_function(**specs), inputs


def _tensor_names(name: str, part: InputSection) -> tuple[str, ...]:
    """Returns the tensors of an input: values and row splits of a ragged one, indices, values and
    shape of a sparse.
    """
    count = {"dense": 1, "ragged": 2, "sparse": 3}[part.kind]
    return (name, *(f"{name}_{number}" for number in range(1, count)))


def _distinct(towers: Iterable[TracedTower]) -> list[Any]:
    return list(
        {
            resource(variable.handle): variable for tower in towers for variable in tower.variables
        }.values()
    )
