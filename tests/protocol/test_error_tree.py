"""Every error says whose fault it is, has a name of its own, and ends a command with a status of its class."""

from __future__ import annotations

import re

import pytest

from protocol import errors
from protocol.errors import LocalError, PeerError, SwarmError


def tree(cls: type[SwarmError] = SwarmError) -> list[type[SwarmError]]:
    return [
        cls,
        *(found for child in cls.__subclasses__() for found in tree(child) if found.__module__ == "protocol.errors"),
    ]


ALL = tree()


def test_every_code_is_unique_and_snake_case() -> None:
    codes = [cls.code for cls in ALL]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code) for code in codes)


def test_every_error_is_somebodys_fault() -> None:
    for cls in ALL:
        assert cls is SwarmError or issubclass(cls, PeerError) != issubclass(cls, LocalError)


def test_the_docstring_draws_the_whole_tree() -> None:
    drawn = re.findall(r"[├└]── (\w+)", errors.__doc__ or "")
    assert sorted(drawn) == sorted(cls.__name__ for cls in ALL if cls is not SwarmError)


def test_exit_codes_tell_classes_apart_and_are_never_success() -> None:
    assert all(64 <= cls.exit_code <= 78 for cls in ALL)
    assert errors.UsageError.exit_code == 64  # protocol.md §10
    leaves = (
        errors.RequestTimeout, errors.ConfigError, errors.UsageError, errors.NotFound, errors.Conflict,
        errors.Refused, errors.StoreError, errors.EngineError, errors.PeerError,
    )  # fmt: skip
    assert len({cls.exit_code for cls in leaves}) == len(leaves)


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_the_machine_form_holds_code_message_and_hint(cls: type[SwarmError]) -> None:
    error = cls("what happened", hint="what to do")
    assert error.as_dict() == {"code": cls.code, "message": "what happened", "hint": "what to do"}
    assert str(error) == "what happened"
    assert cls("x").hint == cls.default_hint
