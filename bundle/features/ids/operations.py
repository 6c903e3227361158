"""TensorFlow's operations on ids, one NumPy function for each.

A function gives what TensorFlow's kernel on a CPU gives, bit by bit, or rejects the value where the
kernel fails. Texts are bytes here, as in TensorFlow: [m] object. An operand is [m] values, or one
value as an array without axes; where it is a list of constants, `Operation.lists` says so.

Source: TensorFlow 2.20, core/kernels (the rules): cwise_ops.h, cast_op_impl.h, bucketize_op.cc,
searchsorted_op.cc, gather_op.cc, string_to_hash_bucket_op.h, as_string_op.cc, string_join_op.cc,
string_lower_op.cc, string_upper_op.cc, string_strip_op.cc, string_length_op.cc, substr_op.cc,
static_regex_replace_op.cc and string_to_number_op.cc.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.features.ids.hashing import older_hashes, siphashes
from bundle.fingerprints import fingerprints
from bundle.text_arrays import text_array

Array = NDArray[Any]
Attributes = Mapping[str, Any]

TEXTS_MAX = 64 << 20
"""The maximum size of the texts that one operation makes, in bytes."""
WIDTH_MAX = 1000
"""The maximum width of a number that is filled up, in characters."""
_WHITESPACE = b" \t\n\v\f\r"
_INTEGER = re.compile(rb"[+-]?[0-9]+")
_FLOAT = re.compile(
    rb"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf(?:inity)?|nan(?:\([0-9a-z_]*\))?)",
    re.IGNORECASE,
)
_HEXADECIMAL_FLOAT = re.compile(
    rb"([+-]?)0x(?=\.?[0-9a-f])([0-9a-f]*)\.?([0-9a-f]*)(?:p([+-]?[0-9]+))?", re.IGNORECASE
)
"""A sign, a whole number, a fraction and a power of two."""
_PARSED_DTYPES = ("int32", "int64", "float32", "float64")
_DIGITS_MAX = 1000
"""The length of the longest integer that is parsed, in characters."""
_SIMPLE_PATTERN = re.compile(
    r"(?:[^\\.^$*+?{}\[\]|()]|\\\W)+|\[(?!\^)(?:(?!\\\w|[\[\]])[\x00-\x7f]|\\\W)+\]", re.ASCII
)
"""A text, or one of a set of ASCII characters: what RE2 and Python understand alike."""


class Rejected(Exception):
    """A value that TensorFlow's operation fails on, in words."""


class Operation(NamedTuple):
    """One operation.

    Attributes:
      compute: The function of the attributes and the operands; returns [m] results, or one.
      operands: The number of operands; None: one or more.
      attributes: The names of the attributes that have an effect.
      lists: The positions of the operands that are lists of constants.
      words: The text of the operation, with operands by position and attributes by name; "": it is
        written as a call.
    """

    compute: Callable[..., Array]
    operands: int | None
    attributes: tuple[str, ...] = ()
    lists: tuple[int, ...] = ()
    words: str = ""


def _texts(texts: Iterable[bytes], shape: tuple[int, ...]) -> Array:
    """Returns texts as an array of objects."""
    text_list = list(texts)
    size = sum(map(len, text_list))
    # Joins may double texts at each node: a request must not fill the memory.
    if size > TEXTS_MAX:
        raise Rejected(f"makes texts of {size} bytes; at most {TEXTS_MAX} are computed")
    return text_array(text_list).reshape(shape)


def _changed(change: Callable[[bytes], bytes], texts: Array) -> Array:
    """Returns each text after a change."""
    return _texts(map(change, texts.ravel().tolist()), texts.shape)


def flushed(numbers: Array) -> Array:
    """Returns numbers of the same shape and dtype; of floats, those that are not normal are zeros
    of their sign: TensorFlow computes without them (core/platform/denormal.h).
    """
    if numbers.dtype.kind != "f":
        return numbers
    is_tiny = np.abs(numbers) < np.finfo(numbers.dtype).tiny
    return np.where(is_tiny, np.copysign(np.zeros_like(numbers), numbers), numbers)


