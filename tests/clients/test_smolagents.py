"""A whole agent program written elsewhere: ``smolagent``, the command line of smolagents.

It writes Python, runs it, reads what came out, and goes on until it has an answer. Only its base
URL is set, and no session is named, though it sends the answers back with what it did below them.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.clients.recorded import only_episode, say
from tests.running import REPOSITORY

WALLED_IN = "from tests.clients.wall import wall_in; wall_in()"
PROGRAM = f"{WALLED_IN}; from smolagents.cli import main; main()"
TASK = "How many primes are there below 30?"
STEPS = (
    "Thought: I count them.\n<code>\n"
    "primes = [n for n in range(2, 30) if all(n % d for d in range(2, n))]\n"
    "print(len(primes))\n</code>",
    "Thought: I look at the largest.\n<code>\nprint(primes[-1])\n</code>",
    "Thought: I know it.\n<code>\nfinal_answer(len(primes))\n</code>",
)


def run_program(url: str, home: Path, *arguments: str) -> str:
    """Run it to its end; return what it printed."""
    options = ["--model-type", "OpenAIModel", "--model-id", "denizen", "--api-base", url]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, TASK, *options, "--api-key", "none", *arguments, "--tools"],
        cwd=REPOSITORY,
        env=os.environ | {"HOME": str(home), "HF_HUB_OFFLINE": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_whole_run_is_captured_as_one_episode(service, engine, tmp_path):
    say(engine, *STEPS)
    printed = run_program(f"{service.http.base_url}/v1", tmp_path)
    assert "Final answer: 10" in printed
    episode = only_episode(service)
    assert TASK in episode["task_text"]
    assert episode["session"] is None
    calls = episode["calls"]
    assert [call["message"]["content"] for call in calls] == list(STEPS)
    for call in calls:
        assert call["learnable"] is True
        assert len(call["sampler_logprobs"]) == len(call["completion_token_ids"]) > 0
