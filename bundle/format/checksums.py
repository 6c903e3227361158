"""crc32c of bytes, blocks, streams and joined ranges; never opens a path itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from io import BufferedIOBase, RawIOBase
from typing import TYPE_CHECKING, Any, TypeAlias

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div

if TYPE_CHECKING:
    from typing_extensions import Buffer

    Bytes: TypeAlias = Buffer | NDArray[Any]
    """Anything whose contiguous bytes can be read."""

BLOCK_BYTES = 4 << 20
"""The number of bytes of a file that share a checksum in the manifest."""
PIECE_BYTES = 256 << 10
"""The number of bytes of a file that are read at a time, into the same memory, which stays in the
core's cache: the kernel has to map new memory first.
"""
_PIECES_MAX = 4096
"""The maximum number of checksums of pieces before they are joined, which is fast only for many at
once.
"""
_POLYNOMIAL = 0x82F63B78  # Castagnoli, bits reversed
_MASK_DELTA = 0xA282EAD8


def crc32c(data: Bytes) -> int:
    """Returns the crc32c of contiguous bytes.

    Args:
      data: A bytes, bytearray, memoryview, map or C-order array; read, never copied.
    """
    if type(data) is bytes:  # a view would take longer than the digest of a few hundred bytes
        return int(google_crc32c.value(data))
    return int(google_crc32c.value(contiguous(data)))


def mask(crc: int) -> int:
    """Returns a crc32c in the form in which LevelDB and TensorFlow store it.

    Source: TensorFlow 2.20, core/lib/hash/crc32c.h (Mask).
    """
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def unmask(masked: int) -> int:
    """Returns the crc32c that is stored in this masked form."""
    rotated = (masked - _MASK_DELTA) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF


def extend(crc: int, data: Bytes) -> int:
    """Returns the crc32c of everything that `crc` stands for, followed by `data`."""
    return int(google_crc32c.extend(crc, contiguous(data)))


def combine(first: int, second: int, second_bytes: int) -> int:
    """Returns the crc32c of two joined ranges from those of each.

    Args:
      first: The crc32c of the range in front.
      second: The crc32c of the range behind it.
      second_bytes: The length of the range behind.

    Source: zlib, crc32.c, crc32_combine (the method; here as 32 x 32 bit matrices).
    """
    return shifted(first, second_bytes) ^ second


def shifted(crc: int, count: int) -> int:
    """Returns what a range adds to the crc32c of a whole in which `count` bytes follow it.

    The crc32c of the whole is the exclusive or of what its ranges add, in any order.
    """
    # One matrix for each bit of the count: `_zero_bits` has those of the powers of two.
    bits = count * 8
    power = 0
    while bits:
        if bits & 1:
            crc = _apply(_zero_bits(power), crc)
        bits >>= 1
        power += 1
    return crc


def shifted_each(crcs: Sequence[int], counts: Sequence[int]) -> NDArray[np.uint32]:
    """Does the same as `shifted` for many ranges at once: [n] uint32 from [n] crcs and [n] byte
    counts.
    """
    crc = np.array(crcs, np.uint32)
    bits = np.array(counts, np.uint64) * np.uint64(8)
    for power in range(int(bits.max(initial=0)).bit_length()):
        # The ranges whose count has this bit are multiplied with its matrix, column by column.
        indices = np.flatnonzero(bits >> np.uint64(power) & np.uint64(1))
        before = crc[indices]
        after = np.zeros(len(indices), np.uint32)
        for bit, column in enumerate(_zero_bits(power)):
            after ^= (before >> np.uint32(bit) & np.uint32(1)) * np.uint32(column)
        crc[indices] = after
    return crc


def joined(blocks: Iterable[tuple[int, int]]) -> int:
    """Returns the crc32c of ranges that follow one another, each given as (crc32c, bytes)."""
    crc = 0
    for block, size in blocks:
        crc = combine(crc, block, size)
    return crc


class Digest:
    """What the manifest says of bytes that pass by: crc32c, length and the crc32c of each block.

    Every byte is summed once: the crc of the whole is joined from those of the blocks.
    """

    def __init__(self) -> None:
        self._done: list[int] = []
        self._open = 0
        self._open_bytes = 0

    def update(self, data: Bytes) -> None:
        """Takes the next bytes, any number of them."""
        flat = contiguous(data)
        start = 0
        while start < flat.size:
            # Up to the end of the open block at most.
            piece = flat[start : start + BLOCK_BYTES - self._open_bytes]
            self._open = int(google_crc32c.extend(self._open, piece))
            self._open_bytes += piece.size
            start += piece.size
            if self._open_bytes == BLOCK_BYTES:
                self._done.append(self._open)
                self._open = self._open_bytes = 0

    def append(self, crc: int, size: int) -> None:
        """Takes the next bytes by their crc32c, where they were summed already. They must end
        within the open block.

        Raises:
          ValueError: They do not.
        """
        if size > self.room_bytes:
            raise ValueError(
                f"{size} bytes cross the end of the block, which is {self.room_bytes} bytes ahead"
            )
        self._open = combine(self._open, crc, size)
        self._open_bytes += size
        if self._open_bytes == BLOCK_BYTES:
            self._done.append(self._open)
            self._open = self._open_bytes = 0

    @property
    def room_bytes(self) -> int:
        """Bytes until the open block is full; at least one."""
        return BLOCK_BYTES - self._open_bytes

    @property
    def bytes(self) -> int:
        """Bytes seen so far."""
        return len(self._done) * BLOCK_BYTES + self._open_bytes

    @property
    def blocks(self) -> tuple[int, ...]:
        """The crc32c of each block of BLOCK_BYTES, in order; the last may be shorter."""
        if not self._open_bytes:
            return tuple(self._done)
        return (*self._done, self._open)

    @property
    def crc32c(self) -> int:
        """The crc32c of all bytes seen so far."""
        crc = joined((block, BLOCK_BYTES) for block in self._done)
        return combine(crc, self._open, self._open_bytes)


class UnorderedDigest:
    """What the manifest says of a file whose bytes come in any order, each once."""

    def __init__(self, size: int) -> None:
        """Begins a digest of `size` bytes."""
        self._size = size
        self._bytes = 0
        self._blocks = np.zeros(ceil_div(size, BLOCK_BYTES), np.uint32)
        self._pieces: list[tuple[int, int, int]] = []
        """The block of each piece, its crc32c, and the bytes of the block behind it."""

    def update_at(self, offset: int, data: Bytes) -> None:
        """Takes the bytes of the file from `offset` on.

        Raises:
          ValueError: They leave the file.
        """
        flat = contiguous(data)
        if offset + flat.size > self._size:
            raise ValueError(f"bytes {offset} to {offset + flat.size} leave a file of {self._size}")
        self._bytes += flat.size
        while flat.size:
            block = offset // BLOCK_BYTES
            end = min((block + 1) * BLOCK_BYTES, self._size)
            piece = flat[: end - offset]
            flat = flat[end - offset :]
            offset += piece.size
            self._pieces.append((block, int(google_crc32c.value(piece)), end - offset))
        if len(self._pieces) >= _PIECES_MAX:
            self._join()

    def digest(self) -> Digest:
        """Returns the digest of the file.

        Raises:
          ValueError: Fewer or more bytes came than it has.
        """
        if self._bytes != self._size:
            raise ValueError(f"{self._bytes} bytes came of a file of {self._size}")
        self._join()
        result = Digest()
        # Every block is whole now, the last one as long as what is left of the file.
        for crc in self._blocks.tolist():
            result.append(crc, min(BLOCK_BYTES, self._size - result.bytes))
        return result

    def _join(self) -> None:
        """Adds the pieces to their blocks. A crc32c is linear: that of a block is the sum of those
        of its pieces, each shifted by the bytes behind it.
        """
        if self._pieces:
            blocks, crcs, behind = zip(*self._pieces, strict=True)
            np.bitwise_xor.at(self._blocks, np.array(blocks), shifted_each(crcs, behind))
            self._pieces.clear()


def digest(
    stream: RawIOBase | BufferedIOBase,
    size: int | None = None,
    pause: Callable[[], object] = lambda: None,
) -> Digest:
    """Digests what is left of an open file, or its next `size` bytes; fewer if it ends before.

    Args:
      stream: The file, read from its position on.
      size: The maximum number of bytes; None: all that follow.
      pause: A function that is called after each piece.
    """
    result = Digest()
    piece = np.empty(PIECE_BYTES, np.uint8)
    while size is None or result.bytes < size:
        room = piece
        if size is not None:
            room = piece[: size - result.bytes]
        count = stream.readinto(room.data)
        if not count:
            break
        result.update(piece[:count])
        pause()
    return result


def contiguous(data: Bytes) -> NDArray[np.uint8]:
    """Views contiguous bytes as a flat array, which google_crc32c takes where it rejects
    memoryviews and bytearrays.

    Returns:
      [size in bytes] uint8, of the same memory.

    Raises:
      ValueError: An array is not contiguous.
    """
    if isinstance(data, np.ndarray):
        if data.ndim == 1 and data.dtype == np.uint8 and data.flags.c_contiguous:
            return data
        if not data.flags.c_contiguous:
            raise ValueError("bytes must be contiguous; pass np.ascontiguousarray of them")
        return data.reshape(-1).view(np.uint8)
    view = memoryview(data)
    if not view.nbytes:  # NumPy takes no empty buffer
        return np.empty(0, np.uint8)
    return np.frombuffer(view, np.uint8)


def _apply(operator: tuple[int, ...], crc: int) -> int:
    result = 0
    for column in operator:
        if crc & 1:
            result ^= column
        crc >>= 1
    return result


@lru_cache(maxsize=80)
def _zero_bits(power: int) -> tuple[int, ...]:
    # Column i: what appending 2^power zero bits makes of a crc whose only bit is i.
    if power == 0:
        return (_POLYNOMIAL, *(1 << bit for bit in range(31)))
    half = _zero_bits(power - 1)
    return tuple(_apply(half, column) for column in half)
