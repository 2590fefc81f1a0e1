import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console import render


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        ("", "-"),
        (True, "yes"),
        (False, "no"),
        (0, "0"),
        (0.0, "0.000"),
        (0.31249, "0.312"),
        ("a", "a"),
        ([], "-"),
        ([1, 2], "1, 2"),
        (["q_proj", "v_proj"], "q_proj, v_proj"),
        ({"a": 1}, '{"a": 1}'),
        ([{"a": 1}], '[{"a": 1}]'),
    ],
)
def test_cells_show_every_kind_of_value(value: Any, shown: str) -> None:
    assert render.cell(value) == shown


def test_an_escape_sequence_cannot_reach_the_terminal() -> None:
    assert render.harmless("a\x1b[2Jb\x9b31mc\rd\x07") == "a[2Jb31mcd"


@given(st.text())
def test_harmless_text_keeps_all_that_prints(text: str) -> None:
    kept = render.harmless(text)
    assert [c for c in text if c.isprintable()] == [c for c in kept if c.isprintable()]
    assert not any(ord(c) < 32 and c not in "\t\n" for c in kept)


@given(st.text(), st.integers(min_value=1, max_value=80))
def test_one_line_is_one_line_of_at_most_its_width(text: str, width: int) -> None:
    line = render.one_line(text, width)
    assert len(line) <= width
    assert len(line.splitlines()) <= 1


def test_instants_are_shown_in_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC-2")  # POSIX: two hours east of Greenwich
    time.tzset()
    try:
        assert render.instant("2026-03-01T23:30:05.25+00:00") == "2026-03-02 01:30:05"
        assert render.instant("2026-03-01T23:30:05Z") == "2026-03-02 01:30:05"
    finally:
        monkeypatch.undo()
        time.tzset()
    assert render.instant(None) == "-"


Capture = Any


def test_a_table_in_a_pipe_is_tab_separated_with_one_line_a_row(capsys: Capture) -> None:
    render.print_table(("ID", "task"), [(1, "two\nlines\tand a tab"), (2, None)])
    assert capsys.readouterr().out == "id\ttask\n1\ttwo lines and a tab\n2\t-\n"


def test_markup_in_a_table_on_a_terminal_is_shown_as_it_is(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "on_terminal", lambda: True)
    render.print_table(("ID", "task"), [(1, "[bold]x[/bold]")], title="all")
    shown = capsys.readouterr().out
    assert "[bold]x[/bold]" in shown
    assert "all" in shown


def test_json_is_printed_with_every_character(capsys: Capture) -> None:
    document = {"text": "naïve ✓", "n": None, "x": [0.1, True]}
    render.print_json(document)
    shown = capsys.readouterr().out
    assert json.loads(shown) == document
    assert "naïve ✓" in shown


def test_more_is_only_said_on_a_terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    say: Callable[[], None] = lambda: render.print_more("denizen tasks ls", "task_9")  # noqa: E731
    say()
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(render, "on_terminal", lambda: True)
    say()
    assert capsys.readouterr().out == "More: denizen tasks ls --after task_9\n"
