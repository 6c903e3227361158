"""Frozen descriptions of towers, their features and tables; without TensorFlow.

The user's model is partitioned at its embedding lookups
(docs/adr/0002-lookups-are-extracted-while-tracing.md). A feature has one description, its entry in
the manifest:

    TracedLookup            tensors of one call, and the rule of their ids; inside a front end
      | resolve_lookups
    entry of a spec         what the model determines
      | describe_features   adds what the recipe states: role, rule, unknown ids, default
    entry of the manifest   what copies, checks, SavedModels and the service read

`FeatureSpec` and `DenseSpec` hold the entry, and what only the exporter needs to know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from bundle.format import manifest
from bundle.format.features import Take
from bundle.format.id_graphs import OperationNode
from export.front_end.calls import Call
from export.front_end.outside_ids import UNDEFINED, OutsideIds

SIGNATURE = "serving_default"
"""The one signature of a tower's SavedModel and of its compiled forms."""

Kind = Literal["single", "bag", "sequence"]
Encoding = Literal["dense", "sparse", "ragged"]
Combiner = Literal["sum", "mean", "sqrtn"]
Keys = tuple[int, ...] | tuple[str, ...]
"""Keys of a vocabulary, in the order of the rows."""


def dense_name(name: str, take: Take) -> str:
    """Returns the name that the dense feature of an input has while the model is traced."""
    return f"{name}@{take}"


def is_dense_name(name: str) -> bool:
    """Returns whether the dense feature of some input may have this name."""
    return name.rpartition("@")[2] in get_args(Take)


@dataclass(frozen=True)
class TableFacts:
    """A table as the model declares it.

    Attributes:
      name: The table's name in the bundle: the TableConfig's, with characters that no file name may
        have replaced by `_`.
      config_name: The TableConfig's own name, which checkpoints use.
      rows: Number of rows, the size of the vocabulary.
      dim: Number of values in a row.
    """

    name: str
    config_name: str
    rows: int
    dim: int


@dataclass(frozen=True)
class FeatureSpec:
    """A feature that is looked up in a table, or an indicator.

    Attributes:
      name: The feature's name.
      entry: Its manifest entry as far as the model determines it; validated when the recipe
        completes it.
      weights: The input that holds a weight for each id.
      encoding: The kind of tensor that the model reads its ids from; a dense sequence holds exactly
        `entry.length` ids.
      ids_dtype: The input's dtype in the model's call.
      ids_max: For a bag that is a dense tensor, the maximum number of ids per example.
      has_rule: Whether the model itself computes rows from ids, by `entry.ids`; otherwise the
        recipe states the rule.
      has_unknown: Whether the model itself defines, by `entry.unknown`, what ids outside the table
        become; otherwise the recipe states it.
      outside: The model's treatment of ids that are no rows, where neither the model nor the recipe
        replaces them before the lookup.
      keys: The keys of each vocabulary that the rule reads, in the order of `lookup_tables_of`.
      config: The FeatureConfig of an embedding layer; calls need not share it.
    """

    name: str
    entry: manifest.EmbeddedFeature
    weights: str | None = None
    encoding: Encoding = "dense"
    ids_dtype: str = "int64"
    ids_max: int | None = None
    has_rule: bool = False
    has_unknown: bool = False
    outside: OutsideIds = UNDEFINED
    keys: tuple[Keys, ...] = ()
    config: Any = field(default=None, compare=False, repr=False)

    @property
    def reads(self) -> tuple[str, ...]:
        """The inputs that its ids come from."""
        return manifest.inputs_of(self.name, self.entry)

    @property
    def rule(self) -> manifest.IdRule | None:
        """The rule by which the model computes rows from ids; None if the recipe states it."""
        if not self.has_rule:
            return None
        return self.entry.ids

    @property
    def unknown(self) -> manifest.Unknown | None:
        """The model's rule for ids outside the table; None if the recipe states it."""
        if not self.has_unknown:
            return None
        return self.entry.unknown

    @property
    def computes_floats(self) -> bool:
        """Whether floats are on the way from its inputs to its rows."""
        for node in getattr(self.entry.ids, "nodes", ()):
            dtype = getattr(node, "dtype", "")
            if isinstance(node, OperationNode):
                dtype = node.attributes.get("DstT", "")
            if dtype.startswith("float") or node.op == "Bucketize":
                return True
        return False

    @property
    def plain(self) -> bool:
        """Whether its rows are the unchanged ids of a dense integer input."""
        has_computed_rows = self.has_unknown or self.entry.ids != manifest.IDENTITY
        has_integer_ids = self.encoding == "dense" and self.ids_dtype in ("int32", "int64")
        return has_integer_ids and self.entry.place is None and not has_computed_rows

    def padding_of(self, name: str) -> int | str | None:
        """Returns the padding of one of its inputs."""
        if self.entry.joint is not None:
            return self.entry.joint[self.reads.index(name)].padding
        return self.entry.padding


def embedded_entry(
    entries: Mapping[str, manifest.Feature], spec: FeatureSpec
) -> manifest.EmbeddedFeature:
    """Returns the entry of a feature, whether the model or the recipe states its rule."""
    entry = entries[spec.name]
    # The manifest's entry is written from this specification, and has its kind.
    assert isinstance(entry, manifest.EmbeddedFeature)  # noqa: S101
    return entry