def _without_zero(numbers: Array) -> Array:
    """Returns integers that others are divided by."""
    if numbers.dtype.kind in "iu" and not numbers.all():
        raise Rejected("is divided by 0")
    return numbers


def _floor_div(_attributes: Attributes, numbers: Array, divisors: Array) -> Array:
    # A float may be divided by 0, an integer may not.
    if numbers.dtype.kind == "f":
        return np.floor(flushed(numbers / divisors))
    return np.floor_divide(numbers, _without_zero(divisors))


def _floor_mod(_attributes: Attributes, numbers: Array, divisors: Array) -> Array:
    if numbers.dtype.kind != "f":
        return np.mod(numbers, _without_zero(divisors))
    # As the kernel does: from the truncated remainder, whose sign is that of the number.
    remainders = flushed(np.fmod(numbers, divisors))
    has_other_sign = (remainders != 0) & ((remainders < 0) != (divisors < 0))
    return np.where(has_other_sign, remainders + divisors, remainders)


def _truncate_mod(_attributes: Attributes, numbers: Array, divisors: Array) -> Array:
    remainders: Array = np.fmod(numbers, _without_zero(divisors))
    return remainders


def _truncate_div(_attributes: Attributes, numbers: Array, divisors: Array) -> Array:
    remainders = np.fmod(numbers, _without_zero(divisors))
    quotients: Array = np.floor_divide(numbers - remainders, divisors)
    return quotients


def _squared_difference(first: Array, second: Array) -> Array:
    return flushed(np.square(flushed(first - second)))


def _clipped(_attributes: Attributes, numbers: Array, smallest: Array, largest: Array) -> Array:
    return np.maximum(np.minimum(numbers, largest), smallest)


def _selected(_attributes: Attributes, condition: Array, first: Array, second: Array) -> Array:
    return np.where(condition, first, second)


def _cast(attributes: Attributes, values: Array) -> Array:
    target = np.dtype(attributes["DstT"])
    if target.kind == "b":
        is_true: Array = values != 0
        return is_true
    if values.dtype.kind != "f" or target.kind not in "iu":
        return values.astype(target)
    if target.itemsize < 4 or target == np.uint32:
        return _narrowed(values, target)
    # x86-64 converts a number beyond the integers to the smallest one.
    wide: type[np.signedinteger[Any]] = np.int32
    if target.itemsize == 8:
        wide = np.int64
    smallest = np.iinfo(wide).min
    is_inside = (values >= smallest) & (values < -float(smallest))
    whole = np.where(is_inside, values, 0).astype(wide)
    cut = np.where(is_inside, whole, np.array(smallest, wide)).astype(target)
    if target != np.uint64:
        return cut
    # The upper half of uint64 is beyond the int64 by which the other numbers were converted.
    is_high = (values >= 2.0**63) & (values < 2.0**64)
    high = np.where(is_high, values, 0).astype(target)
    return np.where(is_high, high, cut)


def _narrowed(numbers: Array, target: np.dtype[Any]) -> Array:
    """Returns floats as integers of a type that x86-64 has no conversion to.

    TensorFlow converts such numbers in vectors, and the last ones of a batch one by one. The two
    differ beyond the type, so that the model itself has no one result there.
    """
    limits = np.iinfo(target)
    smallest = limits.min
    if target == np.uint32:
        # Both ways go through signed integers, which wrap around.
        smallest = np.iinfo(np.int32).min
    whole = np.trunc(numbers.astype(np.float64))
    is_inside = (whole >= smallest) & (whole <= limits.max)
    if not is_inside.all():
        wrong = numbers.ravel()[(~is_inside).ravel().argmax()]
        raise Rejected(f"makes {wrong:g} a {target}, for which the model has no one result")
    return whole.astype(np.int64).astype(target)


