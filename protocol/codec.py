"""The one strict decoder: canonical msgpack and length-framed varints.

Canonical (protocol.md §2): shortest forms, map keys text in ascending byte order and unique, no floats, no
ext types, valid UTF-8. One value has one encoding, so equal bytes and equal values are the same thing, and
bytes that are not the encoding of their own value are refused. The library does the packing; this file adds
what it leaves open: its unpacker takes duplicate keys, non-minimal integers, any key type and ext types.

Everything that arrives is hostile until `decode` has returned; the only error is `DecodeError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgpack

from protocol.errors import DecodeError, UsageError

Value = None | bool | int | str | bytes | tuple["Value", ...] | dict[str, "Value"]

DEPTH_MAX: Final = 16
ITEMS_MAX: Final = 65_536
VARINT_BYTES_MAX: Final = 3  # 2^21 - 1, above every lane's cap
_INT_MIN: Final = -(2**63)
_INT_MAX: Final = 2**64 - 1
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def clean_text(text: str) -> str:
    """Text as it may be hashed and signed: lone surrogates become U+FFFD, all else stays (case W4)."""
    return _SURROGATE.sub("\ufffd", text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def encode(value: object) -> bytes:
    """The canonical bytes of a value made of None, bool, int, str, bytes, tuple/list and dict[str, …].

    Raises:
        UsageError: the value cannot be carried (float, big integer, lone surrogate, odd key, too deep).
    """
    try:
        packed: bytes = msgpack.packb(_canonical(value, 0), use_bin_type=True, strict_types=True)
    except (OverflowError, UnicodeEncodeError, TypeError, ValueError) as exc:
        raise UsageError(f"value cannot be encoded: {exc}") from exc
    return packed


def _canonical(value: object, depth: int) -> object:
    if depth > DEPTH_MAX:
        raise ValueError(f"deeper than {DEPTH_MAX}")
    if value is None or isinstance(value, (bool, str, bytes)):
        return value
    if isinstance(value, int):
        if not _INT_MIN <= value <= _INT_MAX:
            raise ValueError(f"integer beyond 64 bits: {value}")
        return int(value)
    if isinstance(value, (tuple, list)):
        return [_canonical(item, depth + 1) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("map keys are text")
        ordered = sorted(value.items(), key=lambda pair: pair[0].encode())
        return {key: _canonical(item, depth + 1) for key, item in ordered}
    raise ValueError(f"type {type(value).__name__} has no wire form")


def decode(data: bytes, *, bytes_max: int) -> Value:
    """The value behind canonical bytes; arrays become tuples.

    Raises:
        DecodeError: empty, over `bytes_max`, truncated, trailing bytes, not canonical, too deep, too many items.
    """
    if not data:
        raise DecodeError("empty message")
    if len(data) > bytes_max:
        raise DecodeError(f"message of {len(data)} bytes is over {bytes_max}")
    try:
        value = msgpack.unpackb(
            data,
            use_list=False,
            strict_map_key=True,
            object_pairs_hook=_pairs,
            ext_hook=_no_ext,
            max_array_len=ITEMS_MAX,
            max_map_len=ITEMS_MAX,
            max_ext_len=0,
        )
        _check_nesting(value, 0)
        # Keys are in order and no float is left, so packing as it stands gives the one canonical form.
        canonical = msgpack.packb(value, use_bin_type=True)
    except DecodeError:
        raise
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as exc:
        raise DecodeError(f"not canonical msgpack: {type(exc).__name__}: {str(exc)[:120]}") from exc
    if canonical != data:
        raise DecodeError("not in canonical form")
    checked: Value = value
    return checked


def _check_nesting(value: object, depth: int) -> None:
    """Only containers are walked: this runs for every frame and op (measured: half of the decoding time before)."""
    items: Iterable[object] = ()
    if type(value) is tuple:
        items = value
    elif type(value) is dict:
        items = value.values()
    elif type(value) is float:
        raise DecodeError("a float")
    if items and depth >= DEPTH_MAX:
        raise DecodeError(f"deeper than {DEPTH_MAX}")
    for item in items:
        kind = type(item)
        if kind is tuple or kind is dict:
            _check_nesting(item, depth + 1)
        elif kind is float:
            raise DecodeError("a float")


def _pairs(pairs: list[tuple[object, object]]) -> dict[str, object]:
    out: dict[str, object] = {}
    last: str | None = None
    for key, item in pairs:
        if not isinstance(key, str):
            raise DecodeError("a map key is not text")
        if last is not None and key <= last:  # text compares by code point, and so do its UTF-8 bytes
            raise DecodeError(f"map key {key[:32]!r} twice or out of order")
        out[key], last = item, key
    return out


def _no_ext(code: int, _data: bytes) -> object:
    raise DecodeError(f"ext type {code}")


def encode_varint(number: int) -> bytes:
    """Minimal unsigned LEB128 of a number below 2^21."""
    if not 0 <= number < 1 << (7 * VARINT_BYTES_MAX):
        raise UsageError(f"{number} does not fit {VARINT_BYTES_MAX} varint bytes")
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: bytes | bytearray | memoryview, offset: int = 0) -> tuple[int, int] | None:
    """(number, next offset), or None while bytes are missing.

    Raises:
        DecodeError: not minimal, or longer than VARINT_BYTES_MAX.
    """
    number = 0
    for used in range(VARINT_BYTES_MAX):
        if offset + used >= len(data):
            return None
        byte = data[offset + used]
        number |= (byte & 0x7F) << (7 * used)
        if byte < 0x80:
            if used and not byte:
                raise DecodeError("varint is not minimal")
            return number, offset + used + 1
    raise DecodeError(f"varint longer than {VARINT_BYTES_MAX} bytes")


class FrameBuffer:
    """Cuts a byte stream into frames: varint length, then that many bytes (at least one, at most `bytes_max`).

    A length over the cap is refused before any of its body is kept (case W1).
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._buffer = bytearray()

    @property
    def partial(self) -> bool:
        """True while the stream stands in the middle of a frame."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Every frame that `data` completes.

        Raises:
            DecodeError: a length prefix that is empty, non-minimal or over the cap.
        """
        self._buffer += data
        frames: list[bytes] = []
        offset = 0
        while (head := read_varint(self._buffer, offset)) is not None:
            length, start = head
            if not 0 < length <= self._bytes_max:
                raise DecodeError(f"frame length {length} is outside 1..{self._bytes_max}")
            if len(self._buffer) < start + length:
                break
            frames.append(bytes(self._buffer[start : start + length]))
            offset = start + length
        del self._buffer[:offset]
        return frames


def frame(body: bytes) -> bytes:
    """A body with its length prefix."""
    return encode_varint(len(body)) + body
