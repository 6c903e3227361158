"""Varints and masked checksums, held against an independent way to write them."""

from __future__ import annotations

import pytest

from bundle.format.checksums import mask, unmask
from export.checkpoint.formats.coding import Malformed, read_varint, varint
from tests.units.export.checkpoint import tensor_bundles

LARGEST = (1 << 64) - 1


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (0, "00"),
        (1, "01"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        ((1 << 14) - 1, "ff7f"),
        (1 << 14, "808001"),
        (1 << 32, "8080808010"),
        (LARGEST, "ffffffffffffffffff01"),
    ],
)
def test_varint_holds_seven_bits_a_byte_from_the_lowest(value: int, stored: str) -> None:
    data = bytes.fromhex(stored)
    assert varint(value) == data
    assert read_varint(data, 0) == (value, len(data))
    assert read_varint(b"\xff" + data + b"\xff", 1) == (value, 1 + len(data))


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ("", "the bytes end within a varint, or it is too long"),
        ("80", "the bytes end within a varint, or it is too long"),
        ("ffffffffffffffffff02", "a varint exceeds 64 bits"),
        ("80808080808080808002", "a varint exceeds 64 bits"),
        ("8080808080808080808001", "the bytes end within a varint, or it is too long"),
        ("8080808080808080808000", "the bytes end within a varint, or it is too long"),
    ],
)
def test_varint_that_is_cut_short_or_too_large_is_malformed(stored: str, message: str) -> None:
    with pytest.raises(Malformed) as error:
        read_varint(bytes.fromhex(stored), 0)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("crc", "masked"),
    [
        (0, 0xA282EAD8),
        (1, 0xA284EAD8),
        (0x7FFF, 0xA280EAD8),
        (0x8000, 0xA282EAD9),
        (0xFFFFFFFF, 0xA282EAD7),
        (0x12345678, 0x4F730F40),
    ],
)
def test_checksum_is_masked_and_unmasked(crc: int, masked: int) -> None:
    assert tensor_bundles.masked(crc) == masked
    assert mask(crc) == masked
    assert unmask(masked) == crc
