"""Rules of the house that no ready-made linter states, read off the syntax tree of every module.

- `node/transport.py` imports libp2p and its multiaddr; no other product module does.
- Nothing that unpickles is imported anywhere, tests included.
- Pure code and the simulator ask no clock and no source of randomness of their own: a run is a
  function of its inputs and its seed.
- Pure code and the simulator never walk a set where the order shows: the order of bytes, str and
  enums follows PYTHONHASHSEED, so two processes would disagree. `hash` and `id` are refused for
  the same reason.

A finding is a line `path:line: what`. Where order provably does not show, the line ends with
`# unordered: reason`. What one module's tree cannot tell (a set behind a call, an attribute of
another module, ties of a sort key) is left to the tests that replay a run under two hash seeds.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("dht", "gossip", "kernel", "node", "protocol", "simulations")
PURE = ("dht/", "gossip/", "kernel/", "protocol/", "node/core.py", "node/dht_bridge.py", "simulations/")
# The hands of the kernel, and what runs simulations or measures them for a person.
IMPURE = ("kernel/executor.py", "simulations/bench/")
# Three files: in one, the adapter would be three times as long as a file should be.
NETWORK_HOMES = ("node/transport.py", "node/transport_host.py", "node/transport_relay.py")
NETWORK = ("libp2p", "multiaddr")
UNPICKLERS = (
    "pickle",
    "_pickle",
    "cPickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "shelve",
    "multiprocessing",
)
CLOCKS = (
    "time",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
)
RANDOMNESS = ("random", "os.urandom", "os.getrandom", "secrets", "uuid", "numpy.random")
SEEDED = (
    "random.Random",
    "numpy.random.Generator",
    "numpy.random.default_rng",
    "numpy.random.PCG64",
)
# The answer of these calls does not depend on the order of what they are given. A key brings ties,
# which min and max break by order.
ORDER_FREE = ("all", "any", "bool", "frozenset", "len", "max", "min", "set", "sorted", "sum")
ORDER_SHOWS = ("enumerate", "filter", "iter", "list", "map", "tuple", "zip", "dict.fromkeys")
SET_TYPES = (
    "set",
    "frozenset",
    "collections.abc.Set",
    "collections.abc.MutableSet",
    "typing.AbstractSet",
)
WRAPPERS = ("typing.ClassVar", "typing.Final")
SET_METHODS = ("copy", "difference", "intersection", "symmetric_difference", "union")
WAIVER = "# unordered: "

Finding = tuple[int, str]
Rule = Callable[[ast.Module], Iterator[Finding]]


def is_within(name: str, roots: tuple[str, ...]) -> bool:
    """True if the dotted `name` is one of `roots` or lies below one."""
    return any(name == root or name.startswith(root + ".") for root in roots)


class Names:
    """What the names of one module stand for, through its imports at any depth."""

    def __init__(self, tree: ast.Module) -> None:
        self.imports: list[Finding] = []  # every dotted name that is imported, with its line
        self._full: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self.imports.append((node.lineno, alias.name))
                    local = alias.asname or alias.name.partition(".")[0]
                    self._full[local] = alias.name if alias.asname else local
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    self.imports.append((node.lineno, name))
                    self._full[alias.asname or alias.name] = name

    def dotted(self, node: ast.AST) -> str:
        """The full dotted name that an expression of names and attributes stands for, or ""."""
        if isinstance(node, ast.Name):
            return self._full.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            head = self.dotted(node.value)
            return f"{head}.{node.attr}" if head else ""
        return ""

    def imported(self, node: ast.AST) -> str:
        """As `dotted`, for what was imported only: a local variable called `time` is no clock."""
        head = node
        while isinstance(head, ast.Attribute):
            head = head.value
        is_import = isinstance(head, ast.Name) and head.id in self._full
        return self.dotted(node) if is_import else ""


def network_imports(tree: ast.Module) -> Iterator[Finding]:
    """Imports of libp2p or multiaddr, by statement or by name at run time."""
    yield from _imports(tree, NETWORK)


def unpickling(tree: ast.Module) -> Iterator[Finding]:
    """Imports of what unpickles, and calls that let numpy or torch do it."""
    yield from _imports(tree, UNPICKLERS)
    names = Names(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        allowed = keywords.get("allow_pickle")
        if allowed is not None and not _is_constant(allowed, value=False):
            yield node.lineno, "allow_pickle"
        weights_only = keywords.get("weights_only")
        if names.dotted(node.func) == "torch.load" and not (
            weights_only is not None and _is_constant(weights_only, value=True)
        ):
            yield node.lineno, "torch.load without weights_only=True"


def clocks_and_randomness(tree: ast.Module) -> Iterator[Finding]:
    """Uses of a clock, global randomness, a generator without a seed, `hash` and `id`."""
    names = Names(tree)
    inside_hash = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "__hash__"
        for child in ast.walk(node)
    }
    for line, name in names.imports:
        if is_within(name, CLOCKS + RANDOMNESS) and not is_within(name, ("random", "numpy.random")):
            yield line, f"imports {name}"
    for node in ast.walk(tree):
        name = names.imported(node)
        if isinstance(node, ast.Call):
            called = names.dotted(node.func)
            if called in {"hash", "id"} and id(node) not in inside_hash:
                yield node.lineno, f"{called}() differs between processes"
            elif called in SEEDED and not node.args and not node.keywords:
                yield node.lineno, f"{called}() without a seed"
        elif is_within(name, CLOCKS + RANDOMNESS) and name not in {
            "random",
            "numpy.random",
            *SEEDED,
        }:
            yield getattr(node, "lineno", 0), f"uses {name}"


def unordered_walks(tree: ast.Module) -> Iterator[Finding]:
    """Loops, comprehensions, conversions and unpackings that show the order of a set."""
    names = Names(tree)
    sets = _SetTypes(tree, names)
    free = {
        id(argument)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and names.dotted(node.func) in ORDER_FREE
        and not _breaks_ties_by_order(node, names)
        for argument in node.args
    }
    for node in ast.walk(tree):
        if id(node) in free:
            continue
        for walked in _walked(node, names):
            if sets.is_set(walked):
                yield walked.lineno, "walks a set in hash order: sort it, or keep a dict"


def _breaks_ties_by_order(call: ast.Call, names: Names) -> bool:
    has_key = any(keyword.arg == "key" for keyword in call.keywords)
    return has_key and names.dotted(call.func) in {"max", "min"}


def _walked(node: ast.AST, names: Names) -> list[ast.expr]:
    """The expressions whose order shows in what `node` does or gives."""
    walked: list[ast.expr] = []
    match node:
        case ast.For() | ast.AsyncFor():
            walked = [node.iter]
        case ast.ListComp() | ast.GeneratorExp() | ast.DictComp():
            walked = [generator.iter for generator in node.generators]
        case ast.Starred(ctx=ast.Load()):
            walked = [node.value]
        case ast.Call(func=ast.Attribute(attr="join" | "extend"), args=[argument]):
            walked = [argument]
        case ast.Call(func=ast.Attribute(attr="pop") as method, args=[], keywords=[]):
            walked = [method.value]
        case ast.Call() if names.dotted(node.func) in ORDER_SHOWS or _breaks_ties_by_order(node, names):
            walked = list(node.args)
        case _:
            pass
    return walked


class _SetTypes:
    """Which expressions of a module are sets in hash order, as far as the module itself tells.

    Known are displays, comprehensions, `set` and `frozenset` calls, operators and methods of those,
    and names or attributes that the module annotates as sets or binds to one. A name with bindings
    of both kinds is not judged. Sets of int have the same order in every process.
    """

    def __init__(self, tree: ast.Module, names: Names) -> None:
        self._names = names
        self._kinds: dict[tuple[int, str], set[bool]] = {}  # (owner of the name, name) -> is it a set, per binding
        self._owner: dict[int, int] = {}  # id of a Name or self-attribute -> id of its function, class or module
        self._outer: dict[int, int] = {}  # id of a function or class -> id of what it stands in
        self._assign_owners(tree, scope=id(tree), cls=id(tree))
        for node in ast.walk(tree):
            self._learn(node)

    def is_set(self, node: ast.expr) -> bool:
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Call():
                called = self._names.dotted(node.func)
                method = node.func
                return called in {"set", "frozenset"} or (
                    isinstance(method, ast.Attribute) and method.attr in SET_METHODS and self.is_set(method.value)
                )
            case ast.BinOp(op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor()):
                return self.is_set(node.left) or self.is_set(node.right)
            case ast.IfExp():
                return self.is_set(node.body) or self.is_set(node.orelse)
            case ast.Name() | ast.Attribute():
                return self._kinds_of(node) == {True}
            case _:
                return False

    def _kinds_of(self, node: ast.Name | ast.Attribute) -> set[bool]:
        """How `node` is bound in the innermost scope that binds it."""
        owner, name = self._key(node)
        while (owner, name) not in self._kinds and owner in self._outer:
            owner = self._outer[owner]
        return self._kinds.get((owner, name), set())

    def _assign_owners(self, node: ast.AST, scope: int, cls: int) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                self._outer[id(child)] = scope
                is_class = isinstance(child, ast.ClassDef)
                self._assign_owners(child, scope=id(child), cls=id(child) if is_class else cls)
            else:
                is_own = isinstance(child, ast.Attribute) and self._names.dotted(child.value) == "self"
                self._owner[id(child)] = cls if is_own else scope
                self._assign_owners(child, scope, cls)

    def _key(self, node: ast.AST) -> tuple[int, str]:
        """Fields declared in a class body and `self.field` in its methods share a key."""
        own = isinstance(node, ast.Attribute) and self._names.dotted(node.value) == "self"
        name = node.attr if own and isinstance(node, ast.Attribute) else self._names.dotted(node)
        return self._owner.get(id(node), 0), name

    def _learn(self, node: ast.AST) -> None:
        match node:
            case ast.arg(annotation=ast.expr() as annotation):
                self._bind((self._owner[id(node)], node.arg), is_set=self._says_set(annotation))
            case ast.AnnAssign(annotation=annotation, value=value):
                bare = value is not None and self._names.dotted(annotation) in WRAPPERS
                is_set = self.is_set(value) if value is not None and bare else self._says_set(annotation)
                self._bind(self._key(node.target), is_set=is_set)
            case ast.Assign(targets=[ast.Name() | ast.Attribute() as target]):
                key = self._key(target)
                if key not in self._kinds:  # an annotation, or an earlier binding, is the better witness
                    self._bind(key, is_set=self.is_set(node.value))
            case ast.For(target=ast.Name() as target) | ast.comprehension(target=ast.Name() as target):
                self._bind(self._key(target), is_set=False)
            case _:
                pass

    def _bind(self, key: tuple[int, str], *, is_set: bool) -> None:
        self._kinds.setdefault(key, set()).add(is_set)

    def _says_set(self, annotation: ast.expr) -> bool:
        match annotation:
            case ast.Subscript(value=base, slice=inner) if self._names.dotted(base) in WRAPPERS:
                return self._says_set(inner)
            case ast.Subscript(value=base, slice=element):
                return self._says_set(base) and self._names.dotted(element) != "int"
            case ast.BinOp(op=ast.BitOr()):
                return self._says_set(annotation.left) or self._says_set(annotation.right)
            case _:
                return self._names.dotted(annotation) in SET_TYPES


def _imports(tree: ast.Module, roots: tuple[str, ...]) -> Iterator[Finding]:
    names = Names(tree)
    for line, name in names.imports:
        if is_within(name, roots):
            yield line, f"imports {name}"
    for node in ast.walk(tree):
        match node:
            case ast.Call(args=[ast.Constant(value=str(module)), *_]) if is_within(module, roots):
                if names.dotted(node.func) in {"importlib.import_module", "__import__"}:
                    yield node.lineno, f"imports {module}"
            case _:
                pass


def _is_constant(node: ast.expr, *, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def findings(rule: Rule, text: str, path: str) -> list[str]:
    """What `rule` finds in `text`, the source of `path`; waived lines are left out."""
    lines = text.splitlines()
    found = sorted(set(rule(ast.parse(text, filename=path))))
    return [f"{path}:{line}: {what}" for line, what in found if WAIVER not in lines[line - 1]]


def modules(*roots: str) -> list[str]:
    """The paths of all Python files under `roots`, in order, relative to the checkout."""
    files = [file for root in roots for file in (ROOT / root).rglob("*.py")]
    return sorted(file.relative_to(ROOT).as_posix() for file in files)


def is_pure(path: str) -> bool:
    return path.startswith(PURE) and not path.startswith(IMPURE)


def findings_in(rule: Rule, paths: list[str]) -> list[str]:
    return [found for path in paths for found in findings(rule, (ROOT / path).read_text(encoding="utf-8"), path)]


def test_only_the_transport_knows_libp2p() -> None:
    paths = [path for path in modules(*PRODUCT) if path not in NETWORK_HOMES]
    assert findings_in(network_imports, paths) == []


def test_nothing_unpickles() -> None:
    assert findings_in(unpickling, modules(*PRODUCT, "tests")) == []


def test_pure_code_asks_no_clock_and_no_randomness() -> None:
    assert findings_in(clocks_and_randomness, [p for p in modules(*PRODUCT) if is_pure(p)]) == []


def test_pure_code_walks_no_set_in_hash_order() -> None:
    assert findings_in(unordered_walks, [p for p in modules(*PRODUCT) if is_pure(p)]) == []


def test_the_rules_see_every_package() -> None:
    assert {path.partition("/")[0] for path in modules(*PRODUCT)} == set(PRODUCT)
    assert is_pure("kernel/turns/fold.py")
    assert is_pure("node/core.py")
    assert not is_pure("kernel/executor.py")
    assert not is_pure("node/driver.py")


PLANTED: dict[Rule, list[str]] = {
    network_imports: [
        "import libp2p.crypto as keys",
        "def dial():\n    from multiaddr import Multiaddr",
        "import importlib\nimportlib.import_module('libp2p.host')",
    ],
    unpickling: [
        "import pickle",
        "from multiprocessing import Pipe",
        "import numpy as np\nnp.load('x.npy', allow_pickle=True)",
        "import torch\ntorch.load('x.pt')",
    ],
    clocks_and_randomness: [
        "import time",
        "from time import monotonic as now",
        "import datetime as dt\nx = dt.datetime.now(dt.UTC)",
        "from datetime import datetime\nx = datetime.utcnow",
        "import random\nx = random.choice([1])",
        "from random import shuffle\nshuffle([1])",
        "import random\nrng = random.Random()",
        "import random\nrng = random.SystemRandom()",
        "import numpy as np\nx = np.random.rand(3)",
        "import os\nx = os.urandom(8)",
        "import uuid",
        "from secrets import token_bytes",
        "x = hash(b'key') % 8",
    ],
    unordered_walks: [
        "for x in {b'a', b'b'}:\n    pass",
        "y = [x for x in set(range(3))]",
        "y = {x: 1 for x in frozenset('ab')}",
        "y = list({x for x in 'ab'})",
        "y = b''.join({b'a', b'b'} | {b'c'})",
        "y = [*set('ab')]",
        "y = min({b'a', b'b'}, key=len)",
        "y = min((x for x in {b'a', b'b'}), key=len)",
        "def f(peers: set[bytes]):\n    for peer in peers:\n        pass",
        "def f():\n    seen = set()\n    return tuple(seen - {1})",
        "from typing import Final\nX: Final = frozenset({b'a'})\ndef f():\n    return [*X]",
        "from typing import Final\nX: Final[frozenset[bytes]] = g()\nfor x in X:\n    pass",
        "def f():\n    seen = {b'a'}\n    return lambda: list(seen)",
        "def f(seen: set[str]):\n    def g():\n        return list(seen)\n    return g",
        "class A:\n    x: frozenset[str]\n    def f(self):\n        return [*self.x]",
        "class A:\n    def f(self):\n        self.x: set[str] = set()\n        return self.x.pop()",
    ],
}
ALLOWED: dict[Rule, list[str]] = {
    network_imports: [
        "from node.transport import Libp2pTransport\nlibp2p = 'libp2p'",
    ],
    unpickling: [
        "import torch\ntorch.load('x.pt', weights_only=True)",
    ],
    clocks_and_randomness: [
        "import random\ndef f(rng: random.Random) -> float:\n    return rng.random()",
        "import random\nrng = random.Random(7)",
        "from datetime import timedelta\nday = timedelta(days=1)",
        "def f(time: int, random: int) -> int:\n    return time + random.real",
        "class A:\n    def __hash__(self) -> int:\n        return hash(self.raw)",
    ],
    unordered_walks: [
        "for x in sorted({b'a', b'b'}):\n    pass",
        "y = sum(len(x) for x in {b'a', b'b'})",
        "y = {x + x for x in {b'a', b'b'}}",
        "y = sorted(x for x in {b'a'} if x)",
        "def f(numbers: set[int]):\n    return [n for n in numbers]",
        "def f(rows: list[int]):\n    return rows.pop()",
        "def f(x: set[str]):\n    return x\ndef g(x: list[str]):\n    return [y for y in x]",
        "for x in {b'a'}:  # unordered: every step commutes\n    pass",
    ],
}


def cases(texts: dict[Rule, list[str]]) -> list[tuple[Rule, str]]:
    return [(rule, text) for rule, group in texts.items() for text in group]


@pytest.mark.parametrize(("rule", "text"), cases(PLANTED))
def test_a_planted_violation_is_found(rule: Rule, text: str) -> None:
    assert findings(rule, text, "planted.py") != []


@pytest.mark.parametrize(("rule", "text"), cases(ALLOWED))
def test_allowed_code_is_left_alone(rule: Rule, text: str) -> None:
    assert findings(rule, text, "allowed.py") == []
