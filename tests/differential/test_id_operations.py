"""Each operation on ids beside TensorFlow's own kernel: every dtype, on the ends of each."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.features.ids.operations import OPERATIONS, Rejected, flushed
from bundle.format.id_graphs import OperationNode
from export.graphs.loading import load_tensorflow
from export.id_graphs.tensorflow_operations import run_operation

tf = load_tensorflow()
Array = NDArray[Any]

INTEGERS = [0, 1, -1, 2, 3, 7, -7, 10, 97, 255, -300]
NUMBERS = [
    0.0,
    -0.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    7.0,
    96.99,
    1e9,
    -1e9,
    3e9,
    1e19,
    2e19,
    -1e19,
    1e-30,
    2e-38,
]
SPECIAL = [np.nan, np.inf, -np.inf]
TEXTS = ["", " ", "a", "A b ", "ümlaut\t", "\nzz", "ß", "東京", "x" * 300, "a.b.c", "007", "É"]
CONSTANTS: Mapping[str, Array] = {
    "bool": np.array([True, False]),
    "int8": np.array([0, 1, -1, 127, -128], np.int8),
    "uint8": np.array([0, 1, 7, 255], np.uint8),
    "int16": np.array([0, -1, 32767, -32768], np.int16),
    "int32": np.array([*INTEGERS, 2**31 - 1, -(2**31)], np.int32),
    "int64": np.array([*INTEGERS, 2**31, -(2**31) - 1, 10**12, 2**63 - 1, -(2**63)], np.int64),
    "float16": np.array([0, -0.0, 0.5, 1.5, -2.5, 65504], np.float16),
    "float32": np.array([*NUMBERS, *SPECIAL, 3e38, -3e38], np.float32),
    "float64": np.array([*NUMBERS, *SPECIAL, 1e300], np.float64),
    "string": np.array([text.encode() for text in TEXTS], object),
}
WHOLE = ("int32", "int64")
REAL = ("float32", "float64")
BOTH = WHOLE + REAL
ALL = tuple(CONSTANTS)

OF_ONE: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("Abs", "Neg", "Sign", "Square", "OnesLike"), BOTH),
    **dict.fromkeys(("Ceil", "Floor", "Rint", "Round", "Sqrt", "IsFinite", "IsInf", "IsNan"), REAL),
    "Invert": WHOLE,
    "LogicalNot": ("bool",),
    "ZerosLike": (*BOTH, "string"),
    "StringStrip": ("string",),
}
OF_TWO: Mapping[str, Sequence[str]] = {
    "Add": (*BOTH, "string"),
    "AddV2": BOTH,
    **dict.fromkeys(("Sub", "Mul", "SquaredDifference"), BOTH),
    **dict.fromkeys(("Less", "LessEqual", "Greater", "GreaterEqual"), BOTH),
    **dict.fromkeys(("Equal", "NotEqual"), (*BOTH, "bool", "string")),
    **dict.fromkeys(("Maximum", "Minimum"), WHOLE),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), WHOLE),
    **dict.fromkeys(("LogicalAnd", "LogicalOr"), ("bool",)),
    **dict.fromkeys(("FloorDiv", "FloorMod"), BOTH),
    **dict.fromkeys(("TruncateDiv", "TruncateMod"), WHOLE),
    **dict.fromkeys(("LeftShift", "RightShift"), WHOLE),
    "RealDiv": REAL,
}
WITHOUT_CONVERSION = ("int8", "uint8", "int16", "uint16", "uint32")
"""Integers that a processor has no conversion of floats to."""
BY = frozenset({"FloorDiv", "FloorMod", "TruncateDiv", "TruncateMod"})
"""Divide: integers by no zero, and the smallest by no -1, which stops the processor."""
WRITTEN = {
    "i": [b"12", b" 12", b"\t-12\v\n", b"+5", b"007", b"-0", b"2147483647", b"-2147483648"],
    "f": [
        b"1.5", b" -.5e-2 ", b"5.", b"007", b"1e400", b"-1e-400", b"inf", b"-Infinity", b"NaN",
        b"nan(1_a)", b"-NAN()", b"16777217", b"16777217.0000000001",
        b"16777217." + b"0" * 6000 + b"1", b"16777216.9999999999", b"0.1", b"1e-39",
        b"3.4028235e38", b"3.4028236e38", b"1.00000017881393432617187499", b"-33554435.0001",
    ],
}  # fmt: skip
"""Texts that are numbers of every width."""
HEXADECIMAL = [
    b"0x1F", b"0X1P3", b"-0x1.8p1", b"+0x.8p-2", b"0x1.", b"0x1e5", b"-0x0p1", b"0x1p400",
    b"-0x1p9999999999", b"0x1p-99999999",
    b"0x1000001", b"0x1000003", b"0x1.00000100000001p0",
    b"0x1.000001" + b"0" * 6000 + b"1p+" + b"0" * 6000 + b"3", b"-0x1.000001",
    b"0x" + b"f" * 60, b"0x" + b"f" * 300,
]  # fmt: skip
"""Texts of floats in hexadecimal: ends, and numbers half way between two of float32."""
DIGITS = [("", -1), ("0", 5), ("+", -1), (" ", 4), ("-", 6)]


def calls() -> list[Any]:
    """Returns each operation with its attributes and operands."""
    listed: list[tuple[str, dict[str, Any], list[Array]]] = []
    for op, dtypes in OF_ONE.items():
        listed += [(op, {}, [CONSTANTS[dtype]]) for dtype in dtypes]
    for op, dtypes in OF_TWO.items():
        listed += [(op, {}, _pairs(op, CONSTANTS[dtype])) for dtype in dtypes]
    castable = [dtype for dtype in ALL if dtype != "string"]
    for dtype, to in itertools.product(castable, [*castable, "uint32", "uint64"]):
        values = CONSTANTS[dtype]
        if values.dtype.kind == "f" and to in WITHOUT_CONVERSION:
            # Beyond the type, the model's result depends on the batch, and ids are rejected.
            truncated = np.trunc(values.astype(float))
            limits = np.iinfo(to)
            values = values[(truncated >= limits.min) & (truncated <= limits.max)]
        listed.append(("Cast", {"DstT": to}, [values]))
    for dtype in BOTH:
        values = CONSTANTS[dtype]
        ends = np.array(-3, dtype), np.array(9, dtype)
        listed += [
            ("ClipByValue", {}, [values, *ends]),
            ("Select", {}, [values > 0, values, values[::-1]]),
            ("SelectV2", {}, [values > 0, values, np.array(5, dtype)]),
            ("Bucketize", {"boundaries": [-300.0, 0.5, 7.0, 2.0**31]}, [values]),
        ]
        if dtype in REAL:
            exact = np.array([-10.0, -0.1, 0.1, 0.3, 1.0, 16777217.0], np.float32)
            beside = [np.nextafter(exact, np.float32(end)) for end in (-1e9, 1e9)]
            near = np.concatenate([exact, *beside]).astype(dtype)
            listed.append(("Bucketize", {"boundaries": exact.tolist()}, [near]))
        finite = np.sort(values[np.isfinite(values)])
        for op, out_type in itertools.product(("LowerBound", "UpperBound"), WHOLE):
            listed.append((op, {"out_type": out_type}, [finite[::2], values]))
    for dtype in (*WHOLE, "int8", "uint8", "bool"):
        for fill, width in DIGITS if dtype != "bool" else DIGITS[:1]:
            listed.append(("AsString", _digits(fill, width), [CONSTANTS[dtype]]))
    for dtype, precision in itertools.product(REAL, (-1, 0, 2)):
        values = CONSTANTS[dtype]
        listed += [
            ("AsString", _digits("", -1, precision=precision), [values]),
            ("AsString", _digits("", 12, precision=precision, scientific=True), [values]),
            ("AsString", _digits("0", 9, precision=precision, shortest=True), [values]),
        ]
    texts = CONSTANTS["string"]
    keys = np.array([0, 3, 2, 2, 1], np.int32)
    for dtype in ("int32", "int64", "float32", "string"):
        listed.append(("GatherV2", {}, [CONSTANTS[dtype], keys]))
    for pattern, rewrite in (("[-. ]", "_"), ("b", "xyz"), (r"\.", ""), ("京", "ß")):
        for everywhere in (True, False):
            names = ("pattern", "rewrite", "replace_global")
            attributes = dict(zip(names, (pattern, rewrite, everywhere), strict=True))
            listed.append(("StaticRegexReplace", attributes, [texts]))
    long_texts = np.array([text + b"abcdef" for text in texts.tolist()], object)
    listed += [
        ("StringJoin", {"separator": "|"}, [texts, texts[::-1], np.array(b"+", object)]),
        *(("StringToHashBucket", {"num_buckets": 997}, [some]) for some in (texts, long_texts)),
        ("StringToHashBucketFast", {"num_buckets": 1000}, [texts]),
        ("StringToHashBucketStrong", {"num_buckets": 997, "key": [3, -(1 << 40)]}, [texts]),
        *(("StringLength", {"unit": unit}, [texts]) for unit in ("BYTE", "UTF8_CHAR")),
        ("Substr", {}, [long_texts, np.array(-3, np.int32), np.array(2, np.int32)]),
        ("Substr", {}, [long_texts, np.array(2, np.int64), np.array(100, np.int64)]),
    ]
    for dtype in BOTH:
        written = list(WRITTEN[np.dtype(dtype).kind])
        if dtype in REAL:
            written += HEXADECIMAL
        listed.append(("StringToNumber", {"out_type": dtype}, [np.array(written, object)]))
    # Letters beyond ASCII stay as they are.
    listed += [(op, {}, [texts]) for op in ("StringLower", "StringUpper")]
    return listed


def _digits(fill: str, width: int, **others: Any) -> dict[str, Any]:
    plain = {"precision": -1, "scientific": False, "shortest": False}
    return {"width": width, "fill": fill} | plain | others


def _pairs(op: str, values: Array) -> list[Array]:
    """Returns each value with each."""
    first, second = (np.array(side, values.dtype) for side in zip(*_product(values), strict=True))
    if values.dtype.kind == "i" and op in BY:
        kept = (second != 0) & ((second != -1) | (first != np.iinfo(values.dtype).min))
        first = first[kept]
        second = second[kept]
    if values.dtype.kind == "f" and op == "FloorMod":  # its kernel keeps some that are not normal
        kept = (np.abs(second) > 1e-20) | (second == 0)
        first = first[kept]
        second = second[kept]
    return [first, second]


def _product(values: Array) -> list[tuple[Any, Any]]:
    return list(itertools.product(values.tolist(), repeat=2))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy: overflows are meant
def test_each_operation_gives_what_the_kernel_of_tensorflow_gives() -> None:
    differing = []
    for op, attributes, operands in calls():
        result = np.asarray(OPERATIONS[op].compute(attributes, *operands))
        inputs = tuple(range(len(operands)))
        node = OperationNode(op=op, inputs=inputs, attributes=attributes)
        kernel_result = run_operation(node, [tf.constant(operand) for operand in operands])
        # What reads a number that is not normal computes with zero.
        expected = flushed(kernel_result.numpy())
        same_type = result.dtype == expected.dtype and result.shape == expected.shape
        is_real = result.dtype.kind == "f"
        if not same_type or not np.array_equal(result, expected, equal_nan=is_real):
            differing.append(f"{op} {attributes} {operands[0].dtype}: {_shown(result, expected)}")
    assert not differing, "\n".join(differing)


def _shown(result: Array, expected: Array) -> str:
    """Returns the first results that differ, beside TensorFlow's."""
    if result.dtype != expected.dtype or result.shape != expected.shape:
        return f"{result.dtype} {result.shape}, not {expected.dtype} {expected.shape}"
    pairs = zip(result.tolist(), expected.tolist(), strict=True)
    return str([(own, right) for own, right in pairs if own != right and own == own][:3])


