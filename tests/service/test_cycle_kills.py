"""A service that is killed in any phase of a cycle: the next ones bring it to the same end."""

import json
import subprocess
import sys

import pytest

from tests.running import REPOSITORY

NUM_KILLS = 6


@pytest.mark.parametrize("overlap", [[], ["--overlap"]])
def test_p43_services_killed_in_the_phases_of_a_cycle_end_with_the_undisturbed_adapter(overlap):
    kills = ["--kills", str(NUM_KILLS), "--kills-per-cycle", str(NUM_KILLS), "--forked-workers"]
    kills += overlap
    ended = subprocess.run(
        [sys.executable, "-m", "bench.training_kills", "--of", "cycle", *kills],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["num_kills"] == NUM_KILLS
    assert found["num_same_adapter"] == found["num_cycles"], ended.stderr
    assert found["num_adapters_not_whole"] == 0
    assert sum(num > 0 for num in found["killed_in"].values()) >= NUM_KILLS // 2
