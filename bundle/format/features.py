"""Manifest entries that describe features: what callers send, and how it becomes an activation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, model_validator

from bundle.format.fields import Count, Length, Name, Positive, StrictModel
from bundle.format.id_graphs import IDENTITY, GraphIds, InputDtype, InputNode
from bundle.format.ids import IdRule, KeyedIds
from bundle.format.input_lengths import InputLength

Role = Literal["context", "candidate"]
Take = Literal["values", "lengths", "padded", "weights"]
"""What a dense feature takes of its input; see `DenseFeature.take`."""


class Unknown(StrictModel):
    """What happens with an id that has no row in the table.

    zeros: the id contributes nothing. The vector of a single feature is zeros; a bag omits the id,
    as the sparse lookup of TensorFlow omits negative ids; a sequence has zeros at its position.
    row: the id reads the row `row`. refuse: the request fails.
    """

    rule: Literal["zeros", "row", "refuse"] = Field(
        default="zeros", description="Which of the three."
    )
    row: Count | None = Field(
        default=None, description="Row that unknown ids read. Required with the rule `row`."
    )

    @model_validator(mode="after")
    def _row_given(self) -> Unknown:
        if (self.rule == "row") != (self.row is not None):
            raise ValueError("'row' is given with rule 'row', and only then")
        return self


class JointInput(StrictModel):
    """One of several inputs that the ids of a feature are computed from."""

    role: Role = "context"
    """The role of the input. The feature belongs to the candidate as soon as one input does."""
    default: Any = None
    """The default of the input, like a feature's `default`."""
    input_length: InputLength | None = None
    """The length of the input, like a feature's `input_length`."""
    padding: int | str | None = None
    """The value that a cross leaves out, like a feature's `padding`."""


