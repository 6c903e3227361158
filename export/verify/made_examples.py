"""Examples that are invented where a recipe names no file of examples: known ids, and some that no
table has.
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
from bundle.format.id_graphs import ConstantNode, InputNode, OperationNode
from bundle.tables.id_values import Rows, Values
from bundle.tables.vocabularies import Vocabulary, index_keys
from export.front_end.specs import DenseSpec, FeatureSpec, ModelSpec
from export.verify.drawn_values import (
    INT32_END,
    WIDE_END,
    Reader,
    SentDtype,
    ValueSource,
    as_texts,
    rows_or_none,
)
from export.verify.examples import Examples, offsets_of

BAG_SIZES = 6
"""Made bags hold 0 to 5 ids, made sequences up to two more than fit."""
_UNKNOWN_EVERY = 7
"""One id of so many is unknown."""
_JOINED_VALUES = 1 << 14
"""Combinations of values of several inputs, of which some lead to rows."""

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
      model: the traced features and tables.
      entries: the manifest's features.
      keys: of each vocabulary.
      count: how many.
      dumped: some keys of each table whose rows are found by key.
      unknown_ids: whether some ids of each input are such that no table has, if its features take
        them.
    """
    maker = _Maker(model, entries, keys, dumped, count, np.random.default_rng(0))
    columns = {}
    for number, name in enumerate(model.inputs):
        column = maker.column(name)
        if unknown_ids:
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

        spec = min(embedded, key=_telling, default=None)
        sizes = _sizes(spec, numbers, self.count)
        if bags:
            sizes = np.minimum(sizes, bags[0].shape[0])
        ids = self._ids(name, spec, int(sizes.sum()))
        offsets = offsets_of(sizes)
        # Every second example of several ids has one of them twice.
        firsts = offsets[:-1][sizes > 1][::2]
        ids[firsts + 1] = ids[firsts]

        weights = None
        if any(other.weights is not None for other in embedded):
            weights = self._weights(ids.size)
            if all(other.encoding != "dense" for other in embedded):
                # An id of weight 0 counts as left out, which a dense tensor cannot say.
                weights[::7] = 0
        one_each = spec is not None and spec.entry.one_each and spec.entry.place is None
        return Column(ids, None if one_each else offsets, weights)

    def with_unknown_ids(self, name: str, column: Column, first: int) -> Column:
        """Replaces ids of an input by ids that no table has, from position `first` on."""
        positions = np.arange(first, column.values.size, _UNKNOWN_EVERY)
        if not positions.size or not self._takes_unknown_ids(name):
            return column
        specs = self.model.inputs[name]
        unknown = self._source(name, min(specs, key=_telling)).unknown()
        if self.model.padding_of(name) is not None:
            unknown = unknown[unknown != self.model.padding_of(name)]
        is_encoded = any(isinstance(spec, FeatureSpec) and spec.entry.indicator for spec in specs)
        if is_encoded and unknown.dtype.kind == "i":
            unknown = unknown[unknown >= 0]  # no encoding takes others
        if not unknown.size:
            return column
        values = column.values.copy()
        values[positions] = np.resize(unknown, positions.size)
        return column._replace(values=values)

    def with_rows(self, spec: FeatureSpec, columns: Mapping[str, Column]) -> dict[str, Column]:
        """Returns the inputs of a feature that computes rows of several, with other values in the
        examples of which it computes none, as far as there are any.
        """
        if not isinstance(spec.entry.ids, manifest.JoinedIds) or spec.unknown is not None:
            return {}
        graph = spec.entry.ids.ids
        tried = []
        for name in spec.reads:
            pool = columns[name].values
            if len(self.model.inputs[name]) == 1:  # else others know these values
                source = self._source(name, spec)
                keys = source.keys()
                pool = keys if keys.size else source.ordinary()
            drawn = self.random.choice(pool, _JOINED_VALUES)
            tried.append(np.concatenate([columns[name].values, drawn]))
        computed = Graph(graph, [self._vocabulary(table) for table in graph.tables])

        def find(*values: Values) -> Rows:
            rows = computed.results([("", column) for column in values]).astype(np.int64)
            return within(rows, self.model.rows_of(spec))

        (known,) = (rows_or_none(find, *tried) >= 0).nonzero()
        if not known.size:
            return {}
        others = self.random.choice(known, self.count)
        taken = np.where(np.isin(np.arange(self.count), known), np.arange(self.count), others)
        return {
            name: columns[name]._replace(values=values[taken])
            for name, values in zip(spec.reads, tried, strict=True)
        }

    def _takes_unknown_ids(self, name: str) -> bool:
        """Returns whether no feature rejects unknown ids of an input, and none leaves them out
        where the model is given them.
        """
        specs = self.model.inputs[name]
        embedded = [spec for spec in specs if isinstance(spec, FeatureSpec)]
        if self._drops_some(specs) or any(len(spec.reads) > 1 for spec in embedded):
            return False
        if any(spec.ids_dtype == "float32" for spec in embedded):
            return False
        is_limited = False
        for spec in specs:
            entry = self.entries[spec.name]
            if isinstance(entry, manifest.EmbeddedFeature) and isinstance(spec, FeatureSpec):
                if entry.unknown.rule == "refuse" and spec.outside.outcome != "nearest":
                    return False
                is_limited |= not isinstance(entry.ids, manifest.TextIds)
            elif isinstance(entry, manifest.DenseFeature) and entry.below is not None:
                if entry.outside == "refuse":
                    return False
                is_limited = True
        return is_limited

    def _drops_some(self, specs: Sequence[FeatureSpec | DenseSpec]) -> bool:
        """Returns whether bags leave unknown ids out that the model is given all the same, for
        another reader of the input, such as the number of ids, or for a rule of its own: what it
        makes of them is then no reference.
        """
        dropping = [
            spec
            for spec in specs
            if isinstance(spec, FeatureSpec)
            and spec.entry.kind == "bag"
            and self._entry(spec).unknown.rule == "zeros"
        ]
        by_own_rule = any(spec.rule is not None for spec in dropping)
        return bool(dropping) and (by_own_rule or len(dropping) < len(specs))

    def _entry(self, spec: FeatureSpec) -> manifest.EmbeddedFeature:
        """Returns the entry of a feature, whether the model or the recipe states its rule."""
        entry = self.entries[spec.name]
        assert isinstance(entry, manifest.EmbeddedFeature)  # noqa: S101 - of a FeatureSpec
        return entry

    def _ids(self, name: str, spec: FeatureSpec | None, size: int) -> Values:
        """Returns [size] ids that every reader of an input knows.

        Args:
          name: The input.
          spec: The feature that tells most of it; None: only the numbers of its ids are read.
          size: How many.
        """
        if spec is not None and isinstance(spec.entry.ids, manifest.TextIds):
            return self._texts(spec.entry.ids, size)
        return self._source(name, spec).known(size)

    def _source(self, name: str, spec: FeatureSpec | DenseSpec | None) -> ValueSource:
        """Returns what draws values of an input, in the type that a feature of it takes."""
        readers = []
        for other in self.model.inputs[name]:
            if isinstance(other, FeatureSpec):
                reader = self._reader(name, other)
            elif other.entry.below is not None:
                reader = Reader(partial(_whole_within, other.entry.below), other.entry.below)
            else:
                reader = None
            if reader is not None:
                readers.append(reader)
        dtype, end = self._sent(name, spec)
        return ValueSource(dtype, readers, end, self.random)

    def _sent(self, name: str, spec: FeatureSpec | DenseSpec | None) -> tuple[SentDtype, int]:
        """Returns the type of what callers send, and the limit of integers."""
        if not isinstance(spec, FeatureSpec):
            return "int64", WIDE_END
        rule = self._entry(spec).ids
        if isinstance(rule, manifest.MultiInputIds):
            # `ids_dtype` is that of the first input alone.
            return rule.keys[spec.reads.index(name)].dtype, INT32_END
        taken = rule.dtype if isinstance(rule, manifest.GraphIds) else "int64"
        if "string" in (taken, spec.ids_dtype):
            return "string", WIDE_END
        if taken == "float32" and not spec.ids_dtype.startswith("int"):
            return "float32", WIDE_END
        return "int64", INT32_END if spec.ids_dtype in ("", "int32") else WIDE_END

    def _reader(self, name: str, spec: FeatureSpec) -> Reader | None:
        """Returns what a feature makes of the values of an input; None if it takes any."""
        rule = self._entry(spec).ids
        number = spec.reads.index(name)
        if isinstance(rule, manifest.TextIds):
            return None
        if isinstance(rule, manifest.KeyedIds):
            dumped = self.dumped[rule.keys]
            return Reader(lambda ids: np.isin(ids, dumped) - np.int64(1), keys=(dumped,))
        if isinstance(rule, manifest.CrossedIds):
            graph = rule.keys[number].ids
            return None if graph is None else self._graph_reader(graph, 0, self._no_error_of(graph))
        if isinstance(rule, manifest.JoinedIds):  # one value alone has no row: see `with_rows`
            return self._graph_reader(rule.ids, number, lambda ids: np.zeros(ids.size, np.int64))
        rows = self.model.rows_of(spec)
        opened = {
            table.vocabulary: self._vocabulary(table) for table in manifest.lookup_tables_of(rule)
        }
        resolve = partial(rule_of(rule, opened).resolve, "")

        def find(ids: Values) -> Rows:
            return within(resolve(ids), rows)

        if isinstance(rule, manifest.GraphIds):
            return self._graph_reader(rule, 0, find, rows)
        return Reader(find, rows)

    def _no_error_of(self, graph: manifest.GraphIds) -> Callable[[Values], Rows]:
        """Returns what has a row for each value that a graph takes."""
        computed = Graph(graph, [self._vocabulary(one) for one in graph.tables], gives_texts=True)
        return lambda ids: np.zeros(computed.results([("", ids)]).shape, np.int64)

    def _graph_reader(
        self,
        graph: manifest.GraphIds,
        number: int,
        find: Callable[[Values], Rows],
        rows: int | None = None,
    ) -> Reader:
        """Returns the reader of one input of a graph."""
        nodes = _operations_on(graph, number)
        keys = [
            self.keys[graph.tables[node.attributes["table"]].vocabulary]
            for node in nodes
            if "table" in node.attributes
        ]
        boundaries = [
            boundary for node in nodes for boundary in node.attributes.get("boundaries", ())
        ]
        return Reader(find, rows, tuple(keys), tuple(boundaries), _integers_of(graph))

    def _texts(self, rule: manifest.TextIds, size: int) -> Values:
        """Returns [size] object: texts of words that are known, mostly; every eighth has none."""
        known = ["x", "X!"]
        for table in rule.ids.tables:
            known += self.keys[table.vocabulary].tolist()
        counts = np.arange(size) % 8
        space = "" if rule.split == "characters" else " "
        texts = np.empty(size, object)
        for place, count in enumerate(counts):
            words = self.random.integers(0, len(known), count)
            texts[place] = space.join(known[word] for word in words)
        return texts

    def _vocabulary(self, table: manifest.LookupTable) -> Vocabulary:
        return vocabulary_of(self.keys[table.vocabulary])

    def _numbers(self, entry: manifest.DenseFeature, size: int) -> Values:
        """Returns [size] values of a feature that a tower reads directly."""
        if entry.dtype == "float32":
            return self.random.standard_normal(size).astype(np.float32)
        if entry.dtype == "string":
            return as_texts(self.random.integers(0, 100, size))
        # What integers mean is not known here: 0 and 1 fit most.
        return self.random.integers(0, entry.below or 2, size)

    def _bags(self, entry: manifest.DenseFeature, weighted: bool) -> Column:
        sizes = np.arange(self.count) % min(BAG_SIZES, entry.shape[0] + 1)
        values = self._numbers(entry, int(sizes.sum()))
        weights = self._weights(values.size) if weighted else None
        return Column(values, offsets_of(sizes), weights)

    def _weights(self, size: int) -> NDArray[np.float32]:
        return self.random.uniform(0.25, 2.0, size).astype(np.float32)


