"""Homes for the doctor to look at, and what it says of them."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

import home as house
from doctor import installation

Run = Callable[..., Result]


def write_model(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"max_position_embeddings": 8192}', encoding="utf-8")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    (folder / "model.safetensors").write_bytes(b"weights")


def installed(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Pretend that exactly these packages are installed."""
    known = set(names)
    monkeypatch.setattr(
        installation, "installed_version", lambda name: "1.0" if name in known else None
    )


def findings(result: Result) -> dict[str, dict[str, Any]]:
    """Return the checks by name; what ``--fix`` did comes under ``fixed NAME``."""
    assert result.exception is None or isinstance(result.exception, SystemExit)
    by_name = {}
    for finding in json.loads(result.stdout)["data"]:
        fixed = "fixed " if finding["verdict"] == "fixed" else ""
        by_name[fixed + finding["name"]] = finding
    return by_name


def verdicts(result: Result, but: str = "ok") -> dict[str, str]:
    found = findings(result)
    return {name: one["verdict"] for name, one in found.items() if one["verdict"] != but}


def settings(home: Path, text: str) -> Path:
    house.find(home)
    file = home / "denizen.toml"
    file.write_text(text, encoding="utf-8")
    file.chmod(0o600)
    return file


def everything_in(home: Path) -> set[str]:
    """Return every path with its size, but SQLite's and the digest's by-products."""
    return {
        f"{path.relative_to(home)} {path.stat().st_size if path.is_file() else ''}"
        for path in home.rglob("*")
        if not path.name.endswith(("-wal", "-shm", "denizen_digest.json"))
        if path.is_file()
    }


@contextmanager
def running(home: Path) -> Iterator[None]:
    """Hold a home as a service does."""
    with house.lock(home), house.note(home, "http://127.0.0.1:1"):
        yield
