"""Random lookups of dense ids, in every library: single ids, and lists that have one length."""

from __future__ import annotations

from collections.abc import Callable

from tests.differential.random_models import layers
from tests.differential.random_models.drafts import LENGTH, Activation, Draft, Input, Table
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
    return _pooled(draft, _rows(draft, name, table, rule), LENGTH, table.dim)


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
        return _pooled(draft, draft.rows(table, f"{ids} + {firsts}"), LENGTH, table.dim)
    table = draft.table()
    draft.inputs[name] = Input(dtype, range(table.rows), "fixed", LENGTH)
    first = draft.rows(table, f"{ids}[:, 0]")
    others = _pooled(draft, draft.rows(table, f"{ids}[:, 1:]"), LENGTH - 1, table.dim)
    code = dialect.joined(first, others.code)
    return Activation(code, table.dim + others.width, others.is_exact)


def crossed(draft: Draft, name: str) -> Activation:
    """A row for two inputs."""
    table = draft.table()
    other = f"{name}_too"
    for key in (name, other):
        text = Input("string", ("red", "green", "", "über", "7"))
        draft.inputs[key] = draft.choice(text, Input("int64", (0, 1, -1, 7, 1 << 40, -(1 << 63))))
    pair = f"({_input(name)}, {_input(other)})"
    draft.constructor.append(f"self.{name}_ids = layers.HashedCrossing({table.rows})")
    return Activation(draft.rows(table, f"self.{name}_ids({pair})"), table.dim, is_exact=True)


def joined(draft: Draft, name: str) -> Activation:
    """A row for a text that is joined of two inputs."""
    table = draft.table()
    other = f"{name}_too"
    draft.inputs[name] = Input("string", ("red", "green", "", "über", "7"))
    draft.inputs[other] = Input("int64", (0, 1, -1, 7, 1 << 40, -(1 << 63)))
    texts = f"[{_input(name)}, tf.strings.as_string({_input(other)})]"
    ids = f'tf.strings.to_hash_bucket_fast(tf.strings.join({texts}, "_X_"), {table.rows})'
    return Activation(draft.rows(table, ids), table.dim, is_exact=True)


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
OF_KERAS: tuple[Lookup, ...] = (crossed, *layers.ENCODINGS)
GATHERS: dict[str, tuple[Lookup, ...]] = {
    "tensorflow": (*EVERYWHERE, *OF_KERAS, joined),
    "keras": (*EVERYWHERE, *OF_KERAS),
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


def _pooled(draft: Draft, rows: str, length: int, dim: int) -> Activation:
    """Returns one vector for the rows of each example."""
    pool = draft.choice("flat", *draft.dialect.pools)
    if pool != "flat":
        return Activation(draft.dialect.pool(pool, rows), dim, pool == "max")
    width = length * dim
    return Activation(draft.dialect.flat.format(value=rows, width=width), width, is_exact=True)