def _bucketized(attributes: Attributes, numbers: Array) -> Array:
    boundaries = np.asarray(attributes["boundaries"], np.float32)
    if numbers.dtype.kind != "f":
        # C++ compares an integer with a float as floats.
        numbers = numbers.astype(np.float32)
    return np.searchsorted(boundaries, numbers, side="right").astype(np.int32)


def _lower_bounds(attributes: Attributes, ascending: Array, values: Array) -> Array:
    positions = np.searchsorted(ascending, values, side="left").astype(attributes["out_type"])
    if values.dtype.kind != "f":
        return positions
    # NumPy sorts NaN behind all numbers; to the kernel, no number is less than NaN.
    return np.where(np.isnan(values), np.zeros_like(positions), positions)


def _upper_bounds(attributes: Attributes, ascending: Array, values: Array) -> Array:
    return np.searchsorted(ascending, values, side="right").astype(attributes["out_type"])


def _gathered(_attributes: Attributes, values: Array, positions: Array) -> Array:
    outside = (positions < 0) | (positions >= values.size)
    if outside.any():
        wrong = positions.ravel()[outside.ravel().argmax()]
        raise Rejected(f"leads to position {wrong} of a list of {values.size}")
    return values[positions]


def _hashed(attributes: Attributes, texts: Array) -> Array:
    return _buckets(fingerprints(texts.ravel()).reshape(texts.shape), attributes)


def _strongly_hashed(attributes: Attributes, texts: Array) -> Array:
    low, high = attributes["key"]
    hashes = siphashes(texts.ravel().tolist(), (low, high))
    return _buckets(hashes.reshape(texts.shape), attributes)


def _hashed_as_before(attributes: Attributes, texts: Array) -> Array:
    hashes = older_hashes(texts.ravel().tolist())
    return _buckets(hashes.reshape(texts.shape), attributes)


def _buckets(hashes: Array, attributes: Attributes) -> Array:
    return (hashes % np.asarray(attributes["num_buckets"], np.uint64)).astype(np.int64)


def _as_string(attributes: Attributes, values: Array) -> Array:
    if values.dtype.kind == "b":
        return _texts([str(value).lower().encode() for value in values.ravel()], values.shape)
    width = attributes["width"]
    if max(width, attributes["precision"]) > WIDTH_MAX:
        raise ValueError(f"'width' and 'precision' are at most {WIDTH_MAX}")
    if values.dtype.kind in "iu" and width < 0 and not attributes["fill"]:
        decimals = [b"%d" % value for value in values.ravel().tolist()]
        return text_array(decimals).reshape(values.shape)
    pattern = _number_pattern(attributes, values.dtype.kind)
    # C fills with zeros before digits alone, not before "nan" and "inf".
    pattern_of_words = pattern.replace("%0", "%")
    texts = []
    for value in values.ravel().tolist():
        if math.isfinite(value):
            texts.append(pattern % value)
        else:
            texts.append(pattern_of_words % value)
    return _texts(map(str.encode, texts), values.shape)


def _number_pattern(attributes: Attributes, kind: str) -> str:
    """Returns the pattern by which numbers of a kind are printed: "i", "u" or "f"."""
    fill = attributes["fill"]
    if kind == "u":
        # C prints integers without a sign by %u, which knows no "+".
        fill = fill.strip("+ ")
    pattern = f"%{fill}"
    if attributes["width"] > -1:
        pattern += str(attributes["width"])
    if kind != "f":
        return f"{pattern}d"
    if attributes["precision"] > -1:
        pattern += f".{attributes['precision']}"
    if attributes["scientific"]:
        return f"{pattern}e"
    if attributes["shortest"]:
        return f"{pattern}g"
    return f"{pattern}f"


def _joined(attributes: Attributes, *texts: Array) -> Array:
    operands = np.broadcast_arrays(*texts)
    separator = attributes["separator"].encode()
    rows = zip(*[operand.ravel().tolist() for operand in operands], strict=True)
    return _texts(map(separator.join, rows), operands[0].shape)