@pytest.mark.parametrize("dtype", BOTH)
def test_text_that_is_no_number_is_rejected_as_tensorflow_fails(dtype: str) -> None:
    refused = ["", " ", "x", "- 5", "--5", "1_0", "1,5", "1f", "1e", "12\0", "\uff11", "1 2"]
    refused += ["0x", "0x.", "0x1p", "0x1p+", "0xp5", "0x1.8p1f", "1p5"]
    if dtype in WHOLE:
        refused += [
            "1.5",
            "0x10",
            "nan",
            str(np.iinfo(dtype).max + 1),
            str(np.iinfo(dtype).min - 1),
        ]
    for text in refused:
        texts = np.array([text.encode()], object)
        with pytest.raises(Rejected, match=f"no {dtype}"):
            OPERATIONS["StringToNumber"].compute({"out_type": dtype}, texts)
        with pytest.raises(tf.errors.InvalidArgumentError):
            tf.strings.to_number(tf.constant(texts), dtype)


@pytest.mark.parametrize("dtype", WITHOUT_CONVERSION)
@pytest.mark.parametrize("number", [1e30, -1e30, 5e9, -3e9, np.inf, np.nan])
def test_float_beyond_an_integer_without_conversion_is_rejected(dtype: str, number: float) -> None:
    with pytest.raises(Rejected, match=f"makes {number:g} a {dtype}".replace("+", "\\+")):
        OPERATIONS["Cast"].compute({"DstT": dtype}, np.array([1.0, number], np.float32))


def test_every_operation_is_compared() -> None:
    assert {op for op, _, _ in calls()} == set(OPERATIONS)