class EmbeddedFeature(StrictModel):
    """A feature that reads one table with one combiner, or is an indicator."""

    kind: Literal["single", "bag", "sequence"]
    table: Name | Literal[""]
    """"" of an indicator, which reads none."""
    role: Role
    inputs: tuple[str, ...] = ()
    """What callers send, by name; (): one input of the feature's own name. Several features may
    read one input."""
    joint: tuple[JointInput, ...] | None = None
    """The inputs of `ids` that have several, in the order of `inputs`; None: `ids` have one."""
    ids: IdRule = IDENTITY
    unknown: Unknown = Unknown()
    combiner: Literal["sum", "mean", "sqrtn"] | None = None
    """The combiner of the vectors of a bag; null for other kinds."""
    encoding: Literal["sparse", "ragged"] = "sparse"
    """Whose rules a bag follows: TensorFlow's sparse lookup drops weights <= 0 unless it sums; its
    ragged lookup drops none.
    """
    padding: int | str | None = None
    """The value that is no id, and is left out: TensorFlow's feature columns leave -1 and "" out of
    dense tensors.
    """
    weighted: bool = False
    """Whether callers may send a weight beside each id."""
    length: Length | None = None
    """The length of a sequence: longer ones are cut at their end, shorter ones are padded with
    zeros. With an `input_length`, all have this length.
    """
    default: Any = None
    """The value taken when a caller leaves the input out; null: it must be sent. Written as a
    request writes it. `joint` has those of several inputs."""
    input_length: InputLength | None = None
    """The number of values of each example, for an input where it is fixed. `joint` has
    those of several inputs.
    """
    indicator: Annotated[int, Field(ge=1, le=1 << 24, strict=True)] | None = None
    """The number of rows of an indicator, which reads no table. Row r is a vector that is 1 at r
    and 0 elsewhere.
    """
    max_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The maximum length of the rows of a bag: longer rows are scaled to it before they are
    combined.
    """
    empty_row: Count | None = None
    """The row that a bag reads once where nothing else is left in it."""
    place: Count | None = None
    """The position of a single's value among the `places` values of each example in the input; None
    if the input has one value per example.
    """
    places: Length | None = None
    filler_row: Count | None = None
    """The row that pads a sequence, instead of zeros."""
    ordinal: bool = False
    """Whether row r of an indicator is the one number r instead."""
    from_end: bool = False
    """Whether a row below 0 is counted from the table's end, for ids that are integers or are
    computed from one.
    """

    @property
    def split(self) -> bool:
        """Whether callers send one text for each example, whose words are the ids."""
        return isinstance(self.ids, GraphIds) and self.ids.split is not None

    @property
    def stands_for(self) -> str:
        """The numbers that it reads instead of a table, in words; "" where it reads one."""
        if self.indicator is None:
            return ""
        if self.ordinal:
            return f"numbers of {self.indicator} rows"
        return f"indicator of {self.indicator}"

    @property
    def one_each(self) -> bool:
        """Whether callers send one value for each example, if it is not one of several `places`."""
        return self.kind == "single" or self.split

    @model_validator(mode="after")
    def _consistent(self) -> EmbeddedFeature:
        if (self.kind == "bag") != (self.combiner is not None):
            raise ValueError("'combiner' belongs to a bag, and a bag needs one")
        if (self.kind == "sequence") != (self.length is not None):
            raise ValueError("'length' belongs to a sequence, and a sequence needs one")
        return self

    @model_validator(mode="after")
    def _inputs_consistent(self) -> EmbeddedFeature:
        count = 1
        if isinstance(self.ids, GraphIds):
            count = len(self.ids.inputs)
        if count == 1:
            if self.joint is not None or len(self.inputs) > 1:
                raise ValueError("'ids' have one input, 'inputs' or 'joint' have several")
            return self
        if self.joint is None or not count == len(self.joint) == len(self.inputs):
            raise ValueError(f"'ids' have {count} inputs: 'inputs' and 'joint' have as many")
        # A cross has a row for every combination of values.
        is_cross = isinstance(self.ids, GraphIds) and self.ids.cross is not None
        if self.weighted or not (self.kind == "single" or (is_cross and self.kind == "bag")):
            raise ValueError(
                "ids of several inputs need a single, or if they are a cross, a bag without weights"
            )
        paddings = {joint_input.padding for joint_input in self.joint}
        if self.kind == "single" and paddings != {None}:
            raise ValueError("'padding' belongs to the inputs of a bag")
        by_candidate = "candidate" in {joint_input.role for joint_input in self.joint}
        by_feature = self.default is not None or self.input_length is not None
        if by_feature or (self.role == "candidate") != by_candidate:
            raise ValueError(
                "'joint' states role, default and length of each of several inputs, and the role "
                "of the feature follows"
            )
        return self

    @model_validator(mode="after")
    def _table_and_place_consistent(self) -> EmbeddedFeature:
        if (self.indicator is None) == (not self.table):
            raise ValueError("a feature has a 'table' or is an 'indicator'")
        if self.indicator is not None and self.combiner not in (None, "sum"):
            raise ValueError("an 'indicator' sums")
        if self.kind != "bag" and (self.max_norm is not None or self.empty_row is not None):
            raise ValueError("'max_norm' and 'empty_row' belong to a bag")
        if (self.place is None) != (self.places is None) or (self.place or 0) >= (self.places or 1):
            raise ValueError("'place' is one of 'places', which is given with it")
        if self.place is not None and self.kind != "single":
            raise ValueError("'place' belongs to a single")
        return self

    @model_validator(mode="after")
    def _texts_consistent(self) -> EmbeddedFeature:
        if self.split and (self.kind == "single" or self.weighted):
            raise ValueError("the words of a text are a bag or a sequence, without weights")
        if self.filler_row is not None and self.kind != "sequence":
            raise ValueError("'filler_row' belongs to a sequence")
        if not self.ordinal and (self.indicator or 0) > 1 << 16:
            raise ValueError("an 'indicator' has at most 65536 rows, but for an 'ordinal'")
        if self.ordinal and (self.indicator is None or self.kind == "bag"):
            raise ValueError("'ordinal' belongs to an indicator that is no bag")
        if self.from_end and not isinstance(self.ids, GraphIds):
            raise ValueError("'from_end' belongs to ids that a graph computes")
        return self


class DenseFeature(StrictModel):
    """Numbers that go to the towers as they are."""

    kind: Literal["dense"]
    role: Role
    inputs: tuple[str, ...] = Field(default=(), max_length=1)
    """What callers send; (): one input of the feature's own name. It may be the ids of embedded
    features, too.
    """
    take: Take = "values"
    """values: the input's numbers. lengths: the number of ids of each example in the input, uncut.
    padded: the ids of an example, padded with zeros or "" up to `shape`; more ids are rejected.
    weights: their weights, padded likewise.
    """
    shape: tuple[Length, ...] = ()
    """The shape of one example; () is a single number."""
    dtype: Literal["float32", "int32", "int64", "string"] = "float32"
    below: Positive | None = None
    """Whole numbers are rows of a table inside the towers: 0 to `below` - 1. `outside` says what
    becomes of others.
    """
    from_end: bool = False
    """Whether -`below` to -1 are rows, too, counted from the table's end."""
    outside: Literal["refuse", "zeros", "nearest"] = "refuse"
    """What becomes of whole numbers that are no rows. refuse: the request fails. zeros, nearest:
    the towers read a vector of zeros, or the nearest row.
    """
    default: Any = None
    input_length: InputLength | None = None
    """The number of values of each example, for an input where it is fixed."""

    @property
    def weighted(self) -> bool:
        """Whether callers may send a weight beside each id."""
        return self.take == "weights"

    @model_validator(mode="after")
    def _one_length(self) -> DenseFeature:
        if self.take == "lengths" and self.shape not in {(), (1,)}:
            raise ValueError("'lengths' are one number for an example: 'shape' is () or (1,)")
        if self.take in ("padded", "weights") and len(self.shape) != 1:
            raise ValueError(f"'{self.take}' lie in a row: 'shape' is how many there may be")
        if self.take == "weights" and self.dtype != "float32":
            raise ValueError("'weights' are float32")
        if self.below is None and (self.from_end or self.outside != "refuse"):
            raise ValueError("'from_end' and 'outside' belong to 'below'")
        return self


