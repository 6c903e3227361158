"""Random lookups of dense ids, in every library: single ids, and lists that have one length."""

from __future__ import annotations

from collections.abc import Callable

from tests.differential.random_models import layers
from tests.differential.random_models.drafts import DIMS, LENGTH, Activation, Draft, Input, Table
from tests.differential.random_models.id_rules import draw_rule, draw_rule_of_model
from tests.differential.random_models.rules import Rule, Wanted


def single(draft: Draft, name: str) -> Activation:
    """One id."""
    table = draft.table()
    rule = _rule(draft, name, table, is_single=True)
    draft.inputs[name] = rule.input("single")
    return Activation(_rows(draft, name, table, rule), table.dim, is_exact=True)


def fixed(draft: Draft, name: str) -> Activation:
    """As many ids for each example."""
    table = draft.table()
    rule = _rule(draft, name, table)
    draft.inputs[name] = rule.input("fixed", LENGTH)
    return _pooled(draft, name, _rows(draft, name, table, rule), LENGTH, table.dim)


def padded(draft: Draft, name: str) -> Activation:
    """Lists that end in zeros, which a mask leaves out of their sum or mean."""
    table = draft.table()
    rule = draw_rule_of_model(Wanted(draft, name, table.rows))
    draft.inputs[name] = rule.input("fixed", LENGTH, padding=0, can_be_empty=True)
    dialect = draft.dialect
    ids = _input(name)
    draft.call.append(f"rows = {_rows(draft, name, table, rule)}")
    draft.call.append(f"mask = {dialect.cast_to('float32', f'{ids} != 0')}")
    total = dialect.pool("sum", "rows * mask[:, :, None]")
    count = f"{dialect.module}.maximum({dialect.pool('sum', 'mask')}[:, None], 1.0)"
    code = draft.choice(total, f"{total} / {count}", f"{total} / {dialect.module}.sqrt({count})")
    return Activation(code, table.dim)


def weighted(draft: Draft, name: str) -> Activation:
    """As many ids as weights, which are an input of numbers."""
    table = draft.table()
    rule = _rule(draft, name, table)
    draft.inputs[name] = rule.input("fixed", LENGTH)
    scales = f"{name}_scales"
    draft.inputs[scales] = Input("float32", (0.0, 0.5, 1.0, -2.0, 0.1), "fixed", LENGTH)
    rows = _rows(draft, name, table, rule)
    code = draft.dialect.pool("sum", f"{rows} * {_input(scales)}[:, :, None]")
    return Activation(code, table.dim)


def columns_of_a_matrix(draft: Draft, name: str) -> Activation:
    """A matrix of ids, whose columns are looked up one by one, or with an offset for each."""
    dialect = draft.dialect
    dtype = draft.choice("int32", dialect.widest_integer)
    ids = _input(name)
    if draft.chance(0.5):
        rows = draft.integer(3, 9)
        table = draft.new_table(LENGTH * rows)
        draft.inputs[name] = Input(dtype, range(rows), "fixed", LENGTH)
        firsts = dialect.array.format(
            values=[rows * column for column in range(LENGTH)], dtype=dtype
        )
        return _pooled(draft, name, draft.rows(table, f"{ids} + {firsts}"), LENGTH, table.dim)
    table = draft.table()
    draft.inputs[name] = Input(dtype, range(table.rows), "fixed", LENGTH)
    first = draft.rows(table, f"{ids}[:, 0]")
    columns = draft.choice(*dialect.columns).format(ids=ids)
    others = _pooled(draft, name, draft.rows(table, columns), LENGTH - 1, table.dim)
    code = dialect.joined(first, others.code)
    return Activation(code, table.dim + others.width, others.is_exact)


def crossed(draft: Draft, name: str) -> Activation:
    """A row for two inputs."""
    table = draft.table()
    other = f"{name}_too"
    for key in (name, other):
        text = Input("string", ("red", "green", "", "über", "7"))
        draft.inputs[key] = draft.choice(text, Input("int64", (0, 1, -1, 7, 1 << 40, -(1 << 63))))
    keys = [_input(name), _input(other)]
    if draft.inputs[other].dtype == "int64":
        keys[1] = draft.choice(keys[1], f"{keys[1]} % 9", f"self.{name}_buckets({keys[1]})")
    if "buckets" in keys[1]:
        draft.constructor.append(f"self.{name}_buckets = layers.Discretization([0.0, 5.0])")
    draft.constructor.append(f"self.{name}_ids = layers.HashedCrossing({table.rows})")
    ids = f"self.{name}_ids(({', '.join(keys)}))"
    return Activation(draft.rows(table, ids), table.dim, is_exact=True)


def joined(draft: Draft, name: str) -> Activation:
    """A row for a text that is joined of two inputs."""
    table = draft.table()
    other = f"{name}_too"
    draft.inputs[name] = Input("string", ("red", "green", "", "über", "7"))
    draft.inputs[other] = Input("int64", (0, 1, -1, 7, 1 << 40, -(1 << 63)))
    texts = [_input(name), f"tf.strings.as_string({_input(other)})"]
    if draft.chance(0.3):
        texts = [
            f"tf.strings.lower({texts[0]})",
            '"of"',
            f"tf.strings.as_string({_input(other)} % 9)",
        ]
    text = f'tf.strings.join([{", ".join(texts)}], "_X_")'
    if len(texts) == 2 and draft.chance(0.5):
        text = f'tf.strings.reduce_join(tf.stack([{", ".join(texts)}], 1), 1, separator="|")'
    hashed = f"tf.strings.to_hash_bucket_fast({text}, {table.rows})"
    return Activation(draft.rows(table, hashed), table.dim, is_exact=True)