def _added(_attributes: Attributes, first: Array, second: Array) -> Array:
    if first.dtype.kind == "O":
        return _joined({"separator": ""}, first, second)
    return flushed(np.add(first, second))


def _lowercased(_attributes: Attributes, texts: Array) -> Array:
    return _changed(bytes.lower, texts)


def _uppercased(_attributes: Attributes, texts: Array) -> Array:
    return _changed(bytes.upper, texts)


def _stripped(_attributes: Attributes, texts: Array) -> Array:
    return _changed(lambda text: text.strip(_WHITESPACE), texts)


def _lengths(attributes: Attributes, texts: Array) -> Array:
    listed = texts.ravel().tolist()
    if attributes["unit"] == "UTF8_CHAR":
        # The bytes of a character but for the first are 10xxxxxx.
        listed = [[byte for byte in text if byte & 0xC0 != 0x80] for text in listed]
    return np.array([len(text) for text in listed], np.int32).reshape(texts.shape)


def _substrings(_attributes: Attributes, texts: Array, starts: Array, sizes: Array) -> Array:
    operands = np.broadcast_arrays(texts, starts, sizes)
    substrings = []
    rows = zip(*[operand.ravel().tolist() for operand in operands], strict=True)
    for text, start, size in rows:
        if not -len(text) <= start <= len(text):
            raise Rejected(f"begins at byte {start} of a text of {len(text)} bytes")
        first = start
        if start < 0:
            first += len(text)
        end = first + size
        if size < 0:
            end = len(text)
        substrings.append(text[first:end])
    return _texts(substrings, operands[0].shape)


def is_simple(pattern: str) -> bool:
    """Returns whether a regular expression is a text, or a set of ASCII characters: what RE2 and
    Python understand alike, in a time that grows with the text.
    """
    return _SIMPLE_PATTERN.fullmatch(pattern) is not None


def _replaced(attributes: Attributes, texts: Array) -> Array:
    if not is_simple(attributes["pattern"]):
        raise ValueError(f"pattern {attributes['pattern']!r} is neither a text nor a set")
    pattern = re.compile(attributes["pattern"].encode(), re.ASCII)
    rewrite = attributes["rewrite"].encode()
    count = 1
    if attributes["replace_global"]:
        count = 0  # all of them
    return _changed(lambda text: pattern.sub(lambda _: rewrite, text, count), texts)


def _parsed(attributes: Attributes, texts: Array) -> Array:
    """Returns the numbers that texts write in decimal, with whitespace around them; of floats also
    in hexadecimal, infinities and NaN.
    """
    if attributes["out_type"] not in _PARSED_DTYPES:
        raise ValueError(
            f"'out_type' is {attributes['out_type']!r}; {_PARSED_DTYPES} were expected"
        )
    dtype = np.dtype(attributes["out_type"])
    parse: Callable[[bytes, np.dtype[Any]], Any] = _float
    if dtype.kind == "i":
        parse = _integer
    values = [parse(text.strip(_WHITESPACE), dtype) for text in texts.ravel().tolist()]
    return flushed(np.array(values, dtype).reshape(texts.shape))


def _integer(text: bytes, dtype: np.dtype[Any]) -> int:
    limits = np.iinfo(dtype)
    if _INTEGER.fullmatch(text) and len(text) <= _DIGITS_MAX:
        value = int(text)
        if limits.min <= value <= limits.max:
            return value
    raise Rejected(f"holds {text[:_DIGITS_MAX].decode(errors='replace')!r}, no {dtype}")


