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

from bundle.errors import FeatureError
from bundle.features.columns import Column
from bundle.features.input_lengths import InputLengths
from bundle.features.rules.graphs import Graph
from bundle.features.rules.ids import Rule, rule_of, within
from bundle.format import manifest
from bundle.format.id_graphs import ConstantNode, InputNode, OperationNode
from bundle.tables.vocabularies import Vocabulary, index_keys
from export.front_end.specs import DenseSpec, FeatureSpec, ModelSpec
from export.id_rules.limits import limits_of
from export.verify.examples import Examples, offsets_of

BAG_SIZES = 6
"""Made bags hold 0 to 5 ids, made sequences up to two more than fit."""
_UNKNOWN_EVERY = 7
"""One id of so many is unknown."""
_TRIED = 1 << 14
"""Values of which some lead to rows of a table."""
_TRIED_AROUND = 1 << 10
"""The same around each constant."""
NO_LIMIT = 1 << 62
"""Stands for the number of rows where ids of any size have one."""

Keys = Mapping[str, NDArray[Any]]
"""Keys of each vocabulary in the order of their rows: [size] int64 or object holding str."""
Ids = NDArray[Any]


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
        readers = self.model.inputs[name]
        embedded = [spec for spec in readers if isinstance(spec, FeatureSpec)]
        dense = [spec.entry for spec in readers if isinstance(spec, DenseSpec)]
        numbers = [entry for entry in dense if entry.take == "values"]
        bags = [entry for entry in dense if entry.take == "padded"]
        if numbers and not embedded:
            size = self.count * math.prod(numbers[0].shape)
            return Column(self._numbers(numbers[0], size))
        if bags and not embedded:
            weighted = any(spec.weights is not None for spec in readers)
            return self._bags(bags[0], weighted)

        spec = min(embedded, key=_telling, default=None)
        sizes = _sizes(spec, numbers, self.count)
        if bags:
            sizes = np.minimum(sizes, bags[0].shape[0])
        ids = self._ids(name, embedded, numbers, int(sizes.sum()))
        offsets = offsets_of(sizes)
        # Every second example of several ids has one of them twice.
        firsts = offsets[:-1][sizes > 1][::2]
        ids[firsts + 1] = ids[firsts]

        weights = None
        if any(each.weights is not None for each in embedded):
            weights = self._weights(ids.size)
            if all(each.encoding != "dense" for each in embedded):
                # An id of weight 0 counts as left out, which a dense tensor cannot say.
                weights[::7] = 0
        one_each = spec is not None and spec.entry.one_each and spec.entry.place is None
        return Column(ids, None if one_each else offsets, weights)

    def with_unknown_ids(self, name: str, column: Column, first: int) -> Column:
        """Replaces ids of an input by ids that no table has, from position `first` on."""
        unknown = self._unknown_ids(name)
        positions = np.arange(first, column.values.size, _UNKNOWN_EVERY)
        if not unknown or not positions.size:
            return column
        values = column.values.copy()
        for place, position in enumerate(positions):
            values[position] = unknown[place % len(unknown)]
        return column._replace(values=values)

    def with_rows(self, spec: FeatureSpec, columns: Mapping[str, Column]) -> dict[str, Column]:
        """Returns the inputs of a feature that computes rows of several, with other values in the
        examples of which it computes none, as far as there are any.
        """
        if not isinstance(spec.entry.ids, manifest.JoinedIds) or spec.unknown is not None:
            return {}
        graph = spec.entry.ids.ids
        tried = []
        for number, name in enumerate(spec.reads):
            if len(self.model.inputs[name]) > 1:  # others know these values
                drawn = self.random.choice(columns[name].values, _TRIED)
            else:
                reaches = 1 << self.random.integers(1, 31, _TRIED)
                drawn = self._before(graph, self.random.integers(0, reaches), number, every=1)
            tried.append(np.concatenate([columns[name].values, drawn]))
        computed = Graph(graph, [self._vocabulary(table) for table in graph.tables])
        rows = _rows_or_none(
            lambda *values: computed.results([("", one) for one in values]).astype(np.int64), *tried
        )
        (right,) = (within(rows, self.model.rows_of(spec)) >= 0).nonzero()
        if not right.size:
            return {}
        others = self.random.choice(right, self.count)
        taken = np.where(np.isin(np.arange(self.count), right), np.arange(self.count), others)
        return {
            name: columns[name]._replace(values=values[taken])
            for name, values in zip(spec.reads, tried, strict=True)
        }

    def _unknown_ids(self, name: str) -> list[Any]:
        """Returns ids of an input that no table has; none if a feature refuses them, has a row for
        every id, or leaves them out where the model is given them.
        """
        readers = self.model.inputs[name]
        embedded = [spec for spec in readers if isinstance(spec, FeatureSpec)]
        if self._drops_some(readers):
            return []
        rows = self._rows_of_tables(readers)
        if not rows or any(len(spec.reads) > 1 for spec in embedded):
            return []
        if not embedded:
            return _outside(rows, padding=None)

        spec = min(embedded, key=_telling)
        rule = self._rule_of_ids(spec)
        unknown: list[Any] = []
        if isinstance(rule, manifest.GraphIds):
            unknown = self._unknown_to(rule, rows)
        elif isinstance(rule, manifest.KeyedIds):
            unknown = _unlike(self.dumped[rule.keys], is_text=False)
        elif isinstance(rule, manifest.IdentityIds):
            unknown = _outside(rows, self.model.padding_of(name))
        if any(each.entry.indicator is not None for each in embedded):
            # No encoding takes others.
            unknown = [each for each in unknown if isinstance(each, str) or each >= 0]
        return [] if spec.ids_dtype == "float32" else unknown

    def _unknown_to(self, graph: manifest.GraphIds, rows: Sequence[int]) -> list[Any]:
        """Returns ids that no lookup table of a graph holds, or integers around its rows; none
        that it fails on, and no texts that are only hashed.
        """
        keys = [self.keys[table.vocabulary] for table in graph.tables]
        if keys:
            unknown = _unlike(np.concatenate(keys), is_text=graph.dtype == "string")
        else:
            unknown = [] if "string" in graph.dtype else _outside(rows, padding=None)
        rule = self._rule(graph)
        return [each for each in unknown if _is_taken(rule, each)]

    def _drops_some(self, readers: Sequence[FeatureSpec | DenseSpec]) -> bool:
        """Returns whether bags leave unknown ids out that the model is given all the same, for
        another reader of the input, such as the number of ids, or for a rule of its own: what it
        makes of them is then no reference.
        """
        dropping = [
            spec
            for spec in readers
            if isinstance(spec, FeatureSpec)
            and spec.entry.kind == "bag"
            and self._unknown_rule(spec) == "zeros"
        ]
        by_own_rule = any(spec.rule is not None for spec in dropping)
        return bool(dropping) and (by_own_rule or len(dropping) < len(readers))

    def _unknown_rule(self, spec: FeatureSpec) -> str:
        entry = self.entries[spec.name]
        assert isinstance(entry, manifest.EmbeddedFeature)  # noqa: S101 - of a FeatureSpec
        return entry.unknown.rule

    def _rule_of_ids(self, spec: FeatureSpec) -> manifest.IdRule:
        """Returns the rule of a feature's ids, whether the model or the recipe states it."""
        entry = self.entries[spec.name]
        assert isinstance(entry, manifest.EmbeddedFeature)  # noqa: S101 - of a FeatureSpec
        return entry.ids

    def _rows_of_tables(self, readers: Sequence[FeatureSpec | DenseSpec]) -> list[int]:
        """Returns how many rows the tables have that an input leads to; nothing if one of its
        readers refuses ids that are no rows.
        """
        rows = []
        for spec in readers:
            entry = self.entries[spec.name]
            if isinstance(entry, manifest.EmbeddedFeature) and isinstance(spec, FeatureSpec):
                refuses = entry.unknown.rule == "refuse" and spec.outside.others != "nearest"
                rows.append(self.model.rows_of(spec))
            elif isinstance(entry, manifest.DenseFeature) and entry.below is not None:
                refuses = entry.outside == "refuse"
                rows.append(entry.below)
            else:
                refuses = False
            if refuses:
                return []
        return rows

    def _ids(
        self,
        name: str,
        embedded: Sequence[FeatureSpec],
        numbers: Sequence[manifest.DenseFeature],
        size: int,
    ) -> Ids:
        """Returns [size] ids that every reader of an input knows."""
        rows = [self._reach(each) for each in embedded]
        rows += [entry.below for entry in numbers if entry.below is not None]
        below = min((entry.below for entry in numbers if entry.below is not None), default=None)
        limit = min(rows, default=NO_LIMIT)
        if not embedded:
            return self._integers(limit, below or 1 << 40, size)

        spec = min(embedded, key=_telling)
        entry = self.entries[spec.name]
        # The `ids_dtype` of a crossed feature is that of its first input alone.
        dtype = "" if len(spec.reads) > 1 else spec.ids_dtype
        narrow = dtype in ("", "int32")
        beyond = below or 1 << (31 if narrow else 40)
        if isinstance(entry, manifest.EmbeddedFeature) and isinstance(entry.ids, manifest.KeyedIds):
            ids = self.random.choice(self.dumped[entry.ids.keys], size)
        else:
            if isinstance(spec.entry.ids, manifest.TextIds):
                ids = self._texts(spec.entry.ids, size)
            else:
                ids = self._known_ids(name, entry, limit, beyond, size)
            if dtype == "string" and ids.dtype != object:
                ids = _as_text(ids)
            ids = self._computable(ids, embedded, beyond)
        if dtype.startswith("int") and ids.dtype.kind == "f":
            ids = np.floor(ids).astype(np.int64)
        return ids

    def _known_ids(
        self, name: str, entry: manifest.Feature, rows: int, beyond: int, size: int
    ) -> Ids:
        """Returns [size] ids that the rule of a feature may find a row for.

        Args:
          name: The input that holds them, one of several for a cross.
          entry: The feature.
          rows: The number of rows that ids may lead to.
          beyond: The limit of ids that are hashed.
          size: How many.
        """
        if not isinstance(entry, manifest.EmbeddedFeature):
            return self._integers(rows, beyond, size)
        rule = entry.ids
        if isinstance(rule, manifest.MultiInputIds):
            number = entry.inputs.index(name)
            key = rule.keys[number]
            integers = self.random.integers(0, beyond, size)
            if isinstance(rule, manifest.JoinedIds):
                return self._before(rule.ids, integers, number, every=1)
            if key.ids is None:
                return self._values(key.dtype, integers)
            return self._before(key.ids, integers, every=1)
        integers = self._integers(rows, beyond, size)
        return self._before(rule, integers) if isinstance(rule, manifest.GraphIds) else integers

    def _before(
        self, graph: manifest.GraphIds, integers: Ids, number: int = 0, every: int = 2
    ) -> Ids:
        """Returns [m] values of the type that an input of a graph takes. One of `every` is a key of
        a lookup table, or lies between boundaries, where there are any.
        """
        ids = self._values(graph.inputs[number].dtype, integers)
        keys = []
        boundaries: list[float] = []
        for node in _readers(graph, number):
            boundaries += node.attributes.get("boundaries", ())
            if "table" in node.attributes:
                keys.append(self.keys[graph.tables[node.attributes["table"]].vocabulary])
        listed = [each for each in keys if each.size and each.dtype == ids.dtype]
        if listed:
            ids = ids.copy()
            ids[::every] = self.random.choice(np.concatenate(listed), ids[::every].size)
        elif boundaries and ids.dtype.kind == "f":
            low = min(boundaries) - 1
            high = max(boundaries) + 1
            ids[::every] = self.random.uniform(low, high, ids[::every].size)
        return ids

    def _values(self, dtype: str, integers: Ids) -> Ids:
        """Returns [m] values of a type: integers, texts of them, or numbers of every size."""
        if dtype == "float32":
            scales = 10.0 ** self.random.integers(-1, 5, integers.size)
            return (self.random.standard_normal(integers.size) * scales).astype(np.float32)
        return _as_text(integers) if dtype == "string" else integers

    def _integers(self, rows: int, beyond: int, size: int) -> Ids:
        return self.random.integers(0, max(1, min(rows, beyond)), size)

    def _texts(self, rule: manifest.TextIds, size: int) -> Ids:
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

    def _computable(self, ids: Ids, specs: Sequence[FeatureSpec], beyond: int) -> Ids:
        """Replaces ids of which a model computes no row by others; where one in many thousands has
        a row, not all are.
        """
        graphs = [
            (rule, self.model.rows_of(spec))
            for spec in specs
            if isinstance(rule := self._rule_of_ids(spec), manifest.GraphIds)
            and spec.unknown is None
        ]
        if not graphs or ids.dtype.kind not in "ifO":
            return ids
        rules = [(self._rule(graph), rows) for graph, rows in graphs]
        of_floats = any(graph.dtype == "float32" for graph, _ in graphs)
        is_listed = any(graph.tables for graph, _ in graphs)

        def known(tried: Ids) -> NDArray[np.bool_]:
            is_whole = tried.dtype != object and not of_floats
            whole = np.floor(tried).astype(np.int64) if is_whole else tried
            found = [
                within(_rows_or_none(partial(rule.resolve, ""), whole), rows) >= 0
                for rule, rows in rules
            ]
            return np.asarray(np.all(found, axis=0))

        right = known(ids)
        if right.all():
            return ids
        if ids.dtype == object or (is_listed and right.any()):
            if not right.any():
                return ids
            return np.where(right, ids, self.random.choice(ids[right], ids.size))

        others = self._spread(graphs, beyond, is_float=ids.dtype.kind == "f")
        others = others[known(others)]
        if not others.size:
            return ids
        replaced = self.random.choice(others, int((~right).sum()))
        if ids.dtype.kind == "f" and not of_floats:
            replaced = replaced + ids[~right] % 1
        ids = ids.copy()
        ids[~right] = replaced
        return ids

    def _spread(
        self, graphs: Sequence[tuple[manifest.GraphIds, int]], beyond: int, is_float: bool
    ) -> Ids:
        """Returns integers of every size, and some around the constants of graphs, by which these
        may move ids.

        Args:
          graphs: with the number of rows of the table of each.
          beyond: the limit of integers.
          is_float: whether float32 must be exact for them.
        """
        reaches = [1 << 10, 1 << 16, 1 << 23]
        if is_float:
            beyond = min(beyond, 1 << 23)
        else:
            reaches += [1 << 31, beyond]
        spread = [self.random.integers(-each, each, _TRIED) for each in reaches if each <= beyond]
        spread += [
            center + self.random.integers(-rows, rows, _TRIED_AROUND)
            for graph, rows in graphs
            for center in _centers(graph, beyond - rows)
        ]
        return np.concatenate(spread)

    def _rule(self, graph: manifest.GraphIds) -> Rule:
        """Returns a graph as a service computes it."""
        return rule_of(graph, {table.vocabulary: self._vocabulary(table) for table in graph.tables})

    def _vocabulary(self, table: manifest.LookupTable) -> Vocabulary:
        return vocabulary_of(self.keys[table.vocabulary])

    def _reach(self, spec: FeatureSpec) -> int:
        """Returns the limit of the ids that have a row of a table."""
        rule = self._rule_of_ids(spec)
        rows = self.model.rows_of(spec)
        if isinstance(rule, manifest.GraphIds):
            sizes = [self.keys[table.vocabulary].size for table in rule.tables]
            limits = limits_of(rule, sizes)
            return NO_LIMIT if limits.low >= 0 and limits.high < rows else rows
        return rows if isinstance(rule, manifest.IdentityIds) else NO_LIMIT

    def _numbers(self, entry: manifest.DenseFeature, size: int) -> Ids:
        """Returns [size] values of a feature that a tower reads directly."""
        if entry.dtype == "float32":
            return self.random.standard_normal(size).astype(np.float32)
        if entry.dtype == "string":
            return _as_text(self.random.integers(0, 100, size))
        # What integers mean is not known here: 0 and 1 fit most.
        return self.random.integers(0, entry.below or 2, size)

    def _bags(self, entry: manifest.DenseFeature, weighted: bool) -> Column:
        sizes = np.arange(self.count) % min(BAG_SIZES, entry.shape[0] + 1)
        values = self._numbers(entry, int(sizes.sum()))
        weights = self._weights(values.size) if weighted else None
        return Column(values, offsets_of(sizes), weights)

    def _weights(self, size: int) -> NDArray[np.float32]:
        return self.random.uniform(0.25, 2.0, size).astype(np.float32)