def _telling(spec: FeatureSpec | DenseSpec) -> tuple[int, bool, bool]:
    """Puts first what tells most of an input: alone, one id of an example, which keys there are."""
    if isinstance(spec, DenseSpec):
        return 2, True, True
    is_listed = bool(manifest.lookup_tables_of(spec.entry.ids))
    return len(spec.reads), not spec.entry.one_each, not is_listed


def _sizes(
    spec: FeatureSpec | None, numbers: Sequence[manifest.DenseFeature], count: int
) -> NDArray[np.int64]:
    """Returns how many values each example has in an input that `spec` and `numbers` read."""
    fixed = _fixed_size(spec, numbers)
    if fixed is not None:
        return np.full(count, fixed, np.int64)
    below = BAG_SIZES
    if spec is not None and spec.entry.length is not None:
        below = spec.entry.length + 3
    elif spec is not None and spec.ids_max is not None:
        below = min(BAG_SIZES, spec.ids_max + 1)
    return np.arange(count, dtype=np.int64) % below


def _fixed_size(spec: FeatureSpec | None, numbers: Sequence[manifest.DenseFeature]) -> int | None:
    """Returns how many values every example has in an input; None if examples differ."""
    if numbers:  # the ids are read as numbers, too
        return math.prod(numbers[0].shape)
    if spec is None:
        return None
    entry = spec.entry
    if entry.one_each or len(spec.reads) > 1:  # of a cross, one value of each input
        return entry.places or 1
    if spec.encoding == "dense" and entry.length is not None:
        return entry.length
    # Where no id stands for padding, every example of a dense bag is full.
    return spec.ids_max if entry.padding is None else None


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
    readers = {}
    for position, node in enumerate(graph.nodes):
        if isinstance(node, InputNode):
            is_read = node.input == number
        else:
            is_read = isinstance(node, OperationNode) and any(
                operand in readers for operand in node.inputs
            )
        if is_read:
            readers[position] = node
    return [node for node in readers.values() if isinstance(node, OperationNode)]


def vocabulary_of(keys: NDArray[Any]) -> Vocabulary:
    """Returns a vocabulary of keys in the order of their rows."""
    import pyarrow as pa

    return Vocabulary(index_keys(pa.chunked_array([pa.array(keys)])))
