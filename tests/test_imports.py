"""Keeps the direction of imports, and one home for each library that owns a resource."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

MAY_IMPORT = {
    "memory": {"memory"},
    "graders": {"graders", "memory"},
    "learner": {"learner", "graders", "memory"},
    "agent": {"agent", "memory"},
    "console": {"console"},
    "settings": {"agent", "learner", "graders", "memory"},
    "home": {"memory"},
    "assembly": {"assembly", "settings", "agent", "learner", "graders", "memory"},
    "service": {"assembly", "home", "settings", "agent", "learner", "graders", "memory"},
    "doctor": {"doctor", "home", "settings", "agent", "learner", "memory", "console"},
}
"""memory <- graders <- learner, memory <- agent; agent and learner meet only at the top."""

EXCEPTIONS = {("console/cli.py", "service"), ("console/cli.py", "doctor")}
"""``denizen serve`` starts the service in its own process, ``denizen doctor`` needs none;
everything else goes over HTTP.
"""

HOMES = {
    "sqlite_utils": {"memory"},
    "faiss": {"memory/index.py"},
    "scipy": {"memory/alike.py", "graders"},
    "torch": {
        "learner",
        "agent/base_model.py",
        "agent/cpu_lora.py",
        "agent/grouped_lora.py",
        "memory/minilm.py",
    },
    "tokenizers": {"memory/embed.py"},
    "transformers": {"learner", "agent/base_model.py"},
    "peft": {"learner/lora_model.py"},
    "reasoning_gym": {"graders/reasoning.py", "console/demo_traffic.py"},
    "openai": {"console/demo_traffic.py", "graders/endpoint.py"},
    "tenacity": {"graders/teacher.py"},
    "httptools": {"agent/http_answer.py"},
    "apscheduler": {"agent/scheduler.py"},
    "httpx": {"console/client.py"},
    "python_multipart": {"learner/uploads.py"},
    "typer": {"console"},
    "rich": {"console"},
}
"""A library and where it may be imported: whole packages, or single modules."""


def source_files() -> list[Path]:
    """Return every module of the packages, and those at the top."""
    packages = [name for name in MAY_IMPORT if (ROOT / name).is_dir()]
    found = [file for package in packages for file in sorted((ROOT / package).rglob("*.py"))]
    return [*found, *(ROOT / f"{name}.py" for name in ("home", "service", "settings"))]


def imported_modules(source: str) -> Iterator[str]:
    """Yield the dotted names that a module imports anywhere in its text, functions included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import hides its package"
            yield node.module or ""


def top_levels(file: Path) -> set[str]:
    """Return the first parts of what a file imports: ``{"memory", "torch"}``."""
    return {name.partition(".")[0] for name in imported_modules(file.read_text(encoding="utf-8"))}


def test_the_packages_are_found() -> None:
    assert {file.relative_to(ROOT).parts[0] for file in source_files()} >= {"memory", "console"}


@pytest.mark.parametrize("file", source_files(), ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_point_one_way(file: Path) -> None:
    place = file.relative_to(ROOT)
    package = place.parts[0].removesuffix(".py")
    allowed = MAY_IMPORT[package] | {
        name for where, name in EXCEPTIONS if where == place.as_posix()
    }
    own = top_levels(file) & MAY_IMPORT.keys()
    assert own <= allowed, f"{place} imports {sorted(own - allowed)}"


def test_records_are_imported_from_one_address() -> None:
    """``memory.types``; which of its modules holds a record is its own affair."""
    others = [file for file in source_files() if file.parent.name != "types"]
    strays = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in others
        for name in imported_modules(file.read_text(encoding="utf-8"))
        if name.startswith("memory.types.")
    ]
    assert not strays


@pytest.mark.parametrize("library", HOMES)
def test_a_library_is_imported_only_at_home(library: str) -> None:
    users = {file.relative_to(ROOT) for file in source_files() if library in top_levels(file)}
    homes = HOMES[library]
    strays = {str(user) for user in users if not {user.parts[0], user.as_posix()} & homes}
    assert not strays, f"{library} belongs to {sorted(homes)}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch.nn as nn", ["torch.nn"]),
        ("from memory.types import Call", ["memory.types"]),
        ("def f():\n    import faiss, peft", ["faiss", "peft"]),
        ("if TYPE_CHECKING:\n    from agent import policy", ["agent"]),
    ],
)
def test_imports_are_found_wherever_they_stand(source: str, expected: list[str]) -> None:
    assert list(imported_modules(source)) == expected


def test_a_relative_import_is_refused() -> None:
    with pytest.raises(AssertionError, match="relative import"):
        list(imported_modules("from . import store"))