def _float(text: bytes, dtype: np.dtype[Any]) -> Any:
    if _HEXADECIMAL_FLOAT.fullmatch(text):
        value = _hexadecimal_float(text)
    elif _FLOAT.fullmatch(text):
        word, _, _payload_of_nan = text.partition(b"(")
        value = float(word)
    else:
        raise Rejected(f"holds {text[:_DIGITS_MAX].decode(errors='replace')!r}, no {dtype}")
    rounded = dtype.type(value)
    if dtype == np.float32 and math.isfinite(value) and math.isfinite(rounded):
        # The nearest float64 may be half way between two of float32, which the text is not.
        neighbor = np.nextafter(
            rounded, np.float32(math.copysign(math.inf, value - float(rounded)))
        )
        middle = (float(rounded) + float(neighbor)) / 2
        if math.isfinite(neighbor) and value == middle:
            exact = _exact_number(text)
            if exact > value:
                return max(rounded, neighbor)
            if exact < value:
                return min(rounded, neighbor)
    return rounded


def _hexadecimal_float(text: bytes) -> float:
    """Returns the nearest float64, which is infinite for numbers beyond it."""
    try:
        return float.fromhex(text.decode())
    except OverflowError:
        if text.startswith(b"-"):
            return -math.inf
        return math.inf


def _exact_number(text: bytes) -> Decimal | Fraction:
    """Returns the number that a text writes, however many digits it has."""
    hexadecimal = _HEXADECIMAL_FLOAT.fullmatch(text)
    if hexadecimal is None:
        return Decimal(text.decode())
    sign, whole, fraction, exponent = hexadecimal.groups()
    digits = int(sign + whole + fraction, 16)
    # `int` alone takes a limited number of digits, be they zeros.
    power = int(Decimal((exponent or b"0").decode()))
    return digits * Fraction(2) ** (power - 4 * len(fraction))


def _filled(value: int) -> Callable[..., Array]:
    def fill(_attributes: Attributes, values: Array) -> Array:
        if values.dtype.kind == "O":
            return np.full(values.shape, b"", object)
        return np.full(values.shape, value, values.dtype)

    return fill


def _arithmetic(function: np.ufunc, words: str) -> Operation:
    """Returns an operation on numbers whose results may be too small to be normal."""
    return Operation(
        lambda _attributes, *operands: flushed(function(*operands)), function.nin, words=words
    )


def _shift(function: np.ufunc, words: str) -> Operation:
    """Returns an operation that shifts integers by at least 0 bits and less than all of them."""

    def shifted(integers: Array, distances: Array) -> Array:
        last = 8 * integers.dtype.itemsize - 1
        result: Array = function(integers, np.clip(distances, 0, last))
        return result

    return _of_two(shifted, words)


def _of_two(function: Callable[..., Any], words: str = "") -> Operation:
    return Operation(lambda _attributes, first, second: function(first, second), 2, words=words)


def _of_one(function: Callable[..., Any], words: str = "") -> Operation:
    return Operation(lambda _attributes, values: function(values), 1, words=words)


