"""Manifest entries that describe towers: what they take and return, their forms and their parts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Literal

from pydantic import Field, model_validator

from bundle.errors import FormulaError
from bundle.format.fields import Count, Name, Path, Positive, StrictModel, array_dtype
from bundle.format.formula import parse_formula
from bundle.format.precision import Precision

Per = Literal["context", "candidate", "events"]
BEGIN = "begin"
"""The input of a part per events that says at which position they begin."""

SCORE_BINS_MAX = 10
_SHARES_ERROR = 1e-6
"""The maximum difference of the sum of shares from 1: each is rounded."""


class TowerInput(StrictModel):
    """One input tensor of a tower; `null` in `shape` is the batch.

    In a part that runs for candidates, an input whose batch is 1 is a row of their context: such a
    part runs for the candidates of one context at a time.
    """

    name: str
    feature: str = ""
    """The feature whose activation, or numbers, it is."""
    features: tuple[str, ...] = ()
    """Instead of `feature`: several, side by side along the last axis, so that thousands of them
    are one array.
    """
    tensor: str = ""
    """Instead of `feature`, in a part of a tower: the output of an earlier part."""
    dtype: str
    shape: tuple[int | None, ...]

    @model_validator(mode="after")
    def _one_source(self) -> TowerInput:
        if (self.feature != "") + (self.features != ()) + (self.tensor != "") != 1:
            raise ValueError("one of 'feature', 'features' and 'tensor' is given")
        return self

    @property
    def sources(self) -> tuple[str, ...]:
        """The features whose values it has, in their order; () where it is another part's
        output.
        """
        if self.feature:
            return (self.feature,)
        return self.features

    @property
    def is_of_context(self) -> bool:
        """Whether it is one row for all candidates of a context."""
        return self.shape[:1] == (1,)


class TowerOutput(StrictModel):
    """One output tensor of a tower."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]


class HeadEffect(StrictModel):
    """What a precision does to the order by one output, over the replayed examples."""

    kendall_tau: float
    """Kendall's tau-b between the orders by the original's and by this form's values."""
    overlap: float
    """Share of the original's best `k` that are among this form's best `k`."""
    k: Positive
    auc: float | None = None
    """Area under the ROC curve of this form's values, where the examples have labels; null: they
    have none.
    """
    auc_original: float | None = None
    """The same of the original's."""


class ScoreDistribution(StrictModel):
    """How the scores of the examples are distributed, which live scores are compared with.

    Score `s` is in bin i if `edges[i - 1] <= s < edges[i]`; the first and the last bin have no
    other end.
    """

    edges: tuple[float, ...]
    """The limits between the bins, ascending."""
    shares: tuple[float, ...]
    """The share of the examples in each bin; one more than edges."""
    examples: Positive

    @model_validator(mode="after")
    def _check_bins(self) -> ScoreDistribution:
        if not 1 <= len(self.edges) < SCORE_BINS_MAX:
            raise ValueError(
                f"scores have {len(self.edges)} edges; 1 to {SCORE_BINS_MAX - 1} were expected"
            )
        limits = (-math.inf, *self.edges, math.inf)
        if not all(low < high for low, high in pairwise(limits)):
            raise ValueError("edges of scores must be finite and ascend")
        if len(self.shares) != len(self.edges) + 1:
            raise ValueError(
                f"{len(self.shares)} shares for {len(self.edges)} edges; one more share was "
                "expected"
            )
        if not all(share > 0 for share in self.shares):
            raise ValueError("a share of the examples must be above 0")
        if not abs(sum(self.shares) - 1) <= _SHARES_ERROR:
            raise ValueError(f"the shares add up to {sum(self.shares):g}; 1 was expected")
        return self


class TowerForm(StrictModel):
    """One way to run a tower: a SavedModel directory or a LiteRT flatbuffer."""

    kind: Literal["saved_model", "litert"]
    precision: Precision
    path: Path
    max_abs_error: dict[str, float]
    """Largest difference from the original model over the replayed examples, by output."""
    effect: dict[str, HeadEffect] = Field(default_factory=dict)
    """The effect of a precision below f32, by output."""


class TowerPart(StrictModel):
    """A part of a ranking tower: a request computes only those that it needs."""

    name: Name
    per: Per
    """context: once for each context. candidate: once for each candidate. events: for further
    events of one context; see `TowerExtension`.
    """
    inputs: tuple[TowerInput, ...]
    outputs: tuple[TowerOutput, ...]
    """Named as the tower's own where they are its outputs; otherwise later parts take them."""
    forms: tuple[TowerForm, ...]

    @property
    def is_of_one_context(self) -> bool:
        """Whether it runs for the candidates of one context at a time."""
        return any(entry.is_of_context for entry in self.inputs)


class Window(StrictModel):
    """Where an output has the values of events."""

    axis: Positive
    """The axis of their positions."""
    offset: Count
    """The position of the first event."""