@dataclass(frozen=True)
class DenseSpec:
    """A feature of numbers or strings that a tower reads directly.

    Attributes:
      name: The feature's name.
      entry: Its manifest entry as far as the model determines it; validated when the recipe
        completes it.
      weights: For a bag, the input of its weights.
      tables: The tables inside the towers whose ids the values are, by their `config_name`.
    """

    name: str
    entry: manifest.DenseFeature
    weights: str | None = None
    tables: tuple[str, ...] = field(default=(), compare=False)

    @property
    def reads(self) -> tuple[str, ...]:
        """The input that it comes from."""
        return manifest.inputs_of(self.name, self.entry)


def at_path(returned: Any, path: Iterable[str | int]) -> Any:
    """Returns an output of a tower.

    Args:
      returned: What the tower's call returned.
      path: Keys of dicts, and positions in lists and tuples and on the last axis of an array, from
        the outermost; none: the call returned one array.
    """
    for step in path:
        index: Any = step
        if not isinstance(returned, Mapping | list | tuple):
            index = (..., step)
        returned = returned[index]
    return returned


@dataclass(frozen=True)
class TowerSpec:
    """One tower.

    Attributes:
      name, role: The tower's name and role in the recipe.
      call: The original call.
      paths: The path of each output in the original call's result, as `at_path` takes it.
      inputs: Activations (of embedded features) and dense inputs, in the order of the traced
        function.
      outputs: The named results.
      result: Name of the output that is the vector or the score.
      variables: Names of the dense variables that the tower reads.
      half: Half-precision dtype that the tower computes in; "" if none.
      largest_bytes: Size of the tower's largest variable.
      is_query: Whether the result is what a retrieval layer of the call compares with its
        candidates, instead of what the call returns.
      clock, joining: Line and type of an operation that reads the clock, or joins examples of a
        batch; "" if the graph shows none.
    """

    name: str
    role: Literal["query", "candidate", "ranking"]
    call: Call
    paths: Mapping[str, tuple[str | int, ...]]
    inputs: tuple[manifest.TowerInput, ...]
    outputs: tuple[manifest.TowerOutput, ...]
    result: str
    variables: tuple[str, ...] = ()
    half: str = ""
    largest_bytes: int = 0
    clock: str = ""
    joining: str = ""
    is_query: bool = False

    @property
    def half_cure(self) -> str:
        """The remedy for a tower that computes in half precision, a clause of a message; "" if it
        does not.
        """
        if not self.half:
            return ""
        return (
            f"it computes in {self.half}, which LiteRT does not run and programs round "
            "differently: let the factory build the model under the policy 'float32' (its weights "
            "are float32 either way)"
        )


@dataclass(frozen=True)
class ModelSpec:
    """The towers of a model, and the tables and features that they need."""

    tables: Mapping[str, TableFacts]
    features: Mapping[str, FeatureSpec | DenseSpec]
    towers: Mapping[str, TowerSpec]

    @cached_property
    def inputs(self) -> dict[str, tuple[FeatureSpec | DenseSpec, ...]]:
        """Inputs that clients send, by name, with the features that read them; weights are sent
        with their ids.
        """
        readers: dict[str, tuple[FeatureSpec | DenseSpec, ...]] = {}
        for spec in self.features.values():
            # A cross may read one input twice.
            for name in dict.fromkeys(spec.reads):
                readers[name] = (*readers.get(name, ()), spec)
        return readers

    def read_by(self, tower: TowerSpec) -> tuple[str, ...]:
        """Returns the inputs that a tower reads."""
        # A dictionary as an ordered set: inputs stay in the order in which the tower takes them.
        names: dict[str, None] = {}
        for tensor in tower.inputs:
            for source in tensor.sources:
                names.update(dict.fromkeys(self.features[source].reads))
        return tuple(names)

    @cached_property
    def vocabularies(self) -> dict[str, Keys]:
        """The keys of the vocabularies that the model itself holds, by name, in the order of their
        rows.
        """
        vocabularies: dict[str, Keys] = {}
        for spec in self.features.values():
            if not isinstance(spec, FeatureSpec) or spec.rule is None:
                continue
            lookup_tables = manifest.lookup_tables_of(spec.rule)
            for table, keys in zip(lookup_tables, spec.keys, strict=True):
                vocabularies[table.vocabulary] = keys
        return vocabularies

    @cached_property
    def averages_texts(self) -> bool:
        """Whether a tower combines the words of a text."""
        return any(
            isinstance(spec, FeatureSpec) and spec.entry.kind == "bag" and spec.entry.split
            for spec in self.features.values()
        )

    def padding_of(self, name: str) -> int | str | None:
        """Returns the value that pads an input; None if no feature has one."""
        for spec in self.inputs.get(name, ()):
            if not isinstance(spec, FeatureSpec):
                continue
            padding = spec.padding_of(name)
            if padding is not None:
                return padding
        return None

    def rows_of(self, spec: FeatureSpec) -> int:
        """Returns the number of rows that a feature's ids may have."""
        return spec.entry.indicator or self.tables[spec.entry.table].rows

    @cached_property
    def roles(self) -> dict[str, str]:
        """The roles of the towers, by name."""
        return {name: tower.role for name, tower in self.towers.items()}

    def of(self, *towers: str) -> ModelSpec:
        """Returns the part of the model that some towers need."""
        specs = {name: self.towers[name] for name in towers}
        tensors = [tensor for spec in specs.values() for tensor in spec.inputs]
        sources = {source for tensor in tensors for source in tensor.sources}
        features = {name: spec for name, spec in self.features.items() if name in sources}
        table_names = {
            spec.entry.table for spec in features.values() if isinstance(spec, FeatureSpec)
        }
        tables = {name: table for name, table in self.tables.items() if name in table_names}
        return ModelSpec(tables, features, specs)
