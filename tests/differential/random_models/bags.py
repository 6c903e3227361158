"""Random lookups of TensorFlow alone: bags of ragged and sparse ids, and TPU embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.differential.random_models.drafts import DIMS, Activation, Draft, Input, Table
from tests.differential.random_models.id_rules import draw_rule_of_bags
from tests.differential.random_models.rules import Rule, Wanted

COMBINERS = ("sum", "mean", "mean", "sqrtn")
LENGTH = 5
"""Ids of a bag, at most."""
WEIGHTS = (0.25, 0.5, 1.0, 2.0, 3.0)
ANY_WEIGHTS = (*WEIGHTS, 0.0, -0.5)
"""Those of ids that safe lookups leave out, except of sums, are among them."""


def plain_bag(draft: Draft, name: str) -> Activation:
    """`embedding_lookup_sparse` of ragged or sparse ids."""
    table = draft.table(("float32",))
    rule = draw_rule_of_bags(Wanted(draft, name, table.rows))
    encoding = draft.choice("ragged", "sparse")
    weights = draft.choice((), WEIGHTS, WEIGHTS)
    draft.inputs[name] = rule.input(encoding, LENGTH, weights=weights, can_be_empty=True)
    options = draft.choice("", ", max_norm=0.1")
    combiner = draft.choice(*COMBINERS)
    code = (
        f"tf.nn.embedding_lookup_sparse({draft.matrix(table)}, {_ids(name, rule, encoding)}, "
        f'{_weights(name, weights)}, combiner="{combiner}"{options})'
    )
    return Activation(code, table.dim)


def safe_bag(draft: Draft, name: str) -> Activation:
    """`safe_embedding_lookup_sparse`, which leaves negative ids out."""
    table = draft.table(("float32",))
    encoding = draft.choice("sparse", "sparse", "ragged")
    rule = draw_rule_of_bags(Wanted(draft, name, table.rows, "dropped"))
    weights = draft.choice((), WEIGHTS, ANY_WEIGHTS)
    draft.inputs[name] = rule.input(encoding, LENGTH, weights=weights, can_be_empty=True)
    options = draft.choice("", ", max_norm=0.1", f", default_id={draft.integer(0, table.rows - 1)}")
    combiner = draft.choice(*COMBINERS)
    code = (
        f"tf.nn.safe_embedding_lookup_sparse({draft.matrix(table)}, "
        f"{_ids(name, rule, encoding)}, {_weights(name, weights)}, "
        f'combiner="{combiner}"{options})'
    )
    return Activation(code, table.dim)


def reduced_rows(draft: Draft, name: str) -> Activation:
    """Rows of ragged ids, reduced by TensorFlow."""
    table = draft.table(("float32",))
    rule = draw_rule_of_bags(Wanted(draft, name, table.rows))
    combiner = draft.choice("sum", "mean")
    # A mean of nothing is not a number.
    draft.inputs[name] = rule.input("ragged", LENGTH, can_be_empty=combiner == "sum")
    code = f"tf.reduce_{combiner}({_rows(draft, name, table, rule)}, axis=1)"
    return Activation(code, table.dim)


def ragged_sequence(draft: Draft, name: str) -> Activation:
    """Rows of ragged ids in a tensor of a fixed length, which cuts longer lists."""
    table = draft.table(("float32",))
    rule = draw_rule_of_bags(Wanted(draft, name, table.rows))
    draft.inputs[name] = rule.input("ragged", LENGTH, weights=(), can_be_empty=True)
    length = draft.integer(1, LENGTH + 1)
    rows = _rows(draft, name, table, rule)
    width = length * table.dim
    dense = f"{rows}.to_tensor(shape=[None, {length}, {table.dim}])"
    return Activation(f"tf.reshape({dense}, [-1, {width}])", width, is_exact=True)


def counted_ids(draft: Draft, name: str) -> Activation:
    """Ragged ids, and how many of them there are."""
    bag = plain_bag(draft, name)
    if draft.inputs[name].encoding == "sparse":
        return bag
    counts = f"tf.cast({_input(name)}.row_lengths(), tf.float32)[:, None]"
    return Activation(f"tf.concat([{bag.code}, {counts}], 1)", bag.width + 1)


def ragged_numbers(draft: Draft, name: str) -> Activation:
    """As many numbers as an example has, perhaps with weights, which no table has rows for."""
    weights = draft.choice((), WEIGHTS)
    draft.inputs[name] = Input(
        "float32", (0.5, -1.0, 2.0, 0.0), "ragged", LENGTH, weights=weights, can_be_empty=True
    )
    numbers = _input(name)
    if weights:
        numbers = f"{numbers} * {_weights(name, weights)}"
    return Activation(f"tf.reduce_sum({numbers}, 1)[:, None]", 1)


def tpu_gather(draft: Draft, name: str) -> Activation:
    """Dense ids of the mid-level API, which are gathered whatever combiner their table has."""
    rows = draft.integer(5, 40)
    dim = draft.choice(*DIMS)
    encoding = draft.choice("single", "fixed")
    rule = draw_rule_of_bags(Wanted(draft, name, rows))
    draft.inputs[name] = rule.input(encoding, LENGTH)
    code = _tpu_lookup(draft, name, _tpu_table(draft, name, rows, dim), rule.of(_input(name)), ())
    if encoding == "single":
        return Activation(code, dim, is_exact=True)
    width = LENGTH * dim
    return Activation(f"tf.reshape({code}, [-1, {width}])", width, is_exact=True)


def tpu_bag(draft: Draft, name: str) -> Activation:
    """Ragged or sparse ids of the mid-level API."""
    rows = draft.integer(5, 40)
    dim = draft.choice(*DIMS)
    encoding = draft.choice("ragged", "sparse")
    # TensorFlow's ragged lookup fails for negative rows.
    below_zero = "dropped" if encoding == "sparse" else "fails"
    rule = draw_rule_of_bags(Wanted(draft, name, rows, below_zero))
    weights = draft.choice((), WEIGHTS, WEIGHTS)
    if rule.drops_unknown and draft.states_examples:
        draft.known = "the parity check counts ids of a bag that TensorFlow leaves out"
    draft.inputs[name] = rule.input(encoding, LENGTH, weights=weights, can_be_empty=True)
    table = _tpu_table(draft, name, rows, dim)
    return Activation(_tpu_lookup(draft, name, table, _ids(name, rule, encoding), weights), dim)


def tpu_sequence(draft: Draft, name: str) -> Activation:
    """Ragged or sparse ids of the mid-level API, in a tensor of a fixed length."""
    rows = draft.integer(5, 40)
    dim = draft.choice(*DIMS)
    encoding = draft.choice("ragged", "sparse")
    rule = draw_rule_of_bags(Wanted(draft, name, rows))
    draft.inputs[name] = rule.input(encoding, LENGTH, can_be_empty=True)
    length = draft.integer(2, LENGTH + 1)
    width = length * dim
    table = _tpu_table(draft, name, rows, dim, f", max_sequence_length={length}")
    code = _tpu_lookup(draft, name, table, _ids(name, rule, encoding), ())
    return Activation(f"tf.reshape({code}, [-1, {width}])", width, is_exact=True)


Bag = Callable[[Draft, str], Activation]
BAGS: tuple[Bag, ...] = (
    plain_bag,
    plain_bag,
    safe_bag,
    safe_bag,
    reduced_rows,
    ragged_sequence,
    counted_ids,
    ragged_numbers,
    tpu_gather,
    tpu_bag,
    tpu_sequence,
)


def _tpu_table(draft: Draft, name: str, rows: int, dim: int, options: str = "") -> str:
    """Returns the code of a feature over a table of its own."""
    combiner = draft.choice(*COMBINERS)
    draft.extracted.add((rows, dim))
    table = f'E.TableConfig({rows}, {dim}, combiner="{combiner}", name="{name}_table")'
    return f"E.FeatureConfig({table}{options})"


def _tpu_lookup(draft: Draft, name: str, feature: str, ids: str, weights: Sequence[float]) -> str:
    """Adds the tables of a feature; returns the code of its lookup."""
    config = f"self.{name}_config"
    is_for_serving = not weights and draft.chance(0.3)
    tables = f"E.TPUEmbedding({config}, E.SGD(0.1))"
    if is_for_serving:
        tables = f"E.TPUEmbeddingForServing({config}, None)"
    draft.constructor += [
        f"{config} = {feature}",
        f"self.{name}_tables = {tables}",
        f"self.{name}_tables.build()",
    ]
    if is_for_serving:
        return f"self.{name}_tables({ids})"
    variables = f"self.{name}_tables.embedding_tables"
    return f"E.serving_embedding_lookup({ids}, {_weights(name, weights)}, {variables}, {config})"


def _input(name: str) -> str:
    return f'inputs["{name}"]'


def _ids(name: str, rule: Rule, encoding: str) -> str:
    """Returns ids with their rule, as ragged or sparse as they are."""
    ids = _input(name)
    if rule.template == "{ids}":
        return ids
    values = rule.of(f"{ids}.values")
    if encoding == "ragged":
        return f"{ids}.with_values({values})"
    return f"tf.SparseTensor({ids}.indices, {values}, {ids}.dense_shape)"


def _weights(name: str, weights: Sequence[float]) -> str:
    return _input(f"{name}_weights") if weights else "None"


def _rows(draft: Draft, name: str, table: Table, rule: Rule) -> str:
    return draft.rows(table, _ids(name, rule, "ragged"))
