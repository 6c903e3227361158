"""Compares the rows of ids with the model's own operations, on values that examples do not hold.

A bundle computes the rows of ids with functions of its own. The reference model is called with
examples, which hold ordinary values. Here, the bundle and the model's operations compute rows of
the ends of the types, negative numbers, floats that are no integers, and odd texts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.features.reader import FeatureReader
from bundle.features.sources import RemoteRows, RemoteTable
from bundle.format import manifest
from bundle.format.id_graphs import OperationNode
from bundle.format.manifest import Feature
from bundle.text_arrays import text_array
from export.errors import NotConvertible, UsageError, VerificationFailed
from export.front_end.interface import ComputeRows, OwnRows, PartitionedModel, Trainer
from export.front_end.specs import FeatureSpec, Keys, ModelSpec
from export.id_graphs.step_functions import StepFunction, ends_of, find_steps
from export.raised_errors import is_own
from export.recipe.schema import ExportJob, FeatureSection
from export.tables.vocabularies import as_array
from export.user_lines import at_line
from export.verify.accepted_groups import accepted_groups
from export.verify.hostile_numbers import NumberType, hostile_numbers
from export.verify.synthetic_examples import vocabulary_of

Values = NDArray[Any]
Rows = NDArray[np.int64]
Batch = tuple[Mapping[str, Values], int]
"""The values of each input, and the number of examples."""

HOSTILE_VALUES = 20_000
"""The number of values of each input on which rows are compared, beside the keys of vocabularies.
"""
_CALLS_MAX = 200
"""The largest number of calls in search of values that the model, or the feature, rejects."""
_AT_STEPS_MAX = 64
"""The largest number of differing values that may lie at steps between buckets; more are a mistake.
"""
_NEIGHBORS = 64
"""The number of floats on either side of a step for which the row of the other side is right, too.
"""
_KEYS_MAX = 1000
"""The number of keys of each vocabulary that are compared, too."""
_INTEGERS = 1 << 12
"""Integers up to here, of either sign, are tried for steps."""
_REJECTED = np.int64(-2)
"""The row of a value that is rejected."""
_WORDS = (
    "",
    " ",
    "0",
    "-1",
    "00",
    "1.5",
    "nan",
    "[UNK]",
    "a b  c",
    "\t tab\n",
    "Straße",
    "ÉCOLE",
    "東京",
    "🙂🙂",
    "İ",
    "x" * 300,
    "a,b|c;d",
    "\u0000",
    "é",  # one letter, and the next is two
    "e\u0301",
)


def check_own_rows(  # noqa: C901 - one story of each feature
    job: ExportJob, traced: PartitionedModel, entries: Mapping[str, Feature]
) -> PartitionedModel:
    """Compares the rows that a bundle would find with those of the model's own operations, in the
    framework that trained the model.

    Features whose rule the recipe states are left out: their model was trained on rows.

    Args:
      job: The recipe.
      traced: The model, with its own operations.
      entries: The features of the manifest.

    Returns:
      The model. Features that the framework that trained computes otherwise than TensorFlow have
      its rows; notes name them, and the features that could not be compared.

    Raises:
      VerificationFailed: A value has another row; names feature, value, row and id.
    """
    model = traced.spec
    compared = {
        name: spec
        for name, spec in model.features.items()
        if name in traced.own_rows and isinstance(spec, FeatureSpec) and not _is_stated(job, spec)
    }
    notes = list(traced.notes)
    trainer = traced.trainer
    lookups: Mapping[str, Sequence[OwnRows]] | None = None
    # Frameworks differ in floats: their arithmetic of integers is the same.
    if trainer is not None and any(spec.computes_floats for spec in compared.values()):
        try:
            lookups = trainer.lookups()
        except NotConvertible as problem:
            notes.append(
                f"computed ids were not compared with {trainer.framework}'s, only with "
                f"TensorFlow's: {problem}"
            )

    changed: dict[str, FeatureSpec] = {}
    not_compared = []
    not_trained = []
    for name, spec in compared.items():
        check = _Check(job, model, spec, entries[name], traced.own_rows[name])
        trained = None
        if lookups is not None:
            trained = check.find_trained(lookups.get(_table_of(spec, model), ()))
        if trainer is not None and trained is not None:
            followed = check.compare_with_trainer(trained, trainer)
            if followed is not None:
                changed[name] = followed
        elif not check.compare():
            not_compared.append(name)
        elif lookups is not None:
            not_trained.append(name)
    if not_compared:
        notes.append(
            f"the rows of {', '.join(not_compared)} were compared with the model's on the examples "
            "alone: its operations between inputs and ids do not run without the rest of the model"
        )
    if trainer is not None:
        notes += _notes_on_trainer(trainer.framework, not_trained, changed)
    followed_model = replace(model, features={**model.features, **changed})
    # Nothing else needs the trainer, which may be a process of its own.
    return replace(traced, spec=followed_model, trainer=None, notes=tuple(notes))


def _notes_on_trainer(
    framework: str, not_compared: Collection[str], changed: Collection[str]
) -> Iterator[str]:
    """Yields notes about the features that were not compared with the framework that trained, and
    about those that have its rows instead of TensorFlow's.
    """
    if not_compared:
        yield (
            f"the rows of {', '.join(not_compared)} were compared with {framework}'s on the "
            f"examples alone, and with TensorFlow's on others: {framework} does not compute them "
            "without the rest of the model"
        )
    if changed:
        yield (
            f"the rows of {', '.join(changed)} are those that {framework} computes; TensorFlow "
            "computes others of some numbers"
        )


def _table_of(spec: FeatureSpec, model: ModelSpec) -> str:
    """Returns the model's own name of the table that a feature reads; "" for an indicator."""
    if not spec.entry.table:
        return ""
    return model.tables[spec.entry.table].config_name