class TowerExtension(StrictModel):
    """How what a part has computed of a history is extended by the events behind it, which earlier
    ones do not see.
    """

    of: Name
    """The part, which runs once for each context."""
    part: TowerPart
    """Takes the inputs of that part and those of its outputs that are in `windows`, of one context,
    and the position at which `events` begin, [1] int32. Returns their values in each of these
    outputs, and anew, as a whole, the others that depend on events.
    """
    events: Positive
    """The number of adjacent events that it computes at once."""
    sequences: tuple[str, ...]
    """The inputs that hold an event at each position of their first axis behind the batch."""
    positions: Positive
    """The number of these positions."""
    windows: dict[str, Window]
    """Where outputs have the values of events."""

    @model_validator(mode="after")
    def _closed(self) -> TowerExtension:
        if self.part.per != "events":
            raise ValueError("the part of an extension is per events")
        inputs = {entry.name for entry in self.part.inputs}
        missing = {*self.sequences, *self.windows, BEGIN} - inputs
        if missing:
            raise ValueError(f"part {self.part.name!r} lacks the inputs {sorted(missing)}")
        for output in self.part.outputs:
            window = self.windows.get(output.name)
            if window and output.shape[window.axis : window.axis + 1] != (self.events,):
                raise ValueError(
                    f"output {output.name!r} of part {self.part.name!r} is {list(output.shape)}; "
                    f"{self.events} events along axis {window.axis} were expected"
                )
        if self.events > self.positions:
            raise ValueError(f"{self.events} events are more than {self.positions} positions")
        return self


def state_bytes(part: TowerPart) -> int | None:
    """Returns the size of the inputs and outputs of a part for one context, which are its state;
    None: it is not fixed.
    """
    total = 0
    entries: tuple[TowerInput | TowerOutput, ...] = (*part.inputs, *part.outputs)
    for entry in entries:
        sizes = entry.shape[1:]
        if entry.dtype == "string" or None in sizes:
            return None
        total += math.prod(size or 0 for size in sizes) * array_dtype(entry.dtype).itemsize
    return total


def _check_part_input(part: TowerPart, entry: TowerInput, per_by_output: Mapping[str, Per]) -> None:
    """Raises ValueError if a part cannot take an input, such as an output of a later part."""
    if part.per == "context" and entry.is_of_context:
        raise ValueError(f"part {part.name!r} is per context and takes one row of a context")
    if not entry.tensor:
        return
    if entry.tensor not in per_by_output:
        raise ValueError(
            f"part {part.name!r} takes {entry.tensor!r}, which no earlier part returns"
        )
    # It runs before there are candidates.
    if part.per == "context" and per_by_output[entry.tensor] == "candidate":
        raise ValueError(
            f"part {part.name!r} is per context and takes {entry.tensor!r} of a candidate"
        )


class Tower(StrictModel):
    """A query, candidate or ranking network without its tables."""

    role: Literal["query", "candidate", "ranking"]
    inputs: tuple[TowerInput, ...]
    outputs: tuple[TowerOutput, ...]
    result: str
    """The output that is the vector, or the score that candidates are ordered by unless there is a
    formula.
    """
    forms: tuple[TowerForm, ...]
    serve: Precision = "f32"
    """The precision that a service runs by default."""
    formula: str | None = None
    """The formula that candidates are ordered by, over the names of outputs; null: `result`."""
    parts: tuple[TowerPart, ...] = ()
    """The same network cut by data flow, each part before those that take its outputs; (): it is
    not cut.
    """
    extension: TowerExtension | None = None
    """How the state of a context is extended by further events; null: it is computed anew."""
    scores: ScoreDistribution | None = None
    """The distribution of a ranking tower's `formula`, or else `result`, over the
    recipe's examples; null: the recipe names too few, or none.
    """

    @property
    def all_parts(self) -> tuple[TowerPart, ...]:
        """The parts, and the one that extends the state of a context."""
        if self.extension is None:
            return self.parts
        return (*self.parts, self.extension.part)

    @model_validator(mode="after")
    def _formula_known(self) -> Tower:
        if self.formula is not None:
            try:
                names = parse_formula(self.formula).names
            except FormulaError as problem:
                raise ValueError(str(problem)) from problem
            for name in names:
                if name not in {output.name for output in self.outputs}:
                    raise ValueError(
                        f"formula {self.formula!r} takes {name!r}, which is no output of the tower"
                    )
        return self

    @model_validator(mode="after")
    def _parts_closed(self) -> Tower:
        # What the parts so far return, with how often each runs: parts are in the order of their
        # runs.
        per_by_output: dict[str, Per] = {}
        if any(entry.tensor or entry.is_of_context for entry in self.inputs):
            raise ValueError(
                "an input of a whole tower is no part's output, and has a row for each example"
            )
        if len({part.name for part in self.parts}) < len(self.parts):
            raise ValueError("two parts have one name")
        for part in self.parts:
            for entry in part.inputs:
                _check_part_input(part, entry, per_by_output)
            for output in part.outputs:
                if output.name in per_by_output:
                    raise ValueError(f"two parts return {output.name!r}")
                per_by_output[output.name] = part.per
        if self.parts and not {output.name for output in self.outputs} <= set(per_by_output):
            raise ValueError("the parts do not return every output of the tower")
        return self

    @model_validator(mode="after")
    def _extension_closed(self) -> Tower:
        if any(part.per == "events" for part in self.parts):
            raise ValueError("a part per events belongs to 'extension'")
        if self.extension is None:
            return self
        outputs = {
            output.name
            for part in self.parts
            if part.name == self.extension.of
            for output in part.outputs
        }
        missing = {*self.extension.windows} - outputs
        if missing:
            raise ValueError(
                f"part {self.extension.of!r} does not return what 'extension' stores: "
                f"{sorted(missing)}"
            )
        return self
