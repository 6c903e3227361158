"""The graph of a self-contained SavedModel: raw ids in, the towers' results out, lookups inside, no
table's value.

Each tower becomes one signature: the results of its `lookups` go into the tower as it was cut.
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
from export.saved_model.lookups import InlineLookups
from tensors.signatures import default_tower


@dataclass(frozen=True)
class InlineGraph:
    """The traced graph, before it is written.

    Attributes:
      lookups: The lookups of all towers, by the module's tables.
      module: The module that TensorFlow saves.
      signatures: Signatures by their names.
      inputs: Names of the tensors that carry an input, by signature and input of the recipe.
      tables: Key in the checkpoint of each stored table, by the attribute of its variable.
      weights: The towers' own variables, by their attributes.
    """

    lookups: InlineLookups
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
      job, base, traced, entries: The recipe, its folder, its model and the description of its
        features.
      tables: The checkpoint's specification of each table.

    Raises:
      UsageError: Inputs of the recipe cannot be distinguished in a signature.
      NotConvertible: An input is read in ways that require different dtypes.
    """
    module = tf.Module(name=job.model)
    stored = _create_stored_variables(tables.values())
    weights = {
        f"weight_{number}": variable
        for number, variable in enumerate(_distinct_variables(traced.towers))
    }
    for attribute, variable in {**stored.variables, **weights}.items():
        setattr(module, attribute, variable)

    # TensorFlow saves a lookup table only if the module has it as an attribute.
    vocabularies = _vocabularies(job, base, traced, entries)
    module.vocabularies = list(vocabularies.values())
    module.tables = [table for tower in traced.towers for table in tables_of(tower.function)]

    def gather(table: str, rows: Any) -> Any:
        attribute = stored.attributes[tables[table].key]
        return tf.gather(stored.variables[attribute], rows)

    lookups = InlineLookups(job, traced, entries, tables, vocabularies, gather)
    signatures = {}
    inputs = {}
    for tower in traced.towers:
        name = tower.spec.name
        signatures[name], inputs[name] = _signature(tower, lookups)

    # Servers and clients of TensorFlow call the signature `serving_default` if they name none.
    default_signature = job.output.serving_default or default_tower(
        traced.spec.roles, {stage.tower for stage in job.stages.values()}
    )
    if default_signature not in signatures:
        raise UsageError(
            f"output.serving_default is {default_signature!r}; the recipe's towers: "
            f"{', '.join(signatures)}"
        )
    signatures[SIGNATURE] = signatures[default_signature]
    inputs[SIGNATURE] = inputs[default_signature]

    keys = {attribute: key for key, attribute in stored.attributes.items()}
    return InlineGraph(lookups, module, signatures, inputs, keys, weights)


class _StoredVariables(NamedTuple):
    """The variables of stored tables, by attribute, and the attribute of each stored key."""

    variables: dict[str, Any]
    attributes: dict[str, str]


def _create_stored_variables(tables: Iterable[TableSpec]) -> _StoredVariables:
    """Creates a variable without memory for each stored table; tables of a stack share one."""
    stored = _StoredVariables({}, {})
    for spec in tables:
        # The variable of a stack, which a table before this one named.
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
      DestinationError: The directory cannot be written.
    """
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    try:
        save_without_variables(graph.module, str(directory), dict(graph.signatures))
    except (OSError, tf.errors.OpError) as problem:
        raise DestinationError(
            f"the SavedModel cannot be written to {directory}: {problem}"
        ) from problem

    # The node of the module, and one child for each variable, with the key of its value.
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
    model_keys = traced.spec.vocabularies
    used_names: set[str] = set()
    for entry in entries.values():
        if isinstance(entry, manifest.EmbeddedFeature):
            used_names.update(table.vocabulary for table in manifest.lookup_tables_of(entry.ids))

    vocabularies = {}
    for name in sorted(used_names):
        # The model holds some vocabularies itself; the recipe names files of all others.
        if name in model_keys:
            vocabularies[name] = _positions_of_keys(model_keys[name])
        else:
            vocabularies[name] = positions_in_file(job.vocabularies[name], base)
    return vocabularies


def _positions_of_keys(keys: Keys) -> Any:
    is_text = bool(keys) and isinstance(keys[0], str)
    key_tensor = tf.constant(keys, tf.string if is_text else tf.int64)
    positions = tf.range(len(keys), dtype=tf.int64)
    initializer = tf.lookup.KeyValueTensorInitializer(key_tensor, positions)
    return tf.lookup.StaticHashTable(initializer, -1)


def _signature(
    tower: TracedTower, lookups: InlineLookups
) -> tuple[Any, dict[str, tuple[str, ...]]]:
    """Traces one tower on raw inputs; a ragged or sparse one is several tensors, with the names
    that TensorFlow gives them.
    """
    sections = lookups.inputs_of(tower)
    # Names of the recipe may hold characters that no parameter of Python can have.
    names = distinct_identifiers(sections)
    specs = {names[name]: input_spec(section) for name, section in sections.items()}
    inputs = {name: _tensor_names(names[name], section) for name, section in sections.items()}
    tensor_names = [tensor for tensors in inputs.values() for tensor in tensors]
    if len(set(tensor_names)) < len(tensor_names):
        repeated_name = next(tensor for tensor in tensor_names if tensor_names.count(tensor) > 1)
        raise UsageError(
            f"tower {tower.spec.name!r}: two inputs need a tensor {repeated_name!r} (a ragged "
            "input NAME is sent as NAME and NAME_1, a sparse one as NAME, NAME_1 and NAME_2); "
            "rename one in the model and the recipe"
        )

    def serve(**tensors: Any) -> dict[str, Any]:
        return lookups.run(tower, {name: tensors[names[name]] for name in sections})

    return tf.function(serve, autograph=False).get_concrete_function(**specs), inputs


def _tensor_names(name: str, section: InputSection) -> tuple[str, ...]:
    """Returns the names of an input's tensors: values and row splits of a ragged input, indices,
    values and shape of a sparse input.
    """
    count = {"dense": 1, "ragged": 2, "sparse": 3}[section.kind]
    return (name, *(f"{name}_{number}" for number in range(1, count)))


def _distinct_variables(towers: Iterable[TracedTower]) -> list[Any]:
    """Returns the variables of towers, each once: towers may share them."""
    variables = {}
    for tower in towers:
        for variable in tower.variables:
            variables[resource(variable.handle)] = variable
    return list(variables.values())
