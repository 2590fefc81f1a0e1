"""Code from answers before tests, in the real sandbox."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from graders import sandbox
from graders.catalog import require_gradable
from graders.types import Answer
from graders.unit_tests import UNIT_TESTS, code_of, score_unit_tests
from memory.errors import InvalidRequestError

isolated = pytest.mark.skipif(
    not sandbox.has_namespaces(), reason="no user namespaces on this machine"
)
TESTS = [{"call": "add(2, 3)", "expected": 5}, {"call": "add('a', 'b')", "expected": "ab"}]


def answer_of(text: str, tests: list[dict[str, Any]] | None = None, **config: Any) -> Answer:
    config["tests"] = TESTS if tests is None else tests
    return Answer(messages=(), message={"role": "assistant", "content": text}, config=config)


def score(text: str, tests: list[dict[str, Any]] | None = None, **config: Any):
    return score_unit_tests(answer_of(text, tests, **config), allow_without_namespaces=True)


GOOD = "def add(a, b):\n    return a + b\n"


@pytest.mark.parametrize(
    ("text", "tests", "value"),
    [
        (GOOD, None, 1.0),
        (f"Here it is:\n```python\n{GOOD}```\nDone.", None, 1.0),
        (f"```\n{GOOD}", None, 1.0),
        ("def add(a, b):\n    return 5", None, 0.5),
        ("def add(a, b):\n    return a - b", None, 0.0),
        ("def add(a, b) return", None, 0.0),
        ("", None, 0.0),
        ("I cannot do that.", None, 0.0),
        (GOOD + "raise SystemExit(0)", None, 0.0),
        (GOOD + "import os; os._exit(0)", None, 0.0),
        (GOOD + "print('all tests passed')", None, 1.0),
        (GOOD, [{"check": "assert add(1, 1) == 2"}], 1.0),
        (GOOD, [{"check": "assert add(1, 1) == 3"}], 0.0),
        (GOOD, [{"call": "add(0.1, 0.2)", "expected": 0.3}], 0.0),
        (GOOD, [{"call": "add(0.1, 0.2)", "expected": 0.3, "tolerance": 1e-9}], 1.0),
        (GOOD, [{"call": "add((1,), (2,))", "expected": [1, 2]}], 1.0),
        (GOOD, [{"call": "add(True, 0)", "expected": True}], 0.0),
        (GOOD, [{"call": "add", "expected": None}], 0.0),  # a function is no JSON
        ("def f():\n    return None", [{"call": "f()", "expected": None}], 1.0),
        ("def f():\n    return float('nan')", [{"call": "f()", "expected": 1}], 0.0),
        # It answers every comparison with yes; what counts is compared outside.
        (
            "class Yes(int):\n    __eq__ = lambda a, b: True\n    __hash__ = int.__hash__\n"
            "def add(a, b):\n    return Yes(7)",
            None,
            0.0,
        ),
    ],
)
def test_the_share_of_passed_tests_is_the_value(text, tests, value) -> None:
    found = score(text, tests)
    assert found.value == value, found.explanation


def test_what_failed_is_said() -> None:
    found = score("def add(a, b):\n    return 5")
    assert found.explanation == "1 of 2 tests passed; add('a', 'b') is 5"
    assert "ZeroDivisionError" in score("1 / 0").explanation


def test_code_that_never_ends_is_killed() -> None:
    found = score("while True: pass", deadline_s=0.5)
    assert found.value == 0.0
    assert "deadline" in found.explanation


def test_code_that_takes_all_memory_fails_alone() -> None:
    found = score("x = bytearray(4 * 2**30)\n" + GOOD)
    assert found.value == 0.0
    assert "MemoryError" in found.explanation


def test_children_do_not_outlive_the_run(tmp_path) -> None:
    forks = "import os, time\nif os.fork() == 0:\n    time.sleep(60)\n    os._exit(0)\n"
    found = score(forks + GOOD, deadline_s=5.0)
    assert found.value == 1.0


@isolated
def test_code_reaches_neither_network_nor_files_nor_home(tmp_path, monkeypatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "denizen.db").write_text("the record", encoding="utf-8")
    monkeypatch.setenv("DENIZEN_HOME", str(home))
    monkeypatch.setenv("SECRET_KEY", "s3cret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"""
import os, socket
def attempt(act):
    try:
        act()
        return "done"
    except OSError as error:
        return "refused"
def net(): socket.create_connection(("127.0.0.1", {port}), 2)
def write(): open({str(tmp_path / "evil")!r}, "w").write("x")
def read(): open({str(home / "denizen.db")!r}).read()
def kill(): os.kill({os.getpid()}, 0)
def here(): open("mine", "w").write("x")
def fill():
    for n in range(20):
        open(f"big{{n}}", "wb").write(bytes(8 * 2**20))
"""
        acts = ("net", "write", "read", "kill", "fill")
        tests = [{"call": f"attempt({act})", "expected": "refused"} for act in acts]
        tests.insert(0, {"call": "attempt(here)", "expected": "done"})
        tests += [{"call": "os.environ.get('SECRET_KEY')", "expected": None}]
        found = score(code, tests)
    faults = [fault for fault in found.evidence["faults"] if fault]
    assert faults == []
    assert not (tmp_path / "evil").exists()


def test_expected_values_are_not_told_to_the_code() -> None:
    spy = """
import gc
def add(a, b):
    told = [v for o in gc.get_objects() if isinstance(o, dict) for v in o.values()]
    return "seen" if any(isinstance(v, str) and v == "unguessable-42" for v in told) else "not"
"""
    found = score(spy, [{"call": "add(1, 2)", "expected": "unguessable-42"}])
    assert found.explanation.endswith('is "not"')


def test_a_reply_without_the_mark_is_no_result() -> None:
    forge = """
import os
for fd in range(3, 4096):
    try:
        os.write(fd, b"{}\\n")
    except OSError:
        pass
"""
    found = score(forge + GOOD)
    assert found.value == 0.0
    assert "only the result belongs" in found.explanation


async def test_without_namespaces_code_is_not_run(monkeypatch) -> None:
    monkeypatch.setattr(sandbox, "has_namespaces", lambda: False)
    found = await UNIT_TESTS.grade(answer_of(GOOD))
    assert found.value is None
    assert found.unscored_reason is not None
    assert found.unscored_reason.startswith("code is not run")


def test_blocks_of_code_are_joined() -> None:
    text = "```python\na = 1\n```\nand\n```py\nb = 2\n```"
    assert code_of(text) == "a = 1\n\n\nb = 2\n"
    assert code_of("a = 1") == "a = 1"


@pytest.mark.parametrize(
    "tests",
    [
        [],
        [{}],
        [{"call": "f()"}],
        [{"call": "f()", "expected": 1, "check": "assert f()"}],
        [{"call": "f(", "expected": 1}],
        [{"check": "assert"}],
        [{"call": "f()", "expected": 1, "tolerance": -1}],
        "assert f()",
    ],
)
async def test_bad_config_is_refused(tests: Any) -> None:
    with pytest.raises(InvalidRequestError):
        require_gradable("unit_tests", reference=None, config={"tests": tests})
    assert (await UNIT_TESTS.grade(answer_of(GOOD, tests))).value is None


def test_nothing_is_left_in_the_temporary_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert score(GOOD + "open('left', 'w').write('x')").value == 1.0
    assert list(Path(tmp_path).iterdir()) == []
