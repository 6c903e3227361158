"""Synthetic examples, for recipes that name no file of examples: ids that have rows, and some that
no table has.

The column of an input must suit all features that read it. So ids are drawn at random, and those
for which every feature finds a row are taken (`export/verify/random_values.py`). A feature that
computes a row of several inputs may have rows for a few combinations only: `with_rows` searches for
these when the columns exist.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.features.ids.graphs import Graph
from bundle.features.ids.rules import rule_of, within
from bundle.features.input_lengths import InputLengths
from bundle.format import manifest
from bundle.format.features import sent_dtype
from bundle.format.id_graphs import ConstantNode, InputNode, OperationNode, SplitNode
from bundle.tables.id_values import Rows, Values
from bundle.tables.offsets import offsets_of
from bundle.tables.vocabularies import Vocabulary, index_keys
from export.front_end.specs import DenseSpec, FeatureSpec, ModelSpec, embedded_entry
from export.verify.examples import Examples
from export.verify.random_values import (
    INT32_END,
    WIDE_END,
    Reader,
    SentDtype,
    ValueSource,
    as_texts,
    rows_or_none,
)

BAG_SIZES = 6
"""The number of different sizes of bags: 0 to 5 ids. Sequences hold up to two ids more than fit."""
_UNKNOWN_EVERY = 7
"""One in this number of ids is unknown."""
_ZERO_WEIGHT_EVERY = 7
"""One in this number of ids has the weight 0."""
_SENT: Mapping[str, SentDtype] = {"float32": "float32", "string": "string"}
"""The types of values in requests that are no integers, which have one type."""
_JOINED_VALUES = 1 << 14
"""The number of combinations of several inputs' values that are tried: hardly any has a row where a
model's rule is narrow.
"""

Keys = Mapping[str, NDArray[Any]]
"""Keys of each vocabulary in the order of their rows: [size] int64 or object holding str."""


def make_examples(
    model: ModelSpec,
    entries: Mapping[str, manifest.Feature],
    keys: Keys,
    count: int,
    dumped: Keys = MappingProxyType({}),
    *,
    unknown_ids: bool = False,
) -> Examples:
    """Makes examples of known ids: bags of 0 to 5 ids with repeated ones, numbers around zero.

    They are the same in every run.

    Args:
      model: The traced features and tables.
      entries: The features of the manifest.
      keys: The keys of each vocabulary.
      count: The number of examples.
      dumped: Some keys of each table whose rows are found by key.
      unknown_ids: Whether some ids of each input are ids that no table has, if its features take
        such ids.
    """
    maker = _Maker(model, entries, keys, dumped, count, np.random.default_rng(0))
    columns = {}
    for number, name in enumerate(model.inputs):
        column = maker.column(name)
        if unknown_ids:
            # Each input begins elsewhere, so that an example has few unknown ids at a time.
            column = maker.with_unknown_ids(name, column, first=number % _UNKNOWN_EVERY)
        columns[name] = column
    for spec in model.features.values():
        if isinstance(spec, FeatureSpec):
            columns |= maker.with_rows(spec, columns)
    return Examples(count, InputLengths(entries).fit(columns, count).columns)


@dataclass(frozen=True)
class _Maker:
    """Makes the column of one input after the other; see `make_examples`."""

    model: ModelSpec
    entries: Mapping[str, manifest.Feature]
    keys: Keys
    dumped: Keys
    count: int
    random: np.random.Generator

    def column(self, name: str) -> Column:
        """Makes the column of an input."""
        specs = self.model.inputs[name]
        embedded = [spec for spec in specs if isinstance(spec, FeatureSpec)]
        dense = [spec.entry for spec in specs if isinstance(spec, DenseSpec)]
        numbers = [entry for entry in dense if entry.take == "values"]
        bags = [entry for entry in dense if entry.take == "padded"]
        if numbers and not embedded:
            size = self.count * math.prod(numbers[0].shape)
            return Column(self._numbers(numbers[0], size))
        if bags and not embedded:
            weighted = any(spec.weights is not None for spec in specs)
            return self._bags(bags[0], weighted)

        # The other readers of the input share these ids, so that the strictest one chooses.
        spec = min(embedded, key=_strictness, default=None)
        sizes = _sizes(spec, numbers, self.count)
        if bags:
            sizes = np.minimum(sizes, bags[0].shape[0])
        ids = self._ids(name, spec, int(sizes.sum()))
        offsets = offsets_of(sizes)
        # Every second example of several ids has one of them twice: combiners add it twice.
        firsts = offsets[:-1][sizes > 1][::2]
        ids[firsts + 1] = ids[firsts]

        weights = None
        if any(reader.weights is not None for reader in embedded):
            weights = self._weights(ids.size)
            if all(reader.encoding != "dense" for reader in embedded):
                # An id of weight 0 counts as left out, which a dense tensor cannot express.
                weights[::_ZERO_WEIGHT_EVERY] = 0
        if spec is not None and spec.entry.one_each and spec.entry.place is None:
            return Column(ids, None, weights)
        return Column(ids, offsets, weights)

    def with_unknown_ids(self, name: str, column: Column, first: int) -> Column:
        """Replaces ids of an input by ids that no table has, from position `first` on."""
        positions = np.arange(first, column.values.size, _UNKNOWN_EVERY)
        if not positions.size or not self._takes_unknown_ids(name):
            return column
        specs = self.model.inputs[name]
        unknown = self._source(name, min(specs, key=_strictness)).unknown()
        padding = self.model.padding_of(name)
        if padding is not None:
            # Padding is no id, so no example would hold an unknown one.
            unknown = unknown[unknown != padding]
        is_encoded = any(isinstance(spec, FeatureSpec) and spec.entry.indicator for spec in specs)
        if is_encoded and unknown.dtype.kind == "i":
            # One-hot and multi-hot encodings take no negative ids.
            unknown = unknown[unknown >= 0]
        if not unknown.size:
            return column
        values = column.values.copy()
        values[positions] = np.resize(unknown, positions.size)
        return column._replace(values=values)

    def with_rows(self, spec: FeatureSpec, columns: Mapping[str, Column]) -> dict[str, Column]:
        """Returns the columns of a feature that computes one row of several inputs, in which every
        example has a row, as far as combinations with rows are found.

        Examples without a row get the values of a combination that has one.
        """
        graph = spec.entry.ids
        if not isinstance(graph, manifest.GraphIds) or spec.unknown is not None:
            return {}
        if spec.entry.joint is None or graph.cross is not None:
            return {}

        # The combinations of the examples come first, so that example i is combination i.
        combinations = []
        for name in spec.reads:
            candidates = columns[name].values
            # Only values that the other readers of an input know may be put into it.
            if len(self.model.inputs[name]) == 1:
                source = self._source(name, spec)
                candidates = source.keys()
                if not candidates.size:
                    candidates = source.ordinary()
            random_values = self.random.choice(candidates, _JOINED_VALUES)
            combinations.append(np.concatenate([columns[name].values, random_values]))

        operations = Graph(graph, [self._vocabulary(table) for table in graph.tables])

        def find(*values: Values) -> Rows:
            rows = operations.results([("", column) for column in values]).astype(np.int64)
            return within(rows, self.model.rows_of(spec))

        (with_rows,) = (rows_or_none(find, *combinations) >= 0).nonzero()
        if not with_rows.size:
            return {}
        examples = np.arange(self.count)
        replacements = self.random.choice(with_rows, self.count)
        chosen = np.where(np.isin(examples, with_rows), examples, replacements)
        return {
            name: columns[name]._replace(values=values[chosen])
            for name, values in zip(spec.reads, combinations, strict=True)
        }

    def _takes_unknown_ids(self, name: str) -> bool:
        """Returns whether unknown ids of an input can be compared: no feature rejects them, and
        none leaves them out while the model itself gets them.
        """
        specs = self.model.inputs[name]
        embedded = [spec for spec in specs if isinstance(spec, FeatureSpec)]
        if self._drops_some(specs) or any(len(spec.reads) > 1 for spec in embedded):
            return False
        if any(spec.ids_dtype == "float32" for spec in embedded):
            return False
        # Without a table that ends somewhere, no id is unknown.
        is_limited = False
        for spec in specs:
            entry = self.entries[spec.name]
            if isinstance(entry, manifest.EmbeddedFeature) and isinstance(spec, FeatureSpec):
                if entry.unknown.rule == "refuse" and spec.outside.outcome != "nearest":
                    return False
                is_limited |= not entry.split
            elif isinstance(entry, manifest.DenseFeature) and entry.below is not None:
                if entry.outside == "refuse":
                    return False
                is_limited = True
        return is_limited

    def _drops_some(self, specs: Sequence[FeatureSpec | DenseSpec]) -> bool:
        """Returns whether bags leave unknown ids out that the model itself gets all the same: for
        another reader of the input, such as the number of ids, or for the model's own rule. Its
        results are then no reference.
        """
        dropping = []
        for spec in specs:
            if not isinstance(spec, FeatureSpec) or spec.entry.kind != "bag":
                continue
            if embedded_entry(self.entries, spec).unknown.rule == "zeros":
                dropping.append(spec)
        if not dropping:
            return False
        by_model_rule = any(spec.rule is not None for spec in dropping)
        return by_model_rule or len(dropping) < len(specs)

    def _ids(self, name: str, spec: FeatureSpec | None, size: int) -> Values:
        """Returns [size] ids that every reader of an input knows.

        Args:
          name: The input.
          spec: The strictest reader of the input; None: only the numbers of its ids are read.
          size: The number of ids.
        """
        if spec is not None and isinstance(spec.entry.ids, manifest.GraphIds):
            graph = spec.entry.ids
            if graph.split is not None:
                return self._texts(graph, graph.split, size)
        return self._source(name, spec).known(size)

    def _source(self, name: str, spec: FeatureSpec | DenseSpec | None) -> ValueSource:
        """Returns a source of values for an input, in the type that one of its features takes."""
        readers = []
        for reading in self.model.inputs[name]:
            reader = None
            if isinstance(reading, FeatureSpec):
                reader = self._reader(name, reading)
            elif reading.entry.below is not None:
                below = reading.entry.below
                reader = Reader(partial(_whole_within, below), below)
            if reader is not None:
                readers.append(reader)
        dtype, end = self._sent(name, spec)
        return ValueSource(dtype, readers, end, self.random)

    def _sent(self, name: str, spec: FeatureSpec | DenseSpec | None) -> tuple[SentDtype, int]:
        """Returns the type of the values that requests send, and the limit of integers."""
        if not isinstance(spec, FeatureSpec):
            return "int64", WIDE_END
        entry = embedded_entry(self.entries, spec)
        rule = entry.ids
        if entry.joint is not None:
            # `ids_dtype` is that of the first input alone.
            return _SENT.get(sent_dtype(entry, name), "int64"), INT32_END
        rule_dtype = "int64"
        if isinstance(rule, manifest.GraphIds):
            rule_dtype = rule.dtype
        if "string" in (rule_dtype, spec.ids_dtype):
            return "string", WIDE_END
        if rule_dtype == "float32" and not spec.ids_dtype.startswith("int"):
            return "float32", WIDE_END
        # Without a type, integers are taken that every type can hold.
        if spec.ids_dtype in ("", "int32"):
            return "int64", INT32_END
        return "int64", WIDE_END

    def _reader(self, name: str, spec: FeatureSpec) -> Reader | None:
        """Returns the reader of an input by a feature; None: the feature takes any value."""
        rule = embedded_entry(self.entries, spec).ids
        number = spec.reads.index(name)
        if isinstance(rule, manifest.KeyedIds):
            dumped = self.dumped[rule.keys]
            # Row 0 stands for any row of a key, -1 for none.
            return Reader(lambda ids: np.isin(ids, dumped) - np.int64(1), keys=(dumped,))
        if rule.split is not None:
            return None
        if rule.cross is not None:
            graph = rule.part(rule.cross.inputs[number])
            if len(graph.nodes) == 1:
                return None
            return self._graph_reader(graph, 0, self._row_unless_rejected(graph))
        if len(rule.inputs) > 1:
            # A value has no row by itself: `with_rows` looks for combinations.
            return self._graph_reader(rule, number, lambda ids: np.zeros(ids.size, np.int64))
        rows = self.model.rows_of(spec)
        opened = {
            table.vocabulary: self._vocabulary(table) for table in manifest.lookup_tables_of(rule)
        }
        resolve = partial(rule_of(rule, opened).resolve, "")

        def find(ids: Values) -> Rows:
            return within(resolve(ids), rows)

        return self._graph_reader(rule, 0, find, rows)

    def _row_unless_rejected(self, graph: manifest.GraphIds) -> Callable[[Values], Rows]:
        """Returns a function that has row 0 for each value that a graph takes.

        A cross hashes what the graphs of its inputs compute, so that every value has a row.
        """
        vocabularies = [self._vocabulary(table) for table in graph.tables]
        operations = Graph(graph, vocabularies, gives_texts=True)
        return lambda ids: np.zeros(operations.results([("", ids)]).shape, np.int64)

    def _graph_reader(
        self,
        graph: manifest.GraphIds,
        number: int,
        find: Callable[[Values], Rows],
        rows: int | None = None,
    ) -> Reader:
        """Returns the reader of one input of a graph."""
        keys = []
        boundaries: list[float] = []
        for node in _operations_on(graph, number):
            if "table" in node.attributes:
                table = graph.tables[node.attributes["table"]]
                keys.append(self.keys[table.vocabulary])
            boundaries += node.attributes.get("boundaries", ())
        return Reader(find, rows, tuple(keys), tuple(boundaries), _integers_of(graph))

    def _texts(self, graph: manifest.GraphIds, split: SplitNode, size: int) -> Values:
        """Returns [size] object: texts of words of the vocabularies, and of two others.

        The texts have 0 to 7 words, so that every eighth is empty.
        """
        # Short words, one with an upper-case letter and punctuation, which some layers strip.
        words = ["x", "X!"]
        for table in graph.tables:
            words += self.keys[table.vocabulary].tolist()
        counts = np.arange(size) % 8
        separator = split.separator or " "
        if split.split == "characters":
            separator = ""
        texts = np.empty(size, object)
        for i, count in enumerate(counts):
            chosen = self.random.integers(0, len(words), count)
            texts[i] = separator.join(words[word] for word in chosen)
        return texts

    def _vocabulary(self, table: manifest.LookupTable) -> Vocabulary:
        return vocabulary_of(self.keys[table.vocabulary])

    def _numbers(self, entry: manifest.DenseFeature, size: int) -> Values:
        """Returns [size] values of a feature that a tower reads directly."""
        if entry.dtype == "float32":
            return self.random.standard_normal(size).astype(np.float32)
        if entry.dtype == "string":
            return as_texts(self.random.integers(0, 100, size))
        # Nothing says what the integers mean: 0 and 1 fit most models.
        return self.random.integers(0, entry.below or 2, size)

    def _bags(self, entry: manifest.DenseFeature, weighted: bool) -> Column:
        sizes = np.arange(self.count) % min(BAG_SIZES, entry.shape[0] + 1)
        values = self._numbers(entry, int(sizes.sum()))
        weights = self._weights(values.size) if weighted else None
        return Column(values, offsets_of(sizes), weights)

    def _weights(self, size: int) -> NDArray[np.float32]:
        return self.random.uniform(0.25, 2.0, size).astype(np.float32)


def _strictness(spec: FeatureSpec | DenseSpec) -> tuple[int, bool, bool]:
    """Returns a key that sorts the strictest reader of an input first: one that reads no other
    input, then one of a single id, then one with a vocabulary.
    """
    if isinstance(spec, DenseSpec):
        return 2, True, True
    has_vocabulary = bool(manifest.lookup_tables_of(spec.entry.ids))
    return len(spec.reads), not spec.entry.one_each, not has_vocabulary


def _sizes(
    spec: FeatureSpec | None, numbers: Sequence[manifest.DenseFeature], count: int
) -> NDArray[np.int64]:
    """Returns the number of values of each example in an input that `spec` and `numbers` read."""
    fixed = _fixed_size(spec, numbers)
    if fixed is not None:
        return np.full(count, fixed, np.int64)
    below = BAG_SIZES
    if spec is not None and spec.entry.length is not None:
        # Two more than fit, so that the cutting of long sequences is compared, too.
        below = spec.entry.length + 3
    elif spec is not None and spec.ids_max is not None:
        below = min(BAG_SIZES, spec.ids_max + 1)
    return np.arange(count, dtype=np.int64) % below


def _fixed_size(spec: FeatureSpec | None, numbers: Sequence[manifest.DenseFeature]) -> int | None:
    """Returns the number of values that every example has in an input; None if examples differ."""
    if numbers:
        # The tower reads the ids as numbers, too, in a tensor of this shape.
        return math.prod(numbers[0].shape)
    if spec is None:
        return None
    entry = spec.entry
    if entry.one_each or len(spec.reads) > 1:
        # A cross has one value of each input.
        return entry.places or 1
    if spec.encoding == "dense" and entry.length is not None:
        return entry.length
    # Where no id stands for padding, every example of a dense bag is full.
    if entry.padding is not None:
        return None
    return spec.ids_max


def _whole_within(below: int, values: Values) -> Rows:
    return within(values.astype(np.int64), below)


def _integers_of(graph: manifest.GraphIds) -> tuple[int, ...]:
    """Returns the integers that a graph computes with."""
    return tuple(
        int(node.values[0])
        for node in graph.nodes
        if isinstance(node, ConstantNode) and not node.is_list and node.dtype.startswith("int")
    )


def _operations_on(graph: manifest.GraphIds, number: int) -> list[OperationNode]:
    """Returns the operations of a graph that one of its inputs has an effect on."""
    affected = set()
    operations = []
    # Nodes only read nodes before them.
    for position, node in enumerate(graph.nodes):
        if isinstance(node, InputNode) and node.input == number:
            affected.add(position)
        if isinstance(node, OperationNode) and affected.intersection(node.inputs):
            affected.add(position)
            operations.append(node)
    return operations


def vocabulary_of(keys: NDArray[Any]) -> Vocabulary:
    """Returns a vocabulary of keys in the order of their rows."""
    import pyarrow as pa

    return Vocabulary(index_keys(pa.chunked_array([pa.array(keys)])))