def numbers_of_words(draft: Draft, name: str) -> Activation:
    """Ids of texts, which the model takes as numbers."""
    draft.inputs[name] = Input("string", ("red", "green", "", "über", "7"))
    draft.constructor.append(f"self.{name}_ids = layers.Hashing({draft.integer(2, 500)})")
    numbers = draft.dialect.cast_to("float32", f"self.{name}_ids({_input(name)})")
    return Activation(f"({numbers})[:, None]", 1, is_exact=True)


def normalized(draft: Draft, name: str) -> Activation:
    """Numbers that a layer normalizes."""
    draft.inputs[name] = Input("float32", (0.0, -0.5, 3.25, 1e4), "fixed", LENGTH)
    draft.constructor += [
        f"self.{name}_scale = layers.Normalization(mean=0.5, variance=4.0)",
        # Keras 3 leaves the values of its first call in the graph of that call.
        f"self.{name}_scale.build((None, {LENGTH}))",
    ]
    return Activation(f"self.{name}_scale({_input(name)})", LENGTH)


def reduced(draft: Draft, name: str) -> Activation:
    """Rows that a layer of keras-rs combines, whose sparse ids lose none."""
    rows = draft.integer(5, 40)
    dim = draft.choice(*DIMS)
    combiner = draft.choice("sum", "mean", "sqrtn")
    encoding = draft.choice("fixed", "ragged", "sparse")
    weights = draft.choice((), (0.5, 1.0, 3.0)) if encoding != "fixed" else ()
    draft.inputs[name] = Input("int64", range(rows), encoding, LENGTH, weights=weights)
    draft.extracted.add((rows, dim))
    draft.constructor += [
        "from keras_rs.layers import EmbedReduce",
        f'self.{name}_rows = EmbedReduce({rows}, {dim}, combiner="{combiner}")',
    ]
    weights_of_ids = f', inputs["{name}_weights"]' if weights else ""
    return Activation(f"self.{name}_rows({_input(name)}{weights_of_ids})", dim)


def taken(draft: Draft, name: str) -> Activation:
    """Ids of any size, of which JAX makes rows."""
    table = draft.table()
    draft.inputs[name] = Input("int32", Wanted(draft, name, table.rows).integers("int32"))
    matrix = draft.matrix(table)
    ids = _input(name)
    wrapped = f'jnp.take({matrix}, {ids}, axis=0, mode="wrap")'
    clipped = f'jnp.take({matrix}, {ids}, axis=0, mode="clip")'
    rows = draft.choice(wrapped, clipped, f"{matrix}[{ids}]")
    return Activation(draft.dialect.cast_to("float32", rows), table.dim, is_exact=True)


def tied(draft: Draft, name: str) -> Activation:
    """Rows that are multiplied with their whole table."""
    table = draft.new_table(dtypes=("float32",), can_be_shared=False)
    rule = Rule("int32", range(table.rows))
    if draft.chance(0.5):
        rule = draw_rule_of_model(Wanted(draft, name, table.rows))
        draft.known = "the parity check does not restore a table that is also read as a whole"
    draft.inputs[name] = rule.input("single")
    whole = f"{draft.dialect.module}.transpose({draft.matrix(table)})"
    return Activation(f"{_rows(draft, name, table, rule)} @ {whole}", table.rows)


Lookup = Callable[[Draft, str], Activation]
EVERYWHERE: tuple[Lookup, ...] = (
    *(single, single, single, fixed, fixed, padded, padded),
    *(weighted, columns_of_a_matrix, tied),
)
OF_KERAS: tuple[Lookup, ...] = (crossed, numbers_of_words, normalized, *layers.ENCODINGS)
GATHERS: dict[str, tuple[Lookup, ...]] = {
    "tensorflow": (*EVERYWHERE, *OF_KERAS, joined),
    "keras": (*EVERYWHERE, *OF_KERAS, reduced),
    "flax": (*EVERYWHERE, taken),
    "jax": (*EVERYWHERE, taken),
}
"""By the name of the dialect."""


def _input(name: str) -> str:
    return f'inputs["{name}"]'


def _rule(draft: Draft, name: str, table: Table, *, is_single: bool = False) -> Rule:
    return draw_rule(Wanted(draft, name, table.rows, draft.dialect.below_zero, is_single))


def _rows(draft: Draft, name: str, table: Table, rule: Rule) -> str:
    """Returns code that looks up the rows of an input."""
    if rule.is_partial and draft.dialect.name == "keras" and not table.is_layer:
        draft.known = "requests that the service makes fail in a tower that computes such rows"
    return draft.rows(table, rule.of(_input(name)))


def _pooled(draft: Draft, name: str, rows: str, length: int, dim: int) -> Activation:
    """Returns one vector for the rows of each example."""
    if draft.dialect.recurrences and draft.chance(0.15):
        layer = draft.choice(*draft.dialect.recurrences)
        draft.constructor.append(f"self.{name}_steps = layers.{layer}")
        return Activation(f"self.{name}_steps({rows})", 2)
    pool = draft.choice("flat", *draft.dialect.pools)
    if pool != "flat":
        return Activation(draft.dialect.pool(pool, rows), dim, pool == "max")
    width = length * dim
    return Activation(draft.dialect.flat.format(value=rows, width=width), width, is_exact=True)
