"""The JSON schemas that may reach an engine, and whether a value keeps one.

A bad schema or pattern ends some engine processes, and others take it in silence and constrain
nothing (case E2; measured on llama.cpp: `{}`, an array-valued `items` and the pattern `[` all
answer 200). A schema may come from a peer. So the port knows one small subset, written out in the
tables below, and refuses the rest before any engine sees it: unknown keywords, unresolvable or
recursive references, patterns that do not compile or can run away, anything too big or too deep.

`violation` is the other half: engines promise conformity, kernels check it (engine.md §1). Both
functions are pure and bounded; a pattern is matched only against short text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Final

from kernel.engine import EngineRefused

SCHEMA_BYTES_MAX: Final = 16_384
SCHEMA_NODES_MAX: Final = 256
SCHEMA_DEPTH_MAX: Final = 8
ENUM_MAX: Final = 256
PATTERN_CHARS_MAX: Final = 128
PATTERN_TEXT_CHARS_MAX: Final = 512
"""Longer text does not match: with two unbounded repeats matching is cubic in the text."""
PATTERN_REPEATS_MAX: Final = 2
_BOUND_MAX: Final = 1_000_000

_TYPES: Final = ("object", "array", "string", "integer", "number", "boolean", "null")
_LENGTHS: Final = ("minLength", "maxLength", "minItems", "maxItems")
_RANGES: Final = ("minimum", "maximum")
_ANNOTATIONS: Final = ("title", "description", "default", "examples", "$schema")
_KEYWORDS: Final = frozenset(
    (
        *("type", "properties", "required", "additionalProperties", "items", "enum", "const"),
        *("anyOf", "$ref", "$defs", "definitions", "pattern"),
        *(*_LENGTHS, *_RANGES, *_ANNOTATIONS),
    )
)
_REF: Final = re.compile(r"#/(\$defs|definitions)/([A-Za-z0-9_.-]{1,64})")
_ANCHORED: Final = re.compile(r"\^(?:[^\\]|\\.)*\$", re.DOTALL)
_REPEAT: Final = re.compile(r"[*+?]|\{(\d*)(,?)(\d*)\}")

Schema = Mapping[str, object]


def check_schema(schema: Schema) -> None:
    """Refuses a schema that no engine should see.

    Raises:
        EngineRefused: it is outside the subset; the message names the place and the reason.
    """
    try:
        size = len(json.dumps(schema, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as exc:
        raise _refuse("#", f"it is not JSON: {exc}") from exc
    if size > SCHEMA_BYTES_MAX:
        raise _refuse("#", f"{size} bytes are over {SCHEMA_BYTES_MAX}")
    _Checker(schema).check(schema, "#", 0)


def violation(value: object, schema: Schema) -> str | None:
    """Where and how a decoded JSON value breaks a checked schema, or None if it keeps it."""
    return _violation(value, schema, schema, "$")


def _refuse(place: str, reason: str) -> EngineRefused:
    return EngineRefused(f"schema at {place}: {reason}", hint="see kernel/json_schema.py for what is taken")


class _Checker:
    """One walk over a schema; counts its nodes and knows the references it is inside of."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._nodes = 0

    def check(self, schema: object, place: str, depth: int) -> None:
        self._nodes += 1
        if self._nodes > SCHEMA_NODES_MAX or depth > SCHEMA_DEPTH_MAX:
            raise _refuse(place, f"over {SCHEMA_NODES_MAX} parts, {SCHEMA_DEPTH_MAX} levels, or recursive")
        if not isinstance(schema, Mapping):
            raise _refuse(place, f"a map is wanted, not {type(schema).__name__}")
        for key in schema:
            if key not in _KEYWORDS:
                raise _refuse(place, f"keyword {str(key)[:32]!r} is not taken")
        if not any(key in schema for key in ("type", "enum", "const", "anyOf", "$ref")):
            raise _refuse(place, "it constrains nothing: give a type, enum, const, anyOf or $ref")
        if depth and ("$defs" in schema or "definitions" in schema):
            raise _refuse(place, "definitions belong at the root")
        self._check_words(schema, place)
        self._check_parts(schema, place, depth)

    def _check_words(self, schema: Schema, place: str) -> None:
        if "type" in schema and schema["type"] not in _TYPES:
            raise _refuse(place, f"type {str(schema['type'])[:32]!r} is unknown")
        if "enum" in schema:
            _check_enum(schema["enum"], place)
        for key in _LENGTHS:
            bound = schema.get(key, 0)
            if type(bound) is not int or not 0 <= bound <= _BOUND_MAX:
                raise _refuse(place, f"{key} is an integer in 0..{_BOUND_MAX}")
        for key in _RANGES:
            limit = schema.get(key, 0)
            if type(limit) not in (int, float) or not math.isfinite(limit):  # type: ignore[arg-type]  # a number by the first test
                raise _refuse(place, f"{key} is a finite number")
        if "pattern" in schema:
            _check_pattern(schema["pattern"], place)

    def _check_parts(self, schema: Schema, place: str, depth: int) -> None:
        self._check_object(schema, place, depth)
        if "items" in schema:
            self.check(schema["items"], f"{place}/items", depth + 1)
        choices = schema.get("anyOf", ({"type": "null"},))
        if not isinstance(choices, (list, tuple)) or not choices:
            raise _refuse(place, "anyOf is a list with at least one schema")
        for index, part in enumerate(choices if "anyOf" in schema else ()):
            self.check(part, f"{place}/anyOf/{index}", depth + 1)
        if "$ref" in schema:
            # Walking into the target also unrolls recursion until the depth refuses it.
            target = _resolve(schema["$ref"], self._root)
            if target is None:
                raise _refuse(place, f"$ref {str(schema['$ref'])[:64]!r} leads nowhere")
            self.check(target, str(schema["$ref"]), depth + 1)

    def _check_object(self, schema: Schema, place: str, depth: int) -> None:
        properties = schema.get("properties", {})
        if not isinstance(properties, Mapping):
            raise _refuse(place, "properties is a map")
        for name, part in properties.items():
            self.check(part, f"{place}/properties/{str(name)[:32]}", depth + 1)
        required = schema.get("required", [])
        if not isinstance(required, (list, tuple)) or any(r not in properties for r in required):
            raise _refuse(place, "required lists names out of properties")
        if not isinstance(schema.get("additionalProperties", False), bool):
            raise _refuse(place, "additionalProperties is true or false")