def _outside(rows: Sequence[int], padding: int | str | None) -> list[Any]:
    """Returns integers around and outside of tables of so many rows."""
    last = max(rows)
    integers = [last, -1, last + 5, -last - 1]
    return [integer for integer in integers if integer != padding]


def _unlike(keys: Ids, is_text: bool) -> list[Any]:
    """Returns ids that are none of the keys."""
    if keys.dtype == object:
        words = ["unknown", "UNKNOWN 2", "?"]
        return [word for word in words if word not in set(keys.tolist())]
    last = int(keys.max(initial=0))
    integers = [last + 1, last + 1000]
    return [str(integer) for integer in integers] if is_text else integers


def _telling(spec: FeatureSpec) -> tuple[int, bool, bool]:
    """Puts first what tells most of an input: alone, one id of an example, which keys there are."""
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


def _centers(graph: manifest.GraphIds, beyond: int) -> list[int]:
    """Returns the integers of a graph that are no lists, with either sign, and below a limit."""
    constants = {
        int(node.values[0])
        for node in graph.nodes
        if isinstance(node, ConstantNode) and not node.is_list and node.dtype.startswith("int")
    }
    return sorted(sign * one for one in constants for sign in (-1, 1) if abs(one) < beyond)


def _readers(graph: manifest.GraphIds, number: int) -> list[OperationNode]:
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


def _rows_or_none(compute: Callable[..., Ids], *ids: Ids) -> Ids:
    """Returns [m] int64 rows of [m] ids of each input, -1 where the model's operations fail."""
    try:
        return compute(*ids)
    except FeatureError:
        if ids[0].size == 1:
            return np.array([-1])
    middle = ids[0].size // 2
    halves = [one[:middle] for one in ids], [one[middle:] for one in ids]
    return np.concatenate([_rows_or_none(compute, *half) for half in halves])


def _is_taken(rule: Rule, id_: Any) -> bool:
    """Returns whether a rule takes an id, known or not."""
    values = np.array([id_], object if isinstance(id_, str) else np.int64)
    try:
        rule.resolve("", values)
    except FeatureError:
        return False
    return True


def _as_text(ids: Ids) -> Ids:
    """Returns [n] object holding str."""
    return ids.astype(str).astype(object)


def vocabulary_of(keys: NDArray[Any]) -> Vocabulary:
    """Returns a vocabulary of keys in the order of their rows."""
    import pyarrow as pa

    return Vocabulary(index_keys(pa.chunked_array([pa.array(keys)])))