Feature = Annotated[EmbeddedFeature | DenseFeature, Field(discriminator="kind")]


def readers_of(
    features: Mapping[str, EmbeddedFeature | DenseFeature],
) -> dict[str, tuple[str, ...]]:
    """Returns the features that read each input, first the one that defines how its values are
    written.

    Features that read a table by one id of this input alone define it before those that take
    several ids; features of several inputs, dense features, and lengths come last.
    """
    readers: dict[str, tuple[str, ...]] = {}
    # The inputs stay in the order of the features, whatever the order of their readers.
    for name, feature in features.items():
        for input_name in inputs_of(name, feature):
            readers[input_name] = ()
    for name in sorted(features, key=lambda name: _definition_rank(features[name])):
        for input_name in dict.fromkeys(inputs_of(name, features[name])):
            readers[input_name] = (*readers[input_name], name)
    return readers


def _definition_rank(feature: EmbeddedFeature | DenseFeature) -> int:
    """Returns the rank of a feature among the readers of an input: the lowest one defines how the
    values are written.
    """
    if isinstance(feature, DenseFeature):
        # One that counts the values says nothing of them.
        return 3 + (feature.take == "lengths")
    if feature.joint is not None:
        return 2
    return int(not feature.one_each)


def input_entry(
    name: str, feature: EmbeddedFeature | DenseFeature
) -> EmbeddedFeature | DenseFeature:
    """Returns a feature as the reader of one of its inputs alone.

    The reader of one position of an input becomes the reader of a sequence of all positions.
    """
    if isinstance(feature, EmbeddedFeature) and feature.places is not None:
        changes = {"kind": "sequence", "length": feature.places, "place": None, "places": None}
        return feature.model_copy(update=changes)
    if isinstance(feature, EmbeddedFeature) and feature.split:
        changes = {
            "kind": "single",
            "ids": _as_sent("string"),
            "combiner": None,
            "length": None,
            "filler_row": None,
        }
        return feature.model_copy(update=changes)
    if not isinstance(feature, EmbeddedFeature) or feature.joint is None:
        return feature
    role, default, length = input_facts(name, feature)
    changes = {
        "ids": _as_sent(sent_dtype(feature, name)),
        "inputs": (name,),
        "joint": None,
        "role": role,
        "default": default,
        "input_length": length,
    }
    return feature.model_copy(update=changes)


def _as_sent(dtype: InputDtype) -> GraphIds:
    """Returns the graph of values of this type that are read as they are sent."""
    return GraphIds(nodes=(InputNode(dtype=dtype),))


class InputFacts(NamedTuple):
    """What all features that read an input say of it: see the fields of a feature."""

    role: Role
    default: Any
    length: InputLength | None


def input_facts(name: str, feature: EmbeddedFeature | DenseFeature) -> InputFacts:
    """Returns what a feature says of one of its inputs."""
    if isinstance(feature, EmbeddedFeature) and feature.joint is not None:
        joint_input = feature.joint[feature.inputs.index(name)]
        return InputFacts(joint_input.role, joint_input.default, joint_input.input_length)
    return InputFacts(feature.role, feature.default, feature.input_length)


def sent_dtype(feature: EmbeddedFeature | DenseFeature, name: str) -> InputDtype:
    """Returns the type of the values that a feature takes of an input, such as int64_or_string."""
    if isinstance(feature, DenseFeature):
        return feature.dtype
    if isinstance(feature.ids, KeyedIds):
        return "int64"
    if feature.joint is None:
        return feature.ids.dtype
    return feature.ids.inputs[feature.inputs.index(name)].dtype


def inputs_of(name: str, feature: EmbeddedFeature | DenseFeature) -> tuple[str, ...]:
    """Returns the names of what callers send for a feature."""
    return feature.inputs or (name,)