def _is_stated(job: ExportJob, spec: FeatureSpec) -> bool:
    """Returns whether the recipe states the rule of a feature."""
    sections = [job.features.get(name, FeatureSection()) for name in spec.reads]
    return any(section.ids.kind != "identity" for section in sections)


def _reader(entries: Mapping[str, Feature], model: ModelSpec) -> FeatureReader:
    """Returns a reader that finds rows as a service does, before any table is copied."""
    # Remote tables have no values, and only rows are looked up.
    tables = {
        name: RemoteTable(table.rows, RemoteRows(name, table.dim))
        for name, table in model.tables.items()
    }
    vocabularies = {
        name: vocabulary_of(as_array(keys)) for name, keys in model.vocabularies.items()
    }
    return FeatureReader(entries, tables, vocabularies)


def _columns(
    job: ExportJob, spec: FeatureSpec, inputs: Sequence[str]
) -> tuple[dict[str, Values], int]:
    """Returns keys and hostile values of each input, [n * size], and n, the number of examples."""
    columns = {}
    for number, name in enumerate(inputs):
        dtype = job.inputs[name].sent_dtype
        values = np.concatenate([_near_keys(spec.keys, dtype), hostile_values(dtype)])
        # Padding is no id, and nothing looks it up.
        padding = None
        if name in spec.reads:
            padding = spec.padding_of(name)
        if padding is not None:
            values = values[values != padding]
        # In their own order, the smallest values of all inputs would meet, then the next ones.
        size = math.prod(job.inputs[name].shape)
        if size > 1 or len(inputs) > 1:
            values = values[np.random.default_rng(number).permutation(values.size)]
        columns[name] = values
    sizes = {name: math.prod(job.inputs[name].shape) for name in columns}
    n = min(column.size // sizes[name] for name, column in columns.items())
    return {name: column[: n * sizes[name]] for name, column in columns.items()}, n


def _near_keys(vocabularies: Sequence[Keys], dtype: str) -> Values:
    """Returns keys of vocabularies, and values that are nearly keys, in the type of an input."""
    keys = [key for vocabulary in vocabularies for key in vocabulary[:_KEYS_MAX]]
    if dtype == "string":
        words = [str(key) for key in keys]
        near_words = [near for word in words for near in (word.upper(), f" {word}", f"{word}0")]
        return text_array(words + near_words)
    bits = 32 if dtype == "int32" else 64
    end = 1 << (bits - 1)
    numbers = [key for key in keys if isinstance(key, int) and -end <= key < end - 1]
    numbers += [number + 1 for number in numbers]
    if dtype == "float32":
        return np.array(numbers, np.float32)
    return np.array(numbers, np.int64)


def hostile_values(dtype: NumberType | Literal["string"]) -> Values:
    """Returns values of an input that clients send by mistake or by design, the same in every run.

    Args:
      dtype: The type of the values: int32, int64, float32 or string.

    Returns:
      [HOSTILE_VALUES] values; texts as an array of objects.
    """
    random = np.random.default_rng(45)
    if dtype == "string":
        numbers = random.integers(-(1 << 40), 1 << 40, HOSTILE_VALUES - len(_WORDS))
        return text_array([*_WORDS, *map(str, numbers.tolist())])
    listed = hostile_numbers(dtype)
    if dtype == "float32":
        special = [np.nan, np.inf, -np.inf]
        count = HOSTILE_VALUES - listed.size - len(special)
        scaled = random.standard_normal(count) * 10.0 ** random.integers(-2, 12, count)
        return np.concatenate([listed, special, scaled]).astype(np.float32)
    count = HOSTILE_VALUES - listed.size
    high = np.iinfo(dtype).max
    # Each magnitude is as likely as any other: of uniform numbers, nearly all would be large.
    magnitudes = np.minimum(1 << random.integers(1, high.bit_length(), count), high)
    random_integers = random.integers(-magnitudes, magnitudes)
    return np.concatenate([listed.astype(np.int64), random_integers])


class _Check:
    """Compares the rows of one feature on hostile values.

    Args:
      job: The recipe.
      model: The model.
      spec: The feature.
      entry: Its entry in the manifest.
      own_rows: The model's own operations, in TensorFlow.
    """

    def __init__(
        self, job: ExportJob, model: ModelSpec, spec: FeatureSpec, entry: Any, own_rows: OwnRows
    ) -> None:
        self._job = job
        self._model = model
        self._spec = spec
        self._entry = entry
        self._own_rows = own_rows
        # The model's operations may need more inputs than the feature reads.
        inputs = tuple(dict.fromkeys((*spec.reads, *(own_rows.inputs or ()))))
        self._batch: Batch = _columns(job, spec, inputs)

    def compare(self) -> bool:
        """Compares with TensorFlow; returns whether it could.

        Raises:
          VerificationFailed: A value has another row.
        """
        if self._own_rows.inputs is None:
            return False
        if self._spec.entry.split:
            return self._are_words_compared()

        compute = self._own_rows.compute
        rows = self._rows(self._entry, self._batch)
        expected = _computed(compute, self._batch)
        if expected is None or rows is None or expected.size != rows.size:
            return False
        differs = _differ(rows, expected)
        if 0 < np.count_nonzero(differs) <= _AT_STEPS_MAX:
            differs &= ~_at_step(compute, self._batch, rows)
        self._check(differs, self._batch, rows, expected)
        return True

    def find_trained(self, candidates: Sequence[OwnRows]) -> ComputeRows | None:
        """Returns which of the lookups of its table in another framework is that of the feature:
        of those that read the same inputs, the one whose rows agree most often with TensorFlow's;
        None if there is none.
        """
        inputs = self._own_rows.inputs
        if inputs is None or self._spec.entry.split:
            return None
        _, n = self._batch
        expected = _computed(self._own_rows.compute, self._batch)
        if expected is None:
            return None
        best: ComputeRows | None = None
        best_count = -1
        for candidate in candidates:
            if set(candidate.inputs or ()) != set(inputs):
                continue
            size = candidate.compute(*self._batch).size // n
            positions: list[int | None] = [None]
            # A feature may be one of the ids of an example that the lookup reads.
            if expected.size == n and size > 1:
                positions = list(range(size))
            for position in positions:
                compute = partial(_rows_at, candidate.compute, position)
                rows = compute(*self._batch)
                if rows.size != expected.size:
                    continue
                count = int(np.count_nonzero(rows == expected))
                if count > best_count:
                    best = compute
                    best_count = count
        return best

    def compare_with_trainer(self, compute: ComputeRows, trainer: Trainer) -> FeatureSpec | None:
        """Compares with the framework that trained the model, also on both sides of each step.

        Returns:
          The feature with the rows of that framework, if TensorFlow computes others of some values;
          None if there is no difference.

        Raises:
          UsageError: There is a difference, and the framework is not known to have trained the
            model.
          VerificationFailed: A value has another row, and no rule of a bundle has the rows of that
            framework.
        """
        batches = [self._fitting(trainer)]
        steps = {name: self._steps(compute, trainer, name) for name in batches[0][0]}
        for name, function in steps.items():
            if function is not None and function.steps.size:
                batches.append(self._with_values(name, function.beside_steps()))
        for batch in batches:
            rows = self._rows(self._entry, batch)
            expected = compute(*batch)
            if rows is None:
                continue
            differs = _differ(rows, expected)
            if not differs.any():
                continue
            followed = self._followed(steps)
            is_right = followed is not None and not self._any_differs(
                followed.entry, compute, batches
            )
            if is_right and trainer.is_stated:
                return followed
            self._check(differs, batch, rows, expected, trainer)
        return None

    def _fitting(self, trainer: Trainer) -> Batch:
        """Returns the examples whose integers a framework does not cut, and their number."""
        if trainer.has_int64:
            return self._batch
        columns, n = self._batch
        fits = np.ones(n, bool)
        ends = np.iinfo(np.int32)
        for column in columns.values():
            if column.dtype == np.int64:
                is_inside = (column >= ends.min) & (column <= ends.max)
                fits &= is_inside.reshape(n, -1).all(axis=1)
        return _chosen(self._batch, fits), int(fits.sum())

    def _steps(self, compute: ComputeRows, trainer: Trainer, name: str) -> StepFunction | None:
        """Returns the rows as a step function of one input, while all others are 1; None if they
        are none, or depend on the position of a value.
        """
        sent_dtype = self._job.inputs[name].sent_dtype
        if sent_dtype == "string":
            return None
        dtype = sent_dtype
        if not trainer.has_int64 and dtype == "int64":
            dtype = "int32"

        def rows_of(values: Values) -> Rows:
            rows = compute(*self._with_values(name, values)).reshape(values.size, -1)
            if (rows != rows[:, :1]).any():
                raise _DependOnPosition
            return rows[:, 0]

        # Integers up to here are what most models take, as hours, ages and counts.
        integers = np.arange(-_INTEGERS, _INTEGERS)
        numbers = np.concatenate([hostile_numbers(dtype), self._constants(), integers])
        limits = np.array(ends_of(dtype), np.float64)
        fitting = numbers[(numbers >= limits[0]) & (numbers <= limits[1])]
        try:
            function = find_steps(rows_of, dtype, fitting.astype(dtype))
        except _DependOnPosition:
            return None
        if function is None:
            return None
        return replace(function, dtype=sent_dtype, steps=function.steps.astype(sent_dtype))

    def _constants(self) -> NDArray[np.float64]:
        """Returns the numbers that the feature's own rule computes with, and their neighbors."""
        constants: list[float] = []
        for node in getattr(self._spec.entry.ids, "nodes", ()):
            listed = getattr(node, "values", ())
            if isinstance(node, OperationNode):
                listed = node.attributes.get("boundaries", ())
            constants += [value for value in listed if isinstance(value, int | float)]
        numbers = np.array(constants, np.float64)
        return np.concatenate([numbers - 1, numbers, numbers + 1])

    def _with_values(self, name: str, values: Values) -> Batch:
        """Returns columns of examples that hold a value in all positions of an input, and 1 in all
        others, and the number of examples.
        """
        columns: dict[str, Values] = {}
        for input_name, column in self._batch[0].items():
            size = math.prod(self._job.inputs[input_name].shape)
            if input_name == name:
                columns[input_name] = values.repeat(size)
            elif column.dtype == object:
                columns[input_name] = text_array(["1"] * (values.size * size))
            else:
                columns[input_name] = np.ones(values.size * size, column.dtype)
        return columns, values.size

    def _followed(self, steps: Mapping[str, StepFunction | None]) -> FeatureSpec | None:
        """Returns the feature with a rule of one input's steps; None if no graph has them."""
        functions = list(steps.values())
        if len(functions) != 1 or functions[0] is None:
            return None
        graph = functions[0].graph()
        if graph is None:
            return None
        # Rows below 0 were counted from the table's end already.
        entry = self._spec.entry.model_copy(update={"ids": graph, "from_end": False})
        return replace(self._spec, entry=entry, has_rule=True, keys=())

    def _any_differs(
        self,
        entry: manifest.EmbeddedFeature,
        compute: ComputeRows,
        batches: Sequence[Batch],
    ) -> bool:
        changes = {"ids": entry.ids, "from_end": entry.from_end}
        changed = self._entry.model_copy(update=changes)
        for batch in batches:
            rows = self._rows(changed, batch)
            if rows is None or _differ(rows, compute(*batch)).any():
                return True
        return False

    def _rows(self, entry: manifest.EmbeddedFeature, batch: Batch) -> Rows | None:
        """Returns the rows that a bundle finds, `_REJECTED` where it rejects a value."""
        name = self._spec.name
        features = _reader({name: entry}, self._model)

        def find(columns: Mapping[str, Values], n: int) -> Rows:
            rows, _ = features.rows(name, self._columns_read(columns), n)
            return rows

        rows = _computed(find, batch)
        unknown = self._spec.unknown
        if rows is None or unknown is None:
            return rows
        row_of_unknown = {"refuse": _REJECTED, "row": np.int64(unknown.row or 0)}
        return np.where(rows == -1, row_of_unknown.get(unknown.rule, -1), rows)

    def _columns_read(self, columns: Mapping[str, Values]) -> dict[str, Column]:
        return {name: Column(columns[name]) for name in self._spec.reads}

    def _text_of(self, batch: Batch, example: int) -> str:
        """Returns the values that the feature reads of an example, for messages."""
        values = _chosen(batch, slice(example, example + 1))
        text = ", ".join(f"{name} = {values[name].tolist()!r}" for name in self._spec.reads)
        return f"{text:.200}"

    def _are_words_compared(self) -> bool:
        """Compares the rows of the words of texts; returns whether it could.

        Raises:
          VerificationFailed: A word has another row.
        """
        features = _reader({self._spec.name: self._entry}, self._model)
        columns, n = self._batch
        try:
            expected = self._own_rows.compute({name: columns[name] for name in self._spec.reads}, n)
            rows, offsets = features.rows(self._spec.name, self._columns_read(columns), n)
        except Exception as problem:  # a model's framework raises errors of any type
            if is_own(problem):
                raise
            return False
        shared_count = min(rows.size, expected.size)
        wrong = np.flatnonzero(rows[:shared_count] != expected[:shared_count])
        if not wrong.size and rows.size == expected.size:
            return True
        # Where all shared words agree, the first word that one side lacks differs.
        first = shared_count
        if wrong.size:
            first = int(wrong[0])
        example = min(int(np.searchsorted(offsets, first, side="right")) - 1, n - 1)
        raise _difference(
            self._spec,
            self._text_of(self._batch, example),
            _row_text(rows, first),
            _row_text(expected, first),
            f"of {rows.size} and {expected.size} words, {wrong.size} differ",
        )

    def _check(
        self,
        differs: NDArray[np.bool_],
        batch: Batch,
        rows: Rows,
        expected: Rows,
        trainer: Trainer | None = None,
    ) -> None:
        """Checks that no rows differ; `trainer` computed the expected ones, or TensorFlow.

        Raises:
          UsageError: Rows differ, and `trainer` is not known to have trained the model.
          VerificationFailed: Rows differ.
        """
        wrong = np.flatnonzero(differs)
        if not wrong.size:
            return
        first = int(wrong[0])
        _, n = batch
        values = self._text_of(batch, first * n // rows.size)
        row = _row_text(rows, first)
        expected_row = _row_text(expected, first)
        extent = f"{wrong.size} of {rows.size} values differ"
        if trainer is None:
            raise _difference(self._spec, values, row, expected_row, extent)
        difference = (
            f"feature {self._spec.name!r}: with {values}, TensorFlow reads {row} of "
            f"{self._spec.entry.table!r}, and {trainer.framework} reads {expected_row}"
            f"{at_line(self._own_rows.line)}"
        )
        if not trainer.is_stated:
            raise UsageError(
                f"{difference}; state what Keras ran on in training: code.trained_with = "
                '"tensorflow", "jax" or "torch"'
            )
        raise VerificationFailed(
            f"{difference}; {extent}; {trainer.framework} trained the model, and its rows are no "
            "buckets of one number: clip the number to the range of training before it becomes an "
            "integer, or let callers send the id"
        )


def _differ(rows: Rows, expected: Rows) -> NDArray[np.bool_]:
    """Returns where rows differ. A value that one side rejects has no row to compare with."""
    is_rejected = (rows == _REJECTED) | (expected == _REJECTED)
    differs: NDArray[np.bool_] = (rows != expected) & ~is_rejected
    return differs


class _DependOnPosition(Exception):
    """Rows of one value differ between the positions of an example."""


def _rows_at(
    compute: ComputeRows, position: int | None, columns: Mapping[str, Values], n: int
) -> Rows:
    """Returns rows, or those at one position of each example."""
    rows = compute(columns, n)
    if position is None:
        return rows
    return rows.reshape(n, -1)[:, position]


def _difference(
    spec: FeatureSpec, values: str, row: str, expected_row: str, extent: str
) -> VerificationFailed:
    """Returns the error that names the first value with another row."""
    return VerificationFailed(
        f"feature {spec.name!r}: with {values}, a bundle would read {row} of "
        f"{spec.entry.table!r}, and the model's own operations read {expected_row}; {extent}; "
        f"state the rule of the ids in the recipe (features.{spec.reads[0]}.ids), and let the "
        "model take rows"
    )


def _row_text(rows: Rows, position: int) -> str:
    if position >= rows.size:
        return "no more words"
    if rows[position] < 0:
        return "no row"
    return f"row {rows[position]}"


def _at_step(compute: ComputeRows, batch: Batch, rows: Rows) -> NDArray[np.bool_]:
    """Returns where the model's rows change within a few floats, and a row is that of either side:
    logarithms and the like differ in their last bit from one library to another, and in one
    library from one vector length to another.
    """
    columns, n = batch
    nowhere = np.zeros(rows.shape, bool)
    if any(column.dtype != np.float32 for column in columns.values()):
        return nowhere
    below, above = (
        _computed(compute, ({name: _shifted(column, end) for name, column in columns.items()}, n))
        for end in (-np.inf, np.inf)
    )
    if below is None or above is None:
        return nowhere
    at_step: NDArray[np.bool_] = (below != above) & ((rows == below) | (rows == above))
    return at_step


def _shifted(values: Values, end: float) -> Values:
    """Returns the floats that are some numbers of their type nearer to an end."""
    # The neighbor of the largest float is infinite.
    with np.errstate(over="ignore"):
        for _ in range(_NEIGHBORS):
            values = np.nextafter(values, np.float32(end))
    return values


def _chosen(batch: Batch, rows: NDArray[np.bool_] | slice) -> dict[str, Values]:
    """Returns the columns of some examples."""
    columns, n = batch
    return {name: column.reshape(n, -1)[rows].reshape(-1) for name, column in columns.items()}


def _computed(compute: ComputeRows, batch: Batch) -> Rows | None:
    """Returns the rows of n examples, `_REJECTED` where a value is rejected or not tried; None if
    all are rejected, or examples have different numbers of rows.

    One value that is rejected fails a whole call, so examples are halved until it is alone. If too
    many are rejected for that, some examples are tried one by one.
    """
    _, n = batch
    is_left = np.ones(n, bool)

    def rows_of(group: slice) -> Rows | None:
        size = group.stop - group.start
        try:
            rows = compute(_chosen(batch, group), size)
        except Exception as problem:  # a model's framework raises errors of any type
            if is_own(problem):
                raise
            is_left[group] = size > 1
            return None
        is_left[group] = False
        return rows

    computed = list(accepted_groups(n, rows_of, calls_max=_CALLS_MAX))
    if is_left.any():
        for first in np.linspace(0, n - 1, min(n, _CALLS_MAX), dtype=int).tolist():
            group = slice(first, first + 1)
            rows = rows_of(group)
            if rows is not None:
                computed.append((group, rows))

    # The number of rows of an example, which must be the same for all.
    sizes = {rows.size / (group.stop - group.start) for group, rows in computed}
    if len(sizes) != 1:
        return None
    size = sizes.pop()
    if not size.is_integer():
        return None
    result = np.full((n, int(size)), _REJECTED)
    for group, rows in computed:
        result[group] = rows.reshape(-1, int(size))
    return result.reshape(-1)
