"""Frozen descriptions of towers, their features and tables; without TensorFlow.

The user's model is partitioned at its embedding lookups
(docs/adr/0002-lookups-are-extracted-while-tracing.md). The recipe completes these descriptions to
manifest entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from bundle.format import manifest

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


@dataclass(frozen=True, kw_only=True, eq=False)
class LookupConfig:
    """How the model looks up ids in a table.

    Attributes:
      kind: one id (single), a combined bag, or a sequence of vectors.
      encoding: how the model takes its ids; a dense sequence holds exactly `length` ids.
      combiner: the combiner of a bag.
      length: the length of a sequence; longer ones are truncated.
      rule: how the model computes rows from ids; None: the recipe states it.
      unknown: what the model does with ids outside the table; None: the recipe states it.
      keys: the keys of each vocabulary that `rule` reads, in the order of `vocabularies_of`.
      padding: the id that marks padding in a dense tensor.
      max_norm: the largest norm of a row; rows with a larger norm are scaled.
      empty_row: for a bag, the row that an empty one reads.
      filler_row: for a sequence, the row that pads it; None: zeros.
      config: the FeatureConfig of an embedding layer; calls need not share it.
    """

    kind: Kind = "single"
    encoding: Encoding = "dense"
    combiner: Combiner | None = None
    length: int | None = None
    rule: manifest.IdRule | None = None
    unknown: manifest.Unknown | None = None
    keys: tuple[Keys, ...] = ()
    padding: int | str | None = None
    max_norm: float | None = None
    empty_row: int | None = None
    filler_row: int | None = None
    config: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class FeatureSpec(LookupConfig):
    """One input of the model that is looked up in a table.

    Attributes:
      name: the input's name.
      table: name of the table; "" for an indicator.
      weights: name of the input that holds a weight for each id.
      ids_dtype: the input's dtype in the model's call.
      inputs: the inputs that its ids come from; (): the one of its own name.
      places: the maximum number of ids per example of a bag that is a dense tensor, or their number
        with `place`.
      place: the position of its id among several of a dense input.
      indicator: instead of a table, the number of rows.
      ordinal: whether an id of row r becomes the single number r.
      from_end: whether negative rows count from the table's end, unless the recipe states another
        rule.
      cast: how raw values become integers before `rule`; None: they are not cast.
    """

    name: str
    table: str
    weights: str | None = None
    ids_dtype: str = "int64"
    inputs: tuple[str, ...] = ()
    places: int | None = None
    place: int | None = None
    indicator: int | None = None
    cast: manifest.Cast | None = None
    ordinal: bool = False
    from_end: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """The inputs that its ids come from."""
        return self.inputs or (self.name,)

    @property
    def one_each(self) -> bool:
        """Whether clients send one value per example, apart from `place`."""
        return self.kind == "single" or isinstance(self.rule, manifest.TextIds)

    @property
    def plain(self) -> bool:
        """Whether its rows are the unchanged ids of a dense integer input."""
        as_they_are = (self.rule, self.unknown, self.cast, self.place) == (None, None, None, None)
        integers = self.encoding == "dense" and self.ids_dtype in ("int32", "int64")
        return as_they_are and integers and len(self.reads) == 1

    def padding_of(self, name: str) -> int | str | None:
        """Returns the padding of one of its inputs."""
        if isinstance(self.rule, manifest.CrossedIds):
            return self.rule.keys[self.reads.index(name)].padding
        return self.padding


@dataclass(frozen=True)
class DenseSpec:
    """One input of numbers or strings that a tower reads directly; `shape` is that of one example.

    Attributes:
      input: the input that it comes from; "": the one of its own name.
      take: its numbers, or for a bag its lengths, ids or weights, as in a manifest.
      below: the number of rows of the table inside the towers that it indexes, if it does.
      weights: for a bag, the input of its weights.
    """

    name: str
    dtype: Literal["float32", "int32", "int64", "string"]
    shape: tuple[int, ...]
    input: str = ""
    take: Literal["values", "lengths", "padded", "weights"] = "values"
    below: int | None = None
    weights: str | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """The input that it comes from."""
        return (self.input or self.name,)


@dataclass(frozen=True)
class TowerSpec:
    """One tower.

    Attributes:
      name, role: as in the recipe.
      call: attribute path of the call; "" is the model itself.
      call_inputs: names of the inputs that the original call takes.
      keys: output name -> key in the original call's result; None: it returns one tensor.
      inputs: activations (of embedded features) and dense inputs, in the order of the traced
        function.
      outputs: named results.
      result: the output that is the vector or the score.
      variables: names of the dense variables that the tower reads.
      half: half-precision dtype that it computes in; "" if none.
      largest_bytes: size of its largest variable.
    """

    name: str
    role: Literal["query", "candidate", "ranking"]
    call: str
    call_inputs: tuple[str, ...]
    keys: Mapping[str, str | None]
    inputs: tuple[manifest.TowerInput, ...]
    outputs: tuple[manifest.TowerOutput, ...]
    result: str
    variables: tuple[str, ...] = ()
    half: str = ""
    largest_bytes: int = 0

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
            rule.vocabulary: keys
            for spec in self.features.values()
            if isinstance(spec, FeatureSpec) and spec.rule is not None
            for rule, keys in zip(manifest.vocabularies_of(spec.rule), spec.keys, strict=True)
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
        return spec.indicator or self.tables[spec.table].rows

    def of(self, tower: str) -> ModelSpec:
        """Returns the part of the model that one tower needs."""
        taken = {source for tensor in self.towers[tower].inputs for source in tensor.sources}
        features = {name: spec for name, spec in self.features.items() if name in taken}
        read = {spec.table for spec in features.values() if isinstance(spec, FeatureSpec)}
        tables = {name: table for name, table in self.tables.items() if name in read}
        return ModelSpec(tables, features, {tower: self.towers[tower]})
