"""Frozen descriptions of towers, their features and tables; without TensorFlow.

The user's model is partitioned at its embedding lookups
(docs/adr/0002-lookups-are-extracted-while-tracing.md). A feature has one description, its entry in
the manifest:

    Lookup, ResolvedIds     tensors of one call, and the rule of their ids; inside a front end
      | resolve_lookups
    entry of a spec         what the model determines
      | describe_features   adds what the recipe states: role, rule, unknown ids, default
    entry of the manifest   what copies, checks, SavedModels and the service read

`FeatureSpec` and `DenseSpec` hold the entry beside what only the exporter needs to know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from bundle.format import manifest
from export.front_end.calls import Call
from export.front_end.outside_ids import UNDEFINED, OutsideIds

SIGNATURE = "serving_default"
"""The one signature of a tower's SavedModel and of its compiled forms."""

Kind = Literal["single", "bag", "sequence"]
Encoding = Literal["dense", "sparse", "ragged"]
Combiner = Literal["sum", "mean", "sqrtn"]
Keys = tuple[int, ...] | tuple[str, ...]
"""Keys of a vocabulary, in the order of the rows."""


@dataclass(frozen=True)
class TableFacts:
    """A table as the model declares it.

    Attributes:
      name: its name in the bundle: the TableConfig's, with characters that no file name may have
        replaced by `_`.
      config_name: the TableConfig's own name, which checkpoints use.
      rows: vocabulary size.
      dim: values in a row.
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
      encoding: How the model takes its ids; a dense sequence holds exactly `entry.length` ids.
      ids_dtype: The input's dtype in the model's call.
      ids_max: For a bag that is a dense tensor, the maximum number of ids per example.
      has_rule: Whether the model itself computes rows from ids, by `entry.ids`; otherwise the
        recipe states the rule.
      has_unknown: Whether the model itself defines, by `entry.unknown`, what ids outside the table
        become; otherwise the recipe states it.
      outside: What the model's lookup reads for ids that are no rows, where neither the model nor
        the recipe replaces them before.
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
        """How the model computes rows from ids; None if the recipe states it."""
        return self.entry.ids if self.has_rule else None

    @property
    def unknown(self) -> manifest.Unknown | None:
        """What the model does with ids outside the table; None if the recipe states it."""
        return self.entry.unknown if self.has_unknown else None

    @property
    def plain(self) -> bool:
        """Whether its rows are the unchanged ids of a dense integer input."""
        computed = self.has_unknown or not isinstance(self.entry.ids, manifest.IdentityIds)
        integers = self.encoding == "dense" and self.ids_dtype in ("int32", "int64")
        return integers and self.entry.place is None and not computed

    def padding_of(self, name: str) -> int | str | None:
        """Returns the padding of one of its inputs."""
        rule = self.entry.ids
        if isinstance(rule, manifest.CrossedIds):
            return rule.keys[self.reads.index(name)].padding
        return self.entry.padding


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


@dataclass(frozen=True)
class TowerSpec:
    """One tower.

    Attributes:
      name, role: as in the recipe.
      call: the original call.
      keys: output name -> key or position in the original call's result; None: it returns one
        tensor.
      inputs: activations (of embedded features) and dense inputs, in the order of the traced
        function.
      outputs: named results.
      result: the output that is the vector or the score.
      variables: names of the dense variables that the tower reads.
      half: half-precision dtype that it computes in; "" if none.
      largest_bytes: size of its largest variable.
      is_query: whether the result is what a retrieval layer of the call compares with its
        candidates, instead of what the call returns.
      random, clock, joining: an operation that draws random numbers, reads the clock, or joins
        examples of a batch, as far as a graph tells: line and type; "": none was found.
    """

    name: str
    role: Literal["query", "candidate", "ranking"]
    call: Call
    keys: Mapping[str, str | int | None]
    inputs: tuple[manifest.TowerInput, ...]
    outputs: tuple[manifest.TowerOutput, ...]
    result: str
    variables: tuple[str, ...] = ()
    half: str = ""
    largest_bytes: int = 0
    random: str = ""
    clock: str = ""
    joining: str = ""
    is_query: bool = False

    @property
    def half_cure(self) -> str:
        """What to do about a tower that computes in half precision, a clause of a message; "" if it
        does not.
        """
        if not self.half:
            return ""
        return (
            f"it computes in {self.half}, which LiteRT does not run and programs round "
            "differently: let the factory "
            "build the model under the policy 'float32' (its weights are float32 either way)"
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
        found: dict[str, tuple[FeatureSpec | DenseSpec, ...]] = {}
        for spec in self.features.values():
            for name in dict.fromkeys(spec.reads):
                found[name] = (*found.get(name, ()), spec)
        return found

    def read_by(self, tower: TowerSpec) -> tuple[str, ...]:
        """Returns the inputs that a tower reads."""
        sources = [source for tensor in tower.inputs for source in tensor.sources]
        return tuple(
            dict.fromkeys(name for source in sources for name in self.features[source].reads)
        )

    @cached_property
    def vocabularies(self) -> dict[str, Keys]:
        """The keys of the vocabularies that the model itself holds, by name, in the order of their
        rows.
        """
        return {
            table.vocabulary: keys
            for spec in self.features.values()
            if isinstance(spec, FeatureSpec) and spec.rule is not None
            for table, keys in zip(manifest.lookup_tables_of(spec.rule), spec.keys, strict=True)
        }

    def padding_of(self, name: str) -> int | str | None:
        """Returns what only fills an input up; None: nothing is known to."""
        for spec in self.inputs.get(name, ()):
            padding = spec.padding_of(name) if isinstance(spec, FeatureSpec) else None
            if padding is not None:
                return padding
        return None

    def rows_of(self, spec: FeatureSpec) -> int:
        """Returns how many rows a feature's ids may have."""
        return spec.entry.indicator or self.tables[spec.entry.table].rows

    def of(self, tower: str) -> ModelSpec:
        """Returns the part of the model that one tower needs."""
        taken = {source for tensor in self.towers[tower].inputs for source in tensor.sources}
        features = {name: spec for name, spec in self.features.items() if name in taken}
        read = {spec.entry.table for spec in features.values() if isinstance(spec, FeatureSpec)}
        tables = {name: table for name, table in self.tables.items() if name in read}
        return ModelSpec(tables, features, {tower: self.towers[tower]})
