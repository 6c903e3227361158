from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.format.manifest import TableError
from export.checkpoint.variables import NUMPY_DTYPES
from export.errors import NotConvertible, UsageError, VerificationFailed
from export.tables.conversions import (
    PIECE_VALUES,
    Conversion,
    ErrorLimits,
    ErrorSums,
    read_dtypes,
    table_error,
    written_dtype,
)

READ: dict[str, Any] = {
    "float32": np.float32,
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
}


def converted(
    values: NDArray[Any], source: str, target: str
) -> tuple[NDArray[Any], Any, ErrorSums]:
    """Converts rows; returns what was stored, the scales if there are any, and the error."""
    conversion = Conversion("t", source, target)
    rows = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
    pieces = list(conversion.pieces(rows, 0))
    scales = (
        None if pieces[0].scales is None else np.concatenate([piece.scales for piece in pieces])
    )
    return np.concatenate([piece.stored for piece in pieces]), scales, conversion.error


def floats(rows: int, dim: int, seed: int = 0) -> NDArray[np.float32]:
    """Values of every size that embeddings have, exact ties among them, and some rows of zeros."""
    random = np.random.default_rng(seed)
    values = (
        random.standard_normal((rows, dim)) * 10.0 ** random.uniform(-9, 3, (rows, 1))
    ).astype(np.float32)
    values[::5] = np.round(values[::5] * 64) / 64
    values[::11] = 0
    return values


@pytest.mark.parametrize("source", ["float32", "float64", "bfloat16", "float16", "int32", "int64"])
@pytest.mark.parametrize("target", ["float32", "bfloat16", "float16"])
def test_converted_values_are_the_nearest_with_ties_to_even(source: str, target: str) -> None:
    values = floats(500, 9).astype(NUMPY_DTYPES[source])
    stored, scales, error = converted(values, source, target)
    exact = values.astype(np.float64)
    kind = stored.view(READ[target])
    actual = kind.astype(np.float64)
    even = stored.view(np.uint32 if target == "float32" else np.uint16) % 2 == 0
    assert scales is None
    for end in (-np.inf, np.inf):
        apart = np.abs(actual - exact)
        further = np.abs(np.nextafter(kind, READ[target](end)).astype(np.float64) - exact)
        assert ((apart < further) | ((apart == further) & even)).all()
    assert error.max_abs == pytest.approx(np.abs(actual - exact).max(), rel=1e-6)
    assert (np.signbit(actual) == np.signbit(exact)).all()


