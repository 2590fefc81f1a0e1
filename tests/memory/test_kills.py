"""What the store keeps when its process is killed, or its disk fails; see ``bench/kills.py``."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.losses import Told, problems
from bench.recorder import call_of
from memory.store import Store
from tests.memory.test_call_rows import record

ROOT = Path(__file__).parents[2]


def run(*options: str) -> dict:
    """Run the tool in a process without threads, which it forks."""
    command = [sys.executable, "-m", "bench.kills", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_p49_what_was_acknowledged_survives_sigkill_and_vectors_are_found_under_the_ids_of_rows():
    report = run("--kills", "10", "--seed", "3")
    assert report["problems"] == []
    assert report["acknowledged"]["calls"] > 20
    assert report["acknowledged"]["vectors"] > 0


@pytest.mark.skipif(shutil.which("gcc") is None, reason="the failing disk is built with gcc")
def test_what_was_acknowledged_survives_a_disk_that_fails():
    report = run("--faults", "--stride", "97")
    assert report["problems"] == []
    assert report["runs"] > 30
    assert any("disk is full" in refusal for refusal in report["refusals"])
    assert any("disk I/O error" in refusal for refusal in report["refusals"])


async def test_the_tool_notices_what_is_lost_or_changed(store: Store):
    await record(store, *(call_of("ep", turn) for turn in range(3)))
    sound = Told(calls=["ep/0", "ep/1", "ep/2"])
    assert list(problems(store, sound, whole=True)) == []
    lost = Told(calls=["ep/0", "ep/9"], vectors=["ep"])
    assert list(problems(store, lost, whole=True)) == [
        "call ep/9 is lost",
        "the vector of ep is lost",
    ]
    assert list(problems(store, Told(calls=["ep/0"], erased={"ep"}), whole=True)) == [
        "ep was erased and is there"
    ]
    store.database.write(
        lambda db: db.execute("UPDATE calls SET prompt_token_ids = x'01000000' WHERE id = 'ep/2'")
    )
    assert any("reads otherwise" in line for line in problems(store, sound, whole=True))