OPERATIONS: Mapping[str, Operation] = {
    "Abs": _of_one(np.abs, "abs({0})"),
    "Add": Operation(_added, 2, words="({0} + {1})"),
    "AddV2": Operation(_added, 2, words="({0} + {1})"),
    "AsString": Operation(
        _as_string,
        1,
        ("width", "fill", "precision", "scientific", "shortest"),
        words="str({0})",
    ),
    "BitwiseAnd": _of_two(np.bitwise_and, "({0} & {1})"),
    "BitwiseOr": _of_two(np.bitwise_or, "({0} | {1})"),
    "BitwiseXor": _of_two(np.bitwise_xor, "({0} ^ {1})"),
    "Bucketize": Operation(_bucketized, 1, ("boundaries",), words="bucket({0})"),
    "Cast": Operation(_cast, 1, ("DstT",), words="{DstT}({0})"),
    "Ceil": _of_one(np.ceil, "ceil({0})"),
    "ClipByValue": Operation(_clipped, 3, words="clip({0}, {1}, {2})"),
    "Equal": _of_two(np.equal, "({0} == {1})"),
    "Floor": _of_one(np.floor, "floor({0})"),
    "FloorDiv": Operation(_floor_div, 2, words="({0} div {1})"),
    "FloorMod": Operation(_floor_mod, 2, words="({0} mod {1})"),
    "GatherV2": Operation(_gathered, 2, lists=(0,), words="{0}[{1}]"),
    "Greater": _of_two(np.greater, "({0} > {1})"),
    "GreaterEqual": _of_two(np.greater_equal, "({0} >= {1})"),
    "Invert": _of_one(np.invert, "~{0}"),
    "IsFinite": _of_one(np.isfinite, "isfinite({0})"),
    "IsInf": _of_one(np.isinf, "isinf({0})"),
    "IsNan": _of_one(np.isnan, "isnan({0})"),
    "LeftShift": _shift(np.left_shift, "({0} << {1})"),
    "Less": _of_two(np.less, "({0} < {1})"),
    "LessEqual": _of_two(np.less_equal, "({0} <= {1})"),
    "LogicalAnd": _of_two(np.logical_and, "({0} and {1})"),
    "LogicalNot": _of_one(np.logical_not, "not {0}"),
    "LogicalOr": _of_two(np.logical_or, "({0} or {1})"),
    "LowerBound": Operation(_lower_bounds, 2, ("out_type",), lists=(0,)),
    "Maximum": _of_two(np.maximum, "max({0}, {1})"),
    "Minimum": _of_two(np.minimum, "min({0}, {1})"),
    "Mul": _arithmetic(np.multiply, "({0} * {1})"),
    "Neg": _of_one(np.negative, "-{0}"),
    "NotEqual": _of_two(np.not_equal, "({0} != {1})"),
    "OnesLike": Operation(_filled(1), 1),
    "RealDiv": _arithmetic(np.divide, "({0} / {1})"),
    "RightShift": _shift(np.right_shift, "({0} >> {1})"),
    "Rint": _of_one(np.rint, "round({0})"),
    "Round": _of_one(np.rint, "round({0})"),
    "Select": Operation(_selected, 3, words="({1} if {0} else {2})"),
    "SelectV2": Operation(_selected, 3, words="({1} if {0} else {2})"),
    "Sign": _of_one(np.sign, "sign({0})"),
    "Sqrt": _of_one(np.sqrt, "sqrt({0})"),
    "Square": _arithmetic(np.square, "square({0})"),
    "SquaredDifference": _of_two(_squared_difference),
    "StaticRegexReplace": Operation(
        _replaced,
        1,
        ("pattern", "rewrite", "replace_global"),
        words="replace({0}, {pattern!r}, {rewrite!r})",
    ),
    "StringJoin": Operation(_joined, None, ("separator",)),
    "StringLength": Operation(_lengths, 1, ("unit",), words="len({0})"),
    "StringLower": Operation(_lowercased, 1, words="lower({0})"),
    "StringStrip": Operation(_stripped, 1, words="strip({0})"),
    "StringToNumber": Operation(_parsed, 1, ("out_type",), words="{out_type}({0})"),
    "StringToHashBucket": Operation(
        _hashed_as_before, 1, ("num_buckets",), words="(hash64({0}) mod {num_buckets})"
    ),
    "StringToHashBucketFast": Operation(
        _hashed, 1, ("num_buckets",), words="(fingerprint64({0}) mod {num_buckets})"
    ),
    "StringToHashBucketStrong": Operation(
        _strongly_hashed, 1, ("num_buckets", "key"), words="(siphash({0}) mod {num_buckets})"
    ),
    "StringUpper": Operation(_uppercased, 1, words="upper({0})"),
    "Sub": _arithmetic(np.subtract, "({0} - {1})"),
    "Substr": Operation(_substrings, 3),
    "TruncateDiv": Operation(_truncate_div, 2),
    "TruncateMod": Operation(_truncate_mod, 2, words="fmod({0}, {1})"),
    "UpperBound": Operation(_upper_bounds, 2, ("out_type",), lists=(0,)),
    "ZerosLike": Operation(_filled(0), 1),
}
"""The operations by TensorFlow's names, without `LookupTableFindV2`: graphs have its vocabularies.
"""
