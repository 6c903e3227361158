"""What makes a tower: which features and weights it needs, as frozen descriptions; without TensorFlow.

The user's model is partitioned at its embedding lookups (docs/adr/0002-lookups-are-extracted-while-tracing.md). What is
found is described here; the recipe turns it into manifest entries.
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
"""Of a vocabulary, in the order of the rows."""


@dataclass(frozen=True)
class TableFacts:
    """A table as the model declares it.

    Attributes:
      name: its name in the bundle: the TableConfig's, with what no file may be called replaced by `_`.
      config_name: the TableConfig's own name, by which checkpoints know it.
      rows: vocabulary size.
      dim: values in a row.
    """

    name: str
    config_name: str
    rows: int
    dim: int


@dataclass(frozen=True, kw_only=True, eq=False)
class LookupConfig:
    """How ids are read from a table, as the model itself does it.

    Attributes:
      kind: one id (single), a combined bag, or a sequence of vectors.
      encoding: how the model takes its ids; a dense sequence holds exactly `length` ids.
      combiner: of a bag.
      length: of a sequence; longer ones lose their end.
      rule: what the model itself does to ids before they are rows; None: the recipe states it.
      unknown: what the model itself does with ids outside the table; None: the recipe states it.
      keys: of each vocabulary that `rule` reads, as `vocabularies_of` gives them.
      padding: the id that only fills a dense tensor up, and is none.
      max_norm: which no row's norm exceeds when it is combined or handed on: longer ones are scaled.
      empty_row: of a bag, the row that it reads where nothing else is left in it.
      filler_row: of a sequence, the row that fills it up; None: zeros do.
      config: the FeatureConfig of an embedding layer, which no two calls need share.
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
      table: name of the table; "" of an indicator.
      weights: name of the input that holds a weight beside each id.
      ids_dtype: the input's dtype in the model's call.
      inputs: the inputs that its ids come from; (): the one of its own name.
      places: how many ids an example has room for, of a bag that the model takes as a dense tensor, or has, where
        `place` is given.
      place: which one of several ids of a dense input it reads.
      indicator: instead of a table, how many rows ids may have.
      ordinal: whether row r of its ids is the one number r.
      from_end: whether a row below 0 is counted from the table's end, if the recipe states no other rule.
      cast: how what is sent becomes integers before `rule`; None: it is what ids are.
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
        """Whether callers send one value for each example, if it is not one of several places."""
        return self.kind == "single" or isinstance(self.rule, manifest.TextIds)

    @property
    def plain(self) -> bool:
        """Whether its ids are the rows, taken from a dense input of integers as they are."""
        as_they_are = (self.rule, self.unknown, self.cast, self.place) == (None, None, None, None)
        integers = self.encoding == "dense" and self.ids_dtype in ("int32", "int64")
        return as_they_are and integers and len(self.reads) == 1

    def padding_of(self, name: str) -> int | str | None:
        """Returns what only fills one of its inputs up."""
        if isinstance(self.rule, manifest.CrossedIds):
            return self.rule.keys[self.reads.index(name)].padding
        return self.padding


@dataclass(frozen=True)
class DenseSpec:
    """One input of numbers or strings that goes into a tower as it is; `shape` is one example's.

    Attributes:
      input: the input that it is taken from; "": the one of its own name.
      take: its numbers, or of a bag how many ids it holds, the ids themselves or their weights, as in a manifest.
      below: where they are rows of a table inside the towers, how many rows that has.
      weights: of a bag, the input that its weights come from.
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
        """The input that it is taken from."""
        return (self.input or self.name,)


@dataclass(frozen=True)
class TowerSpec:
    """One tower.

    Attributes:
      name, role: as in the recipe.
      call: attribute path of what is called; "" is the model itself.
      call_inputs: names of the inputs that the original call takes.
      keys: output name -> key in what the original call returns; None: it returns one tensor.
      inputs: activations (of embedded features) and dense inputs, in the order of the traced function.
      outputs: named results.
      result: the output that is the vector or the score.
      variables: names of the dense variables that the tower reads.
      half: dtype of less than float32 that it computes in; "" if none.
      largest_bytes: of its largest variable.
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
        """What to do about a tower that computes in half precision, a clause of a message; "" if it does not."""
        if not self.half:
            return ""
        return (
            f"it computes in {self.half}, which LiteRT does not run and no two programs round alike: let the factory "
            "build the model under the policy 'float32' (its weights are float32 either way)"
        )


@dataclass(frozen=True)
class ModelSpec:
    """All that was found: tables and features that some tower needs, and the towers."""

    tables: Mapping[str, TableFacts]
    features: Mapping[str, FeatureSpec | DenseSpec]
    towers: Mapping[str, TowerSpec]

    @cached_property
    def inputs(self) -> dict[str, tuple[FeatureSpec | DenseSpec, ...]]:
        """What callers send, by name, with the features that read it; weights are sent with the ids they belong to."""
        found: dict[str, tuple[FeatureSpec | DenseSpec, ...]] = {}
        for spec in self.features.values():
            for name in dict.fromkeys(spec.reads):
                found[name] = (*found.get(name, ()), spec)
        return found

    def read_by(self, tower: TowerSpec) -> tuple[str, ...]:
        """Returns the inputs that a tower reads."""
        sources = [source for tensor in tower.inputs for source in tensor.sources]
        return tuple(dict.fromkeys(name for source in sources for name in self.features[source].reads))

    def rows_of(self, spec: FeatureSpec) -> int:
        """Returns how many rows a feature's ids may have."""
        return spec.indicator or self.tables[spec.table].rows

    def of(self, tower: str) -> ModelSpec:
        """Returns what one tower needs of the model."""
        taken = {source for tensor in self.towers[tower].inputs for source in tensor.sources}
        features = {name: spec for name, spec in self.features.items() if name in taken}
        read = {spec.table for spec in features.values() if isinstance(spec, FeatureSpec)}
        tables = {name: table for name, table in self.tables.items() if name in read}
        return ModelSpec(tables, features, {tower: self.towers[tower]})
