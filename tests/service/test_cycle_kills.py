"""A service that is killed in any phase of a cycle: the next ones bring it to the same end."""

import json
import subprocess
import sys

import pytest

from tests.running import REPOSITORY


@pytest.mark.parametrize(("num_kills", "more"), [(6, []), (3, ["--overlap"])])
def test_p43_services_killed_in_the_phases_of_a_cycle_end_with_the_undisturbed_adapter(
    num_kills, more
):
    kills = ["--kills", str(num_kills), "--kills-per-cycle", str(num_kills), "--forked-workers"]
    kills += more
    ended = subprocess.run(
        [sys.executable, "-m", "bench.training_kills", "--of", "cycle", *kills],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["num_kills"] == num_kills
    assert found["num_same_adapter"] == found["num_cycles"], ended.stderr
    assert found["num_adapters_not_whole"] == 0
    assert sum(num > 0 for num in found["killed_in"].values()) >= num_kills // 2
