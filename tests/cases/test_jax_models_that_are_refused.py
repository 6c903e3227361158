"""Models in JAX that cannot be exported: each is refused with the primitive or the field at fault,
the user's line where there is one, and a remedy.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from export.errors import ExportError
from export.jobs import bundle_job
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings
from tests.units.export.checkpoint.orbax_trees import write_item

jax = pytest.importorskip("jax")
jnp = jax.numpy
lax = jax.lax

BATCH = 6
"""The batch of training where feature specifications state one; also the size of other axes."""
SQUARE = np.arange(36, dtype=np.float32).reshape(6, 6)
STORED = {"params.w": np.ones((4, 2), np.float32), "params.table": np.ones((6, 3), np.float32)}
PARTS = {"w": (4, 2), "table": (6, 3)}
INPUTS = {"x": {"dtype": "float32", "shape": [4]}, "ids": {"dtype": "int32", "shape": [4]}}
BAGS = {"user": {"dtype": "int32"}, "x": INPUTS["x"]}
THIS_LINE = "(test_jax_models_that_are_refused.py:"


@dataclass(frozen=True)
class Refusal:
    """A model and what the message about it holds.

    Attributes:
      returned: A function that returns what the factory returns.
      words: Words of the message.
      stored: The arrays of the checkpoint.
      recipe: Parts of the recipe that differ.
    """

    returned: Callable[[], Any]
    words: tuple[str, ...]
    stored: Mapping[str, Any] = field(default_factory=lambda: STORED)
    recipe: Mapping[str, Any] = field(default_factory=dict)


def shapes(**parts: tuple[int, ...]) -> dict[str, Any]:
    return {
        name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in (parts or PARTS).items()
    }


def weighted(parameters: Any, inputs: Any) -> Any:
    return inputs["x"] @ parameters["w"]


def refused_function(function: Callable[..., Any], *words: str, **recipe: Any) -> Refusal:
    """Returns the refusal of a function of x, [n, 4] float32, and ids, [n, 4] int32."""

    def call(parameters: Any, inputs: Any) -> Any:
        return weighted(parameters, inputs) + function(inputs["x"], inputs["ids"]).sum()

    return Refusal(lambda: (shapes(), call), words, recipe=recipe)


def refused_call(
    function: Callable[..., Any], *words: str, parameters: Any = None, **changes: Any
) -> Refusal:
    """Returns the refusal of a function of parameters and inputs."""
    return Refusal(lambda: (parameters or shapes(), function), words, **changes)


def in_two_shards(x: Any, _ids: Any) -> Any:
    mesh = jax.sharding.AbstractMesh((2,), ("devices",))
    whole = jax.sharding.PartitionSpec()
    return jax.shard_map(lambda part: part + 1, mesh=mesh, in_specs=whole, out_specs=whole)(x)


def with_kernel(x: Any, _ids: Any) -> Any:
    from jax.experimental import pallas

    def kernel(source: Any, target: Any) -> None:
        target[...] = source[...] + 1

    shape = jax.ShapeDtypeStruct((4,), jnp.float32)
    return x + pallas.pallas_call(kernel, out_shape=shape, interpret=True)(jnp.ones(4))


def called_back(x: Any, callback: Callable[..., Any]) -> Any:
    return callback(lambda y: y, jax.ShapeDtypeStruct((4,), jnp.float32), x[0])


def convolved(x: Any, order: tuple[str, ...] = ("NWC", "WIO", "NWC"), **options: Any) -> Any:
    images = x.reshape(-1, 2, 2)
    if "batch_group_count" in options:
        images = jnp.broadcast_to(x[0, :2], (8, 2, 2))
    kernel = jnp.ones((1, 2 // options.get("feature_group_count", 1), 6))
    options = {"padding": [(0, 0)], **options}
    return lax.conv_general_dilated(images, kernel, (1,), dimension_numbers=order, **options)


def read_parts(sizes: tuple[int, int]) -> Callable[..., Any]:
    def read(_x: Any, ids: Any) -> Any:
        return jax.vmap(lambda row: lax.dynamic_slice(jnp.asarray(SQUARE), (row, 0), sizes))(
            ids[:, 0]
        )

    return read


def looped_while(x: Any, _ids: Any) -> Any:
    return lax.while_loop(lambda state: state[0] < 513, lambda s: (s[0] + 1, s[1] + 1), (0, x))[1]


def failing(_parameters: Any, _inputs: Any) -> Any:
    raise ValueError("no such  thing " * 99)


EQUAL = ("scatter", "unique_indices=True")
PART = ("gather", "parts of rows")
IN_VALUES = ("use jnp.where or jax.lax.cond", THIS_LINE)
FUNCTIONS: dict[str, Refusal] = {
    "fft": refused_function(lambda x, ids: jnp.fft.fft(x).real, "fft", "before the model"),
    "shard_map": refused_function(in_two_shards, "shard_map", "without jax.shard_map"),
    "psum": refused_function(
        lambda x, ids: jax.vmap(lambda row: lax.psum(row, "i"), axis_name="i")(x),
        "psum",
        "without jax.shard_map",
    ),
    "pallas_call": refused_function(with_kernel, "pallas_call", "plain computation"),
    "ffi_call": refused_function(
        lambda x, ids: jax.ffi.ffi_call("own", jax.ShapeDtypeStruct((4,), jnp.float32))(x[0]),
        "ffi_call",
        "plain computation",
    ),
    "pure_callback": refused_function(
        lambda x, ids: called_back(x, jax.pure_callback), "pure_callback", "remove it"
    ),
    "io_callback": refused_function(
        lambda x, ids: called_back(x, jax.experimental.io_callback), "io_callback", "remove it"
    ),
    "dropout": refused_function(
        lambda x, ids: x * jax.random.bernoulli(jax.random.key(0), 0.5, (4,)),
        "random_bits",
        "deterministic=True",
        THIS_LINE,
    ),
    "unknown": refused_function(lambda x, ids: lax.cummax(x, axis=1), "cummax", THIS_LINE),
    "sort by keys": refused_function(
        lambda x, ids: lax.sort((x, x), num_keys=2)[0], "sort", "one key"
    ),
    "long loop": refused_function(
        lambda x, ids: lax.fori_loop(0, 513, lambda i, y: y + 1, x), "scan", "513", "512"
    ),
    "long while": refused_function(looped_while, "while", "512"),
    "open while": refused_function(
        lambda x, ids: lax.while_loop(lambda y: y.sum() < 9, lambda y: y + 1, x),
        "while",
        "jax.lax.fori_loop",
    ),
    "half precision": refused_function(
        lambda x, ids: lax.reduce_precision(x, 5, 10), "reduce_precision", "(5, 10)"
    ),
    "update of parts": refused_function(
        lambda x, ids: lax.dynamic_update_slice(jnp.ones((6, 4)), x[:1, :1], (1, 1)),
        "dynamic_update_slice",
        "jnp.where",
    ),
    "rows by ids": refused_function(
        lambda x, ids: jnp.zeros((6, 2)).at[ids[:, 0]].set(1.0), *EQUAL
    ),
    "equal rows": refused_function(
        lambda x, ids: jnp.zeros((6, 4)).at[jnp.array([3, 3])].set(x[:1]), *EQUAL
    ),
    "equal rows at the end": refused_function(
        lambda x, ids: jnp.zeros((6, 4)).at[jnp.array([5, 9])].set(x[:1], mode="clip"), *EQUAL
    ),
    "added columns": refused_function(
        lambda x, ids: jnp.zeros((6, 4)).at[:, ids[:, 0]].add(1.0), "scatter-add", "whole rows"
    ),
    "columns of rows": refused_function(read_parts((1, 2)), *PART),
    "two rows": refused_function(read_parts((2, 6)), *PART),
    "steps in the batch": refused_function(lambda x, ids: x[::2] * 2, "TensorFlow", THIS_LINE),
    **{
        f"convolution with {name}": refused_function(
            lambda x, ids, options=options: convolved(x, **options), "conv_general_dilated", word
        )
        for name, options, word in (
            ("groups", {"feature_group_count": 2}, "feature_group_count=1"),
            ("holes", {"lhs_dilation": (2,)}, "feature_group_count=1"),
            ("groups of the batch", {"batch_group_count": 2}, "feature_group_count=1"),
            ("cut inputs", {"padding": [(-1, 0)]}, "slice the inputs"),
        )
    },
    "convolution over three axes": refused_function(
        lambda x, ids: lax.conv(
            x.reshape(-1, 2, 2, 1, 1), jnp.ones((1, 2, 1, 1, 1)), (1,) * 3, "SAME"
        ),
        "conv_general_dilated",
        "one or two axes",
    ),
    "divided batch": refused_function(lambda x, ids: x.reshape(32, -1), "x.shape[0]", THIS_LINE),
    "the batch as a number": refused_function(
        lambda x, ids: x.squeeze() / x.shape[0], "squeeze", THIS_LINE
    ),
    "the batch as an array": refused_function(
        lambda x, ids: x.squeeze() / np.array(len(x.squeeze()), np.float32), "squeeze", THIS_LINE
    ),
    "fixed batch": refused_function(lambda x, ids: x.reshape(2, 4), "x.shape[0]", THIS_LINE),
    "float": refused_function(lambda x, ids: float(x[0, 0]) * x, *IN_VALUES),
    "branch": refused_function(lambda x, ids: x if x[0, 0] > 0 else -x, *IN_VALUES),
    "array": refused_function(lambda x, ids: np.asarray(x), *IN_VALUES),
    "position": refused_function(lambda x, ids: [x, -x][ids[0, 0]], *IN_VALUES),
    "input": refused_call(lambda p, inputs: inputs["y"], "KeyError", "'y'"),
    "error": refused_call(failing, "ValueError", "no such thing no such", THIS_LINE),
    "filled table": refused_call(
        lambda p, inputs: jnp.take(
            p["table"], inputs["ids"], axis=0, mode="fill", fill_value=7
        ).sum(1),
        'mode="fill"',
        "fill_value=0",
        recipe={"code": {"table_threshold": 0}},
    ),
    "large table": refused_call(
        lambda p, inputs: p["table"][inputs["ids"][:, 0]],
        "jax_enable_x64",
        parameters=shapes(table=(5 * 10**9, 4)),
    ),
}


def specs_of(*sizes: int, **parts: Any) -> dict[str, Any]:
    """Returns the specification of feature `user`; sizes are of its input and its output."""
    table = {"name": "users", "vocabulary_size": 10, "embedding_dim": 5, "combiner": "sum"}
    spec: dict[str, Any] = {"table_spec": {**table, **parts}}
    if sizes:
        batch, width = sizes
        spec |= {"input_shape": (batch, 1), "output_shape": (batch, width)}
    return {"user": spec}


def refused_in_batch(function: Callable[[Any], Any], *words: str) -> Refusal:
    """Returns the refusal of a function of [6, 5] activations, the batch of its specifications."""

    def call(parameters: Any, inputs: Any) -> Any:
        return function(inputs["user"].reshape(BATCH, 5))

    return Refusal(
        lambda: (shapes(), call, specs_of(BATCH, 5)), (*words, f"{BATCH}"), recipe={"inputs": BAGS}
    )


JOINED = "each example from its own values"
IN_A_BATCH: dict[str, Refusal] = {
    name: refused_in_batch(function, primitive, JOINED, THIS_LINE)
    for name, primitive, function in (
        ("mean", "reduce_sum", lambda x: x - x.mean(0)),
        ("softmax", "reduce_max", lambda x: jax.nn.softmax(x, 0)),
        ("total", "cumsum", lambda x: x.cumsum(0)),
        ("order", "sort", lambda x: jnp.sort(x, 0)),
        ("reversed", "rev", lambda x: x[::-1]),
        ("moved", "slice", lambda x: jnp.roll(x, 1, 0)),
        ("first", "slice", lambda x: x * x[0]),
        ("window", "dynamic_slice", lambda x: lax.dynamic_slice(x, (1, 0), (2, 5))),
        ("twice", "concatenate", lambda x: jnp.concatenate([x, x])),
        ("copies", "tile", lambda x: jnp.tile(x, (2, 1))),
        ("padded", "pad", lambda x: jnp.pad(x, ((0, 2), (0, 0)))),
        ("products", "dot_general", lambda x: x @ x.T),
        ("summed", "dot_general", lambda x: SQUARE @ x),
        ("distances", "sub", lambda x: x[:, None] - x[None]),
        ("own weights", "mul", lambda x: x * jnp.arange(6.0)[:, None]),
        ("own array", "add", lambda x: x + SQUARE[:, :5]),
        ("places", "concatenate", lambda x: x[jnp.arange(BATCH), jnp.argmax(x, 1)]),
        ("places of a column", "gather", lambda x: x[jnp.arange(BATCH), 0]),
        ("permuted", "gather", lambda x: jnp.take(x, jnp.array([1, 0, 2, 3, 4, 5]), axis=0)),
        ("own rows", "gather", lambda x: jnp.take_along_axis(SQUARE, (x > 0).astype(int), 1)),
        ("all of another", "gather", lambda x: jnp.take(x, (x[:, 0] > 0).astype(int), axis=1)),
        ("other places", "reshape", lambda x: x.reshape(5, BATCH)),
        ("cut", "reshape", lambda x: x.reshape(3, 10)),
        ("written", "scatter", lambda x: x.at[0].set(1.0)),
        ("loop", "scan", lambda x: lax.scan(lambda t, y: (t + y, t), jnp.zeros(BATCH), x.T)[0]),
    )
} | {
    "dropout": refused_in_batch(
        lambda x: x * jax.random.normal(jax.random.key(0), x.shape), "random numbers"
    ),
    "turned": refused_in_batch(lambda x: x.T, "the call returns"),
    "flat": refused_in_batch(lambda x: x.reshape(BATCH * 5), "the call returns"),
}


def refused_result(returned: Callable[[], Any], *words: str) -> Refusal:
    return Refusal(returned, words, recipe={"inputs": {"x": INPUTS["x"]}})


def refused_specs(specs: Any, *words: str) -> Refusal:
    returned = (shapes(), lambda parameters, inputs: inputs["user"], specs)
    return Refusal(lambda: returned, words, recipe={"inputs": BAGS})


FACTORIES: dict[str, Refusal] = {
    "parameters alone": refused_result(shapes, "dict", "Orbax"),
    "no functions": refused_result(lambda: (shapes(),), "tuple", "Orbax"),
    "too much": refused_result(lambda: (shapes(), weighted, specs_of(), 4), "tuple"),
    "a list": refused_result(lambda: [shapes(), weighted], "list"),
    "a function": refused_result(lambda: weighted, "function", "Orbax"),
    "functions in a list": refused_result(lambda: (shapes(), [weighted]), "list as its functions"),
    "no function": refused_result(lambda: (shapes(), {"a": 3}), "dict as its functions"),
    "arrays": refused_result(lambda: ({"w": np.ones(2)}, weighted), "ndarray", "jax.eval_shape"),
    "no parameters": refused_result(lambda: ({}, weighted), "no parameters"),
    "two keys of one path": refused_result(
        lambda: ({"a": {"b": shapes()}, "a.b": shapes()}, weighted),
        "['a']['b']['table'] and ['a.b']['table']",
        "'a.b.table'",
        "rename a key",
    ),
    "other names": refused_result(
        lambda: (shapes(), {"a": weighted, "b": weighted}), "'a', 'b'", "towers.tower.call"
    ),
    "specs missing": refused_specs({}, "no feature specification"),
    "spec of another type": refused_specs({"user": 3}, "feature_specs['user']", "int"),
    "specs of another type": refused_specs(dict, "feature_specs", "type"),
    **{
        f"spec without {field}": refused_specs(
            {"user": {"table_spec": {k: v for k, v in table.items() if k != field}}}, field, "user"
        )
        for table in (specs_of()["user"]["table_spec"],)
        for field in table
    },
    **{
        f"{field} of {value!r}": refused_specs(specs_of(**{field: value}), field, repr(value))
        for field in ("vocabulary_size", "embedding_dim")
        for value in (0, 2.5, "100", True)
    },
    "combiner": refused_specs(specs_of(combiner="max"), "combiner", "'max'", "sum, mean, sqrtn"),
    "quantized": refused_specs(
        specs_of(quantization_config=SimpleNamespace(num_buckets=8)), "tables.users.dtype"
    ),
    "another key": refused_specs({"user": {**specs_of()["user"], "name": "id"}}, "'user'", "'id'"),
    "one name twice": refused_specs(
        [{**specs_of()["user"], "name": "user"}, {"in": {**specs_of()["user"], "name": "user"}}],
        "feature_specs[1]['in']",
        "'user'",
    ),
    "two tables of one name": refused_specs(
        {**specs_of(), "friend": specs_of(vocabulary_size=11)["user"]}, "vocabulary_size 10 and 11"
    ),
    "no name": refused_specs([{**specs_of()["user"], "name": ""}], "feature_specs[0].name", "''"),
    "name of a number": refused_specs(specs_of(name=3), "table_spec.name", "3"),
    "another width": refused_specs(specs_of(32, 8), "(32, 8)", "embedding_dim=5"),
    "a sequence": refused_specs(
        {"user": {**specs_of()["user"], "output_shape": (32, 10, 5)}}, "jnp.take"
    ),
    "two batches": refused_specs(
        {"user": {**specs_of(32, 5)["user"], "output_shape": (64, 5)}}, "(32, 1)", "(64, 5)"
    ),
    "no activation": Refusal(
        lambda: (shapes(), lambda parameters, inputs: inputs["user"], specs_of()),
        ("KeyError", "an input named user"),
        recipe={"inputs": {"x": INPUTS["x"]}},
    ),
}

INFINITE = {**STORED, "params.w": np.array([[1.0, np.inf]] * 4, np.float32)}
STACK = {"embedding.a_b.table": np.ones((64, 8), np.float32)}
PLAIN = functools.partial(refused_call, weighted)
STORED_ELSEWHERE: dict[str, Refusal] = {
    "missing": PLAIN("w [4, 2]", "is not in", stored={"params.table": STORED["params.table"]}),
    "another dtype": PLAIN("float32 [4, 2]", "float16", stored={"params.w": np.ones((4, 2), "f2")}),
    "another shape": PLAIN("w [4, 2]", "is not in", stored={"params.w": np.ones((2, 4), "f4")}),
    "several places": PLAIN(
        "'ema' or 'params'",
        "checkpoint.object_path",
        stored={f"{part}.w": STORED["params.w"] for part in ("ema", "params")},
    ),
    "in lists": PLAIN(
        "as a dict by name", stored={"0.0": np.ones(2, "f4"), "0.1": np.ones(3, "f4")}
    ),
    "averages": PLAIN(
        "checkpoint.object_path", recipe={"checkpoint": {"path": "checkpoint", "averages": True}}
    ),
    "not finite": PLAIN("'params.w'", "[0, 1]", "4 of 8", stored=INFINITE),
    "misspelled": PLAIN(
        "'params.v'",
        "'params.w'",
        recipe={"checkpoint": {"path": "checkpoint", "allow_non_finite": ["params.v"]}},
    ),
    "more parameters": refused_call(
        lambda p, inputs: inputs["x"] @ p["dense"]["kernel"],
        "dense.bias [2]",
        parameters={"dense": shapes(kernel=(4, 2))},
        stored={
            "params.dense.kernel": STORED["params.w"],
            "params.dense.bias": np.ones(2, np.float32),
        },
    ),
    **{
        f"a stack, tables above {rows}": refused_call(
            lambda p, inputs: jnp.take(p["embedding"]["a_b"]["table"], inputs["ids"][:, 0], axis=0),
            "embedding.a_b.table",
            "over cores",
            parameters={"embedding": {"a_b": shapes(table=(64, 8))}},
            stored={**STACK, "embedding.a_b.slot.0": STACK["embedding.a_b.table"]},
            recipe={"code": {"table_threshold": rows}},
        )
        for rows in (0, 10_000)
    },
    "table of another size": refused_call(
        lambda p, inputs: p["table"].at[inputs["ids"]].get(mode="clip").sum(1),
        "[6, 3]",
        "[7, 3]",
        stored={**STORED, "other": np.ones((7, 3), np.float32)},
        recipe={"tables": {"table": {"key": "other"}}, "code": {"table_threshold": 0}},
    ),
    "table that is read whole": refused_call(
        lambda p, inputs: p["table"].at[inputs["ids"]].get(mode="clip").sum(1) + p["table"].mean(0),
        "tables.table",
        recipe={"tables": {"table": {}}, "code": {"table_threshold": 0}},
    ),
    **{
        dtype: PLAIN("'x'", word, recipe={"inputs": {"x": {"dtype": dtype, "shape": [4]}}})
        for dtype, word in (("int64", "int32"), ("string", "text"))
    },
    "a bag": PLAIN(
        "'x'",
        'inputs.x.kind = "dense"',
        recipe={"inputs": {"x": {"dtype": "float32", "kind": "ragged"}}},
    ),
}
REFUSED = {
    f"{kind}: {name}": refusal
    for kind, refusals in {
        "function": FUNCTIONS,
        "fixed batch": IN_A_BATCH,
        "factory": FACTORIES,
        "checkpoint": STORED_ELSEWHERE,
    }.items()
    for name, refusal in refusals.items()
}


def build(case: str) -> Any:
    """The factory of every recipe."""
    return REFUSED[case].returned()


@pytest.mark.parametrize("case", REFUSED)
def test_model_is_refused(case: str, tmp_path: Path) -> None:
    refusal = REFUSED[case]
    write_item(tmp_path / "checkpoint", dict(refusal.stored))
    page: dict[str, Any] = {
        "model": "refused",
        "checkpoint": {"path": "checkpoint"},
        "output": {"root": "bundles"},
        "inputs": INPUTS,
        "towers": {"tower": {"role": "query"}},
        **refusal.recipe,
    }
    factory = {"factory": f"{__file__}:build", "arguments": {"case": case}}
    page["code"] = factory | dict(page.get("code", {}))
    with pytest.raises(ExportError) as rejection:
        bundle_job.prepare(ExportJob.model_validate(page), tmp_path, ExportSettings())
    message = str(rejection.value)
    assert [word for word in refusal.words if word not in message] == [], message
    assert len(re.sub(r"\s+", " ", message)) < 1500
