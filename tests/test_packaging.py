"""What an installation of masos brings: the six packages, their type marker, and nothing else.

The packages have short names and live at the top level of site-packages, so both directions are
checked: nobody else owns one of the names here, and masos owns no other. Each check is also shown
to notice a stray package.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = frozenset({"dht", "gossip", "kernel", "node", "protocol", "simulations"})
BUILD_TIMEOUT_S = 120.0
BUILD = "import sys, setuptools.build_meta as backend; backend.build_wheel(sys.argv[1])"


def ownership_faults(owners: Mapping[str, Iterable[str]]) -> list[str]:
    """What is wrong with `owners`: per top-level import name, the distributions that bring it."""
    faults = [
        f"{name} is brought by {sorted(set(owners.get(name, ())))}, not by masos alone"
        for name in sorted(PACKAGES)
        if set(owners.get(name, ())) != {"masos"}
    ]
    faults += [
        f"masos also brings {name}"
        for name in sorted(owners)
        if "masos" in owners[name] and name not in PACKAGES and not name.startswith("__editable__")
    ]
    return faults


def wheel_faults(names: Iterable[str]) -> list[str]:
    """What is wrong with a wheel whose archive holds the files `names`."""
    files = [PurePosixPath(name) for name in names]
    tops = {file.parts[0] for file in files if not file.parts[0].endswith(".dist-info")}
    present = {str(file) for file in files}
    faults = [f"{top} is missing" for top in sorted(PACKAGES - tops)]
    faults += [f"{top} does not belong in the wheel" for top in sorted(tops - PACKAGES)]
    faults += [f"{top} has no py.typed" for top in sorted(tops) if f"{top}/py.typed" not in present]
    return faults


def modules_of(tree: Path) -> set[str]:
    """Every module under the six packages of `tree`, as paths inside it."""
    return {file.relative_to(tree).as_posix() for package in PACKAGES for file in (tree / package).rglob("*.py")}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the build reads and of what it must leave alone, with two planted packages."""
    copy = tmp_path / "tree"
    ignore = shutil.ignore_patterns("__pycache__")
    for name in sorted(PACKAGES | {"tests"}):
        shutil.copytree(ROOT / name, copy / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    for stray in ("tests", "stray"):
        (copy / stray).mkdir(exist_ok=True)
        (copy / stray / "__init__.py").touch()
    return copy


def wheel_names(tree: Path) -> list[str]:
    """The files of the wheel that setuptools makes of `tree`, in its own process, offline."""
    out = tree.parent / "wheel"
    build = subprocess.run(
        [sys.executable, "-c", BUILD, str(out)],
        cwd=tree,
        check=False,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
    )
    assert build.returncode == 0, build.stderr
    (wheel,) = out.glob("masos-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_six_names_belong_to_masos_and_to_nobody_else() -> None:
    assert ownership_faults(importlib.metadata.packages_distributions()) == []


def test_ownership_check_notices_a_stray_and_a_shared_name() -> None:
    owners = {name: ["masos"] for name in PACKAGES} | {
        "tests": ["masos"],
        "node": ["masos", "node"],
    }
    assert ownership_faults(owners) == [
        "node is brought by ['masos', 'node'], not by masos alone",
        "masos also brings tests",
    ]


def test_wheel_holds_every_module_of_the_six_packages_and_no_other(tree: Path) -> None:
    names = wheel_names(tree)
    assert wheel_faults(names) == []
    assert modules_of(ROOT) <= set(names)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_wheel_check_notices_what_an_open_include_list_would_ship(tree: Path) -> None:
    project = tree / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    include = tomllib.loads(text)["tool"]["setuptools"]["packages"]["find"]["include"]
    start, end = text.index("include = ["), text.index("]", text.index("include = [")) + 1
    assert set(include) == {form for name in PACKAGES for form in (name, f"{name}.*")}

    project.write_text(text[:start] + 'include = ["*"]' + text[end:], encoding="utf-8")
    (tree / "gossip" / "py.typed").unlink()
    assert wheel_faults(wheel_names(tree)) == [
        "stray does not belong in the wheel",
        "tests does not belong in the wheel",
        "gossip has no py.typed",
        "stray has no py.typed",
        "tests has no py.typed",
    ]


def test_constraints_pin_every_declared_dependency_within_its_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    pinned = {canonicalize_name(name): version for name, version in pins.items()}
    wanted = [Requirement(text) for text in project["dependencies"] + project["optional-dependencies"]["dev"]]
    unmet = [
        str(requirement)
        for requirement in wanted
        if pinned.get(canonicalize_name(requirement.name), "") not in requirement.specifier
    ]
    assert unmet == []
