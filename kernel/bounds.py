"""Bounds that everything from outside is brought to before it becomes an op: models count characters, ops bytes.

A body holds 64 KiB (protocol.op.BODY_BYTES_MAX). Texts of people, documents and engines are cut to
`TEXT_BYTES_MAX` of UTF-8, which leaves room for the largest summary, vector, verdict and receipt beside them. A value
that no model takes is a `UsageError` of whoever gave it, never an exception that ends the node.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pydantic import ValidationError

from protocol.errors import UsageError
from protocol.op import BODY_BYTES_MAX
from protocol.records import Record, body_bytes

TEXT_BYTES_MAX: Final = 40_000
"""Of the content of a unit, or of an objective."""


def head_bytes(text: str, bytes_max: int) -> str:
    """The longest head of whole characters that fits so many bytes of UTF-8."""
    return text if fits_bytes(text, bytes_max) else text.encode()[:bytes_max].decode(errors="ignore")


def tail_bytes(text: str, bytes_max: int) -> str:
    """The longest tail of whole characters that fits so many bytes of UTF-8."""
    return text if fits_bytes(text, bytes_max) else text.encode()[-bytes_max:].decode(errors="ignore")


def fits_bytes(text: str, bytes_max: int) -> bool:
    """Whether a text fits so many bytes of UTF-8; a long one is not encoded to find out."""
    return len(text) <= bytes_max and (4 * len(text) <= bytes_max or len(text.encode()) <= bytes_max)


@contextmanager
def model_bounds(what: str) -> Iterator[None]:
    """Turns the refusal of a model into a typed error that names the field.

    Raises:
        UsageError: a field of the record made inside is out of its bounds.
    """
    try:
        yield
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"{what} cannot be kept: {where}: {first['msg']}") from exc


def check_size(record: Record, what: str) -> None:
    """Whether an op can hold the record.

    Raises:
        UsageError: it is too large.
    """
    size = len(body_bytes(record))
    if size > BODY_BYTES_MAX:
        raise UsageError(f"{what} takes {size} bytes, an op holds {BODY_BYTES_MAX}", hint="make it shorter")
