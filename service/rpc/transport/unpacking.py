"""Header blocks -> headers: HPACK's decoder, over the tables of the library hpack, whose own decoder takes four times
as long.

Source: RFC 7541, sections 4.3, 5 and 6; RFC 9110, section 5.2; hpack 4.2, `hpack.py` (Decoder).
"""

from __future__ import annotations

from hpack.exceptions import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from service.rpc.transport.frames import Fault, Reason

_FIELD_BYTES = 32
"""What a header counts for beside its name and value."""
_TABLE_BYTES_MAX = HeaderTable.DEFAULT_SIZE
_SHIFT_MAX = 28
_SEEN_MAX, _SEEN_BYTES_MAX = 16, 512
"""Blocks that are remembered as they are, since callers send the same ones again and again, and the size of each."""
MALFORMED = b""
"""No header has this name: where it is among the headers, they are not as HTTP/2 wants them."""
_PSEUDO = frozenset({b":method", b":scheme", b":authority", b":path"})
_REQUIRED = _PSEUDO - {b":authority"}
_OF_CONNECTIONS = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})


class Unpacker:
    """One connection's decoder: it keeps what it saw, so every block has to be unpacked, in their order."""

    def __init__(self, bytes_max: int) -> None:
        """Takes the most bytes that the headers of one block may have, as HTTP/2 counts them."""
        self._bytes_max = bytes_max
        self._table = HeaderTable()
        self._seen: dict[bytes, dict[bytes, bytes]] = {}
        self._names: tuple[bytes, ...] = ()

    def unpacked(self, block: bytes) -> dict[bytes, bytes]:
        """Returns the headers by name, to be read only; of one that comes more than once the values as a list.

        Raises:
          Fault: this is no such block, or it unpacks to more than that.
        """
        found = self._seen.get(block)
        if found is not None:
            return found
        try:
            found, changed = self._fields(block)
        except (IndexError, HPACKError):  # it ends too early, or names what is not there
            raise Fault(Reason.COMPRESSION_ERROR, "the headers are no HPACK") from None
        if changed or len(self._seen) >= _SEEN_MAX:
            self._seen.clear()
        if not changed and len(block) <= _SEEN_BYTES_MAX:
            self._seen[block] = found
        return found

    def _fields(self, block: bytes) -> tuple[dict[bytes, bytes], bool]:
        """Returns the headers, and whether the table is another one now."""
        found: dict[bytes, bytes] = {}
        at, left_bytes, table, changed = 0, self._bytes_max, self._table, False
        while at < len(block):
            first = block[at]
            if first & 0x80:
                index, at = _integer(block, at, 0x7F)
                name, value = table.get_by_index(index)
            elif first & 0xE0 == 0x20:
                size, at = _integer(block, at, 0x1F)
                if found or size > _TABLE_BYTES_MAX:
                    raise HPACKError
                table.maxsize = size
                changed = True
                continue
            else:
                kept = first & 0x40
                index, at = _integer(block, at, 0x3F if kept else 0x0F)
                if index:
                    name = table.get_by_index(index)[0]
                else:
                    name, at = _text(block, at)
                value, at = _text(block, at)
                if kept:
                    table.add(name, value)
                    changed = True
            left_bytes -= _FIELD_BYTES + len(name) + len(value)
            if left_bytes < 0:
                raise Fault(Reason.ENHANCE_YOUR_CALM, f"headers of more than {self._bytes_max} bytes")
            found[name] = value if name not in found else _again(found, name, value)
        if not self._sound(found):
            found[MALFORMED] = b""
        return found, changed

    def _sound(self, found: dict[bytes, bytes]) -> bool:
        """Tells whether headers are as HTTP/2 wants them."""
        names = tuple(found)
        if names != self._names:  # few callers change their names from call to call
            if not _in_order(names):
                return False
            self._names = names
        return found.get(b"te", b"trailers") == b"trailers" and found.get(b":path") != b""


def _again(found: dict[bytes, bytes], name: bytes, value: bytes) -> bytes:
    """Returns the value of a header that comes once more."""
    if name in _PSEUDO:
        found[MALFORMED] = b""
    return found[name] + b"," + value


def _in_order(names: tuple[bytes, ...]) -> bool:
    """Tells whether headers may have these names, ahead of or behind a body. Source: RFC 9113, sections 8.2, 8.3."""
    count = 0
    while count < len(names) and names[count] in _PSEUDO:
        count += 1
    others = names[count:]
    return (
        (not count or _REQUIRED.issubset(names))
        and not any(name.startswith(b":") or name != name.lower() for name in others)
        and _OF_CONNECTIONS.isdisjoint(others)
        and MALFORMED not in others
    )


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Returns an integer and where it ends; `mask` has the bits of its first byte."""
    value, at = block[at] & mask, at + 1
    if value < mask:
        return value, at
    shift = 0
    while True:
        octet, at = block[at], at + 1
        value += (octet & 0x7F) << shift
        if not octet & 0x80:
            return value, at
        shift += 7
        if shift > _SHIFT_MAX:
            raise HPACKError


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    """Returns a string and where it ends."""
    first = block[at]
    if first & 0x7F == 0x7F:
        size, at = _integer(block, at, 0x7F)
    else:  # nearly all are that short
        size, at = first & 0x7F, at + 1
    text = block[at : at + size]
    if len(text) != size:
        raise IndexError
    return (decode_huffman(text) if first & 0x80 else text), at + size