@pytest.mark.parametrize("source", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("dim", [1, 3, 64, 65, 300])
def test_int8_rows_are_nearest_to_their_scale(source: str, dim: int) -> None:
    values = floats(200, dim).astype(NUMPY_DTYPES[source])
    stored, scales, _ = converted(values, source, "int8")
    exact = values.astype(np.float64)
    largest = np.abs(exact).max(axis=1)
    np.testing.assert_allclose(scales, largest / 127, rtol=1e-6)
    assert (np.abs(stored.astype(int)).max(axis=1) == np.where(largest > 0, 127, 0)).all()
    apart = np.abs(stored * scales.astype(np.float64)[:, np.newaxis] - exact)
    assert (apart <= scales[:, np.newaxis] * 0.50001).all()


def test_int8_row_too_small_for_a_scale_becomes_zeros() -> None:
    smallest = 127 * 2.0**-126  # whose scale is the smallest that has full precision
    values = np.array(
        [[1e-44, 0], [1e-36, -1e-37], [0, 0], [127, -9], [1, -2], [smallest, 0]], np.float32
    )
    stored, scales, error = converted(values, "float32", "int8")
    assert stored.tolist() == [[0, 0], [0, 0], [0, 0], [127, -9], [64, -127], [127, 0]]
    assert scales.tolist() == [0, 0, 0, 1, np.float32(2) / np.float32(127), 2.0**-126]
    assert error.cosine_min == 0


@pytest.mark.parametrize("target", ["float32", "bfloat16", "float16", "int8"])
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_error_is_that_of_all_rows_as_they_are_read(source: str, target: str) -> None:
    values = floats(PIECE_VALUES // 5 + 100, 5, seed=3).astype(NUMPY_DTYPES[source])
    stored, scales, sums = converted(values, source, target)
    read = stored * scales[:, np.newaxis] if target == "int8" else stored.view(READ[target])
    exact = values.astype(np.float64)
    read = read.astype(np.float64)
    lengths = np.linalg.norm(exact, axis=1) * np.linalg.norm(read, axis=1)
    alike = np.where(exact.any(axis=1), 0.0, 1.0)
    np.divide((exact * read).sum(axis=1), lengths, out=alike, where=lengths > 0)
    assert sums.cosine_min <= 1
    assert sums.cosines <= sums.rows == len(values)
    error = table_error(source, 5, [sums])
    assert error.source_dtype == source
    assert error.max_abs == pytest.approx(np.abs(read - exact).max(), rel=1e-6)
    assert error.rms == pytest.approx(math.sqrt(np.square(read - exact).mean()), rel=1e-5)
    assert (error.cosine_min, error.cosine_mean) == pytest.approx(
        (alike.min(), alike.mean()), abs=2e-6
    )


@pytest.mark.parametrize(
    ("source", "target", "value", "message"),
    [
        ("float32", "float16", math.nan, r"holds nan in column 1"),
        ("float32", "int8", -math.inf, r"holds -inf in column 1"),
        ("float32", "float16", 65520.0, "column 1, which is too large for float16"),
        ("float32", "bfloat16", 3.4e38, "column 1, which is too large for bfloat16"),
        ("float64", "float32", -1e39, "column 1, which is too large for float32"),
        ("float64", "int8", 1e39, "column 1, which is too large for int8"),
        ("int64", "float32", 1 << 60, "column 1, which no float holds exactly"),
    ],
)
def test_value_that_the_target_cannot_hold_is_rejected_with_its_row(
    source: str, target: str, value: Any, message: str
) -> None:
    values = np.ones((30_000, 3), NUMPY_DTYPES[source])
    values[29_000, 1] = value
    with pytest.raises(NotConvertible, match=f"table 't': row 29000 .*{message}"):
        converted(values, source, target)


@pytest.mark.parametrize(
    ("limits", "what"),
    [
        (
            ErrorLimits(max_abs=0.05),
            "max_abs_error of its converted rows is 0.06, tables.t.max_abs_error = 0.05",
        ),
        (ErrorLimits(rms=0.009), "rms_error"),
        (ErrorLimits(cosine_min=0.999), "cosine_min of its converted rows is 0.99"),
    ],
)
def test_limits_reject_what_breaks_them(limits: ErrorLimits, what: str) -> None:
    error = TableError(
        source_dtype="float32", max_abs=0.06, rms=0.01, cosine_min=0.99, cosine_mean=1
    )
    ErrorLimits(0.06, 0.01, 0.99).check("t", error)
    with pytest.raises(VerificationFailed, match=what):
        limits.check("t", error)


@pytest.mark.parametrize(
    ("requested", "of_all", "of_some"),
    [
        ([], None, ()),
        (["int8"], "int8", ()),
        (["users=int8"], None, (("users", "int8"),)),
        (
            ["float32", "a=b=int8", "users=int8", "bfloat16"],
            "bfloat16",
            (("a=b", "int8"), ("users", "int8")),
        ),
        (["users=int8", "users=float16"], None, (("users", "float16"),)),
    ],
)
def test_read_dtypes_of_all_tables_and_of_some(
    requested: list[str], of_all: str | None, of_some: tuple[tuple[str, str], ...]
) -> None:
    assert read_dtypes(requested) == (of_all, of_some)


@pytest.mark.parametrize("requested", ["int4", "users=int4", "users="])
def test_read_dtypes_that_no_bundle_holds_are_named_with_those_it_does(requested: str) -> None:
    with pytest.raises(UsageError, match=f"--dtype '{requested}' was given; .* one of .*int8"):
        read_dtypes(["float32", requested])


def test_rows_that_lose_nothing_have_a_cosine_of_1_at_most() -> None:
    values = np.random.default_rng(0).standard_normal((500, 7)).astype(np.float32)
    _, _, error = converted(values, "float32", "float32")
    assert (error.max_abs, error.squares) == (0, 0)
    assert error.cosine_min == pytest.approx(1, abs=1e-6)
    assert error.cosines <= error.rows
    for row in values:
        _, _, error = converted(row[np.newaxis], "float32", "float32")
        assert error.cosine_min <= 1


@pytest.mark.parametrize(
    ("stored", "requested", "dtype"),
    [
        ("float32", None, "float32"),
        ("float16", None, "float16"),
        ("bfloat16", None, "bfloat16"),
        ("float64", None, "float32"),
        ("float64", "int8", "int8"),
        ("int64", "float32", "float32"),
        ("int32", "bfloat16", "bfloat16"),
    ],
)
def test_table_is_written_as_it_is_stored_or_as_it_was_asked_for(
    stored: str, requested: str | None, dtype: str
) -> None:
    assert written_dtype("t", stored, requested) == dtype


@pytest.mark.parametrize(
    ("stored", "requested", "problem"),
    [
        (
            "int64",
            None,
            "table 't' holds int64 values; if they are an embedding, say what they become: --dtype "
            "t=float32 (in a recipe: tables.t.dtype)",
        ),
        (
            "uint8",
            None,
            "table 't' holds uint8 values; exported are float32, bfloat16, float16, float64, "
            "int32, int64; cast the variable and save the checkpoint anew",
        ),
        (
            "int16",
            "float32",
            "table 't' holds int16 values; exported are float32, bfloat16, float16, float64, "
            "int32, int64; cast the variable and save the checkpoint anew",
        ),
    ],
)
def test_values_that_are_no_embedding_are_rejected(
    stored: str, requested: str | None, problem: str
) -> None:
    with pytest.raises(NotConvertible) as rejection:
        written_dtype("t", stored, requested)
    assert str(rejection.value) == problem


def test_limits_bind_converted_tables_alone_and_each_on_its_own() -> None:
    ErrorLimits(0, 0, 1).check("t", None)
    error = TableError(
        source_dtype="float32", max_abs=0.06, rms=0.01, cosine_min=0.99, cosine_mean=1
    )
    ErrorLimits().check("t", error)
    for limits in (ErrorLimits(max_abs=0.06), ErrorLimits(rms=0.01), ErrorLimits(cosine_min=0.99)):
        limits.check("t", error)


@pytest.mark.parametrize(
    ("source", "value", "apart"),
    [
        ("int32", (1 << 24) + 1, 1),  # which float32 does not hold
        ("int64", -(1 << 24) - 1, 1),
        ("int64", 1 << 53, 0),  # the largest that float64 holds with all before it
        ("float64", 1 + 2**-30, 2**-30),
    ],
)
def test_error_of_wide_values_is_that_of_their_exact_difference(
    source: str, value: float, apart: float
) -> None:
    _, _, error = converted(np.array([[value, 0]], NUMPY_DTYPES[source]), source, "float32")
    assert error.max_abs == apart
    assert error.squares == apart**2