def _resolve(reference: object, root: Schema) -> Schema | None:
    found = _REF.fullmatch(reference) if isinstance(reference, str) else None
    table = root.get(found[1]) if found else None
    target = table.get(found[2]) if found and isinstance(table, Mapping) else None
    return target if isinstance(target, Mapping) else None


def _check_enum(choices: object, place: str) -> None:
    if not isinstance(choices, (list, tuple)) or not 0 < len(choices) <= ENUM_MAX:
        raise _refuse(place, f"enum is a list of 1..{ENUM_MAX} values")
    if not all(c is None or isinstance(c, (str, int, float)) for c in choices):
        raise _refuse(place, "enum holds plain values only")


def _check_pattern(pattern: object, place: str) -> None:
    if not isinstance(pattern, str) or len(pattern) > PATTERN_CHARS_MAX:
        raise _refuse(place, f"pattern is a text of at most {PATTERN_CHARS_MAX} characters")
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as exc:
        raise _refuse(place, f"pattern does not compile: {exc}") from exc
    if not _ANCHORED.fullmatch(pattern):
        raise _refuse(place, "pattern is anchored with ^ and $; engines ignore any other")
    if (reason := _runaway(pattern)) is not None:
        raise _refuse(place, reason)


def _runaway(pattern: str) -> str | None:
    """Why matching could take more than cubic time, or None.

    Escapes and classes are blanked first, so that what is left of `*+?{}()` is syntax. Groups may
    not repeat, which leaves no nested repeats, and at most PATTERN_REPEATS_MAX repeats are open.
    """
    bare = re.sub(r"\[\^?\]?[^\]]*\]", "x", re.sub(r"\\.", "x", pattern))
    if "(?" in bare:
        return "pattern uses a group extension"
    if re.search(r"\)[*+?{]", bare):
        return "pattern repeats a group"
    repeats = [m for m in _REPEAT.finditer(bare) if m[0] != "?"]
    if sum(m[1] is None or m[2] == "," or int(m[1] or 0) > 64 for m in repeats) > (PATTERN_REPEATS_MAX):
        return f"pattern has more than {PATTERN_REPEATS_MAX} open repeats"
    return None


