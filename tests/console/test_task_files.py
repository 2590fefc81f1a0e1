import json
from pathlib import Path

import pytest

from console import task_files
from console.client import ServiceClient
from console.task_files import TaskFileError, import_batches, read_tasks


def write(file: Path, *lines: str) -> Path:
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def test_batches_are_bounded_and_keep_the_order(tmp_path: Path, monkeypatch) -> None:
    # A line is 15 bytes; two fit into 35, a third does not.
    monkeypatch.setattr(task_files, "BATCH_SIZE_BYTES", 35)
    file = write(tmp_path / "t.jsonl", *(json.dumps({"prompt": f"{i}"}) for i in range(5)))
    assert [[t["prompt"] for t in batch] for batch in read_tasks(file)] == [
        ["0", "1"],
        ["2", "3"],
        ["4"],
    ]


def test_a_line_larger_than_a_batch_travels_alone(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(task_files, "BATCH_SIZE_BYTES", 10)
    file = write(tmp_path / "t.jsonl", '{"prompt": "long enough"}', '{"prompt": "b"}')
    assert [len(batch) for batch in read_tasks(file)] == [1, 1]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "is no JSON"),
        ("[1]", "no JSON object"),
        ('"text"', "no JSON object"),
        ('{"reference": "12"}', '"prompt" or "messages"'),
    ],
)
def test_a_line_that_is_no_task_is_named(tmp_path: Path, line: str, problem: str) -> None:
    file = write(tmp_path / "t.jsonl", '{"prompt": "a"}', "", line)
    with pytest.raises(TaskFileError, match=rf"t\.jsonl:3 .*{problem}"):
        read_tasks(file)


def test_a_file_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TaskFileError, match="UTF-8"):
        read_tasks(tmp_path / "t.jsonl")


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_file_without_tasks_is_an_error(tmp_path: Path, content: str) -> None:
    with pytest.raises(TaskFileError, match="holds no task"):
        read_tasks(write(tmp_path / "t.jsonl", content))


def test_a_line_separator_inside_a_string_does_not_split_it(tmp_path: Path) -> None:
    file = write(tmp_path / "t.jsonl", '{"prompt": "a\u2028b"}')
    assert read_tasks(file) == [[{"prompt": "a\u2028b"}]]


def test_counts_of_all_batches_are_added(service) -> None:
    service.answer("POST /v1/tasks", {"imported": 2, "known": 0}, {"imported": 1, "known": 4})
    with ServiceClient(service.url) as client:
        batches = [[{"prompt": "a"}, {"prompt": "b"}], [{"prompt": "c"}]]
        assert import_batches(client, batches, show_progress=False) == {"imported": 3, "known": 4}
    assert [len(r["body"]["tasks"]) for r in service.requests] == [2, 1]