def _violation(value: object, schema: Schema, root: Schema, place: str) -> str | None:
    if "$ref" in schema:
        target = _resolve(schema["$ref"], root)
        assert target is not None, "violation() got a schema that check_schema() refuses"
        return _violation(value, target, root, place)
    if found := _plain_violation(value, schema, place):
        return found
    if "anyOf" in schema:
        choices = schema["anyOf"]
        assert isinstance(choices, (list, tuple))
        if all(_violation(value, choice, root, place) for choice in choices):
            return f"{place} fits none of the choices"
    if isinstance(value, dict):
        return _object_violation(value, schema, root, place)
    if isinstance(value, list):
        return _array_violation(value, schema, root, place)
    return None


def _plain_violation(value: object, schema: Schema, place: str) -> str | None:
    """What can be said without looking inside an object or an array."""
    if "type" in schema and not _IS_TYPE[str(schema["type"])](value):
        return f"{place} is not of type {schema['type']}"
    if "const" in schema and not _same(value, schema["const"]):
        return f"{place} is not the constant"
    allowed = schema.get("enum", (value,))
    assert isinstance(allowed, (list, tuple))
    if not any(_same(value, choice) for choice in allowed):
        return f"{place} is not one of the allowed values"
    if isinstance(value, str):
        return _text_violation(value, schema, place)
    if type(value) in (int, float):
        assert isinstance(value, (int, float))
        return _number_violation(value, schema, place)
    return None


_IS_TYPE: Final[dict[str, Callable[[object], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: type(value) is int,
    "number": lambda value: type(value) in (int, float),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}


def _same(value: object, choice: object) -> bool:
    """JSON equality: 1 and true differ, 1 and 1.0 do not."""
    return value == choice and isinstance(value, bool) == isinstance(choice, bool)


def _bound(schema: Schema, key: str, default: float) -> float:
    value = schema.get(key, default)
    assert isinstance(value, (int, float))
    return value


def _text_violation(value: str, schema: Schema, place: str) -> str | None:
    lowest, highest = _bound(schema, "minLength", 0), _bound(schema, "maxLength", math.inf)
    if not lowest <= len(value) <= highest:
        return f"{place} has {len(value)} characters, not {lowest}..{highest}"
    if "pattern" in schema and (len(value) > PATTERN_TEXT_CHARS_MAX or not re.search(_python_pattern(schema), value)):
        return f"{place} does not match its pattern"
    return None


def _python_pattern(schema: Schema) -> str:
    r"""The pattern with `\Z` at its end: in JSON Schema `$` does not match before a last newline."""
    return str(schema["pattern"])[:-1] + r"\Z"


def _number_violation(value: float, schema: Schema, place: str) -> str | None:
    if not _bound(schema, "minimum", -math.inf) <= value <= _bound(schema, "maximum", math.inf):
        return f"{place} is out of range"
    return None


def _object_violation(value: dict[str, object], schema: Schema, root: Schema, place: str) -> str | None:
    properties, required = schema.get("properties", {}), schema.get("required", ())
    assert isinstance(properties, Mapping)
    assert isinstance(required, (list, tuple))
    for name in required:
        if name not in value:
            return f"{place} lacks {name!r}"
    for name, item in value.items():
        if name in properties:
            if found := _violation(item, properties[name], root, f"{place}.{name[:32]}"):
                return found
        elif schema.get("additionalProperties", True) is False:
            return f"{place} has an unknown member {name[:32]!r}"
    return None


def _array_violation(value: list[object], schema: Schema, root: Schema, place: str) -> str | None:
    lowest, highest = _bound(schema, "minItems", 0), _bound(schema, "maxItems", math.inf)
    if not lowest <= len(value) <= highest:
        return f"{place} has {len(value)} items, not {lowest}..{highest}"
    if "items" in schema:
        part = schema["items"]
        assert isinstance(part, Mapping)
        for index, item in enumerate(value):
            if found := _violation(item, part, root, f"{place}[{index}]"):
                return found
    return None
