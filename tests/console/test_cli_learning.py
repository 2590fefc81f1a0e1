import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from console import follow, render

Run = Callable[..., Result]


def step(index: int, **receipt: Any) -> dict[str, Any]:
    return {"index": index, "receipt": receipt}


STARTED: dict[str, Any] = {
    "id": "cycle_1",
    "created_at": "2026-01-01T00:00:00Z",
    "state": "running",
    "start_version": "base",
    "skill_ids": [2],
    "reason": "asked for",
    "ended_at": None,
    "candidate": None,
    "end_reason": None,
    "receipt": {},
    "gate": None,
}
TWO_EQUAL = {"zero_signal": 2}
FIRST = step(
    1,
    reward_mean=0.07,
    frac_reward_zero_std=0.25,
    skipped_groups=TWO_EQUAL,
    num_groups=8,
    seconds=21.4,
)
SECOND = step(2, reward_mean=0.31, skipped_groups={}, num_groups=8, seconds=20.2)
SCORE: dict[str, Any] = {
    "num_tasks": 40,
    "num_dropped": 0,
    "mean_before": 0.1,
    "mean_after": 0.4,
    "mean_gain": 0.3,
    "gain_low": 0.2,
    "gain_high": 0.4,
}
EMPTY_SCORE = dict.fromkeys(SCORE) | {"num_tasks": 0, "num_dropped": 3}
GATE: dict[str, Any] = {
    "verdict": "promote",
    "reasons": ["the interval lies above 0"],
    "confidence": 0.95,
    "overall": SCORE,
    "skills": [{"skill_id": 2} | SCORE, {"skill_id": None} | EMPTY_SCORE],
}
PROGRESS = {"phase": "practising", "step": 2, "num_steps": 2}
ENDED = STARTED | {
    "state": "promoted",
    "candidate": "denizen-000001",
    "end_reason": "the gate said promote",
    "receipt": {"num_steps": 2},
    "gate": GATE,
}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "POLL_INTERVAL_S", 0)


def running_cycle(service) -> None:
    """Let a cycle take two steps between three looks at it."""
    service.answer("POST /v1/cycles", STARTED, status=202)
    service.answer(
        "GET /v1/cycles/cycle_1",
        STARTED | {"steps": []},
        STARTED | {"steps": [FIRST], "progress": PROGRESS},
        STARTED | {"steps": [FIRST], "progress": PROGRESS},
        ENDED | {"steps": [FIRST, SECOND]},
    )


def test_learn_follows_a_cycle_and_says_each_step_once(service, denizen: Run) -> None:
    running_cycle(service)
    result = denizen("learn", "--skill", "2")
    assert result.exit_code == 0
    assert service.requests[0]["body"] == {"skill": 2}
    lines = result.stdout.splitlines()
    assert lines[:2] == [
        "step 1: reward 0.070, 2 of 8 groups without contrast, 21 s",
        "step 2: reward 0.310, 0 of 8 groups without contrast, 20 s",
    ]
    assert "all\t40\t0.100\t0.400\t0.300\t0.200\t0.400" in lines
    assert "-\t0\t-\t-\t-\t-\t-" in lines
    assert "verdict  promote" in lines


def test_json_of_learn_is_the_ended_cycle_and_nothing_else(service, denizen: Run) -> None:
    running_cycle(service)
    assert json.loads(denizen("learn", "--json").stdout) == ENDED | {"steps": [FIRST, SECOND]}
    assert service.requests[0]["body"] == {}


def test_without_waiting_the_started_cycle_is_shown(service, denizen: Run) -> None:
    service.answer("POST /v1/cycles", STARTED, status=202)
    assert json.loads(denizen("learn", "--no-wait", "--json").stdout) == STARTED
    assert len(service.requests) == 1


@pytest.mark.parametrize(
    ("state", "exit_code"),
    [
        ("promoted", 0),
        ("proposed", 0),
        ("rejected", 0),
        ("inconclusive", 0),
        ("no_signal", 0),
        ("failed", 1),
        ("interrupted", 1),
    ],
)
def test_only_a_cycle_that_broke_exits_with_1(
    service, denizen: Run, state: str, exit_code: int
) -> None:
    service.answer("POST /v1/cycles", STARTED, status=202)
    service.answer("GET /v1/cycles/cycle_1", STARTED | {"state": state, "steps": []})
    assert denizen("learn").exit_code == exit_code


def test_a_refused_start_is_said(service, denizen: Run) -> None:
    refused = {"error": {"message": "cycle_0 runs already", "code": "conflict"}}
    service.answer("POST /v1/cycles", refused, status=409)
    result = denizen("learn")
    assert (result.exit_code, result.stderr) == (1, "denizen: cycle_0 runs already\n")


def test_following_can_be_left_without_ending_the_cycle(
    service, denizen: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    service.answer("POST /v1/cycles", STARTED, status=202)
    service.answer("GET /v1/cycles/cycle_1", STARTED | {"steps": []})
    monkeypatch.setattr(follow.time, "sleep", interrupt)
    result = denizen("learn")
    assert result.exit_code == 1
    assert "cycle_1 goes on; see: denizen cycles show cycle_1" in result.stderr


def test_a_step_without_figures_is_still_a_line() -> None:
    assert follow.step_line(step(3)) == "step 3: no figures"
    assert follow.step_line(step(3, reward_mean=0.0)) == "step 3: reward 0.000"


def test_cycles_are_listed_with_their_gain(service, denizen: Run) -> None:
    page = {"data": [ENDED, STARTED], "has_more": False, "next": None}
    service.answer("GET /v1/cycles", page)
    rows = [line.split("\t") for line in denizen("cycles", "ls").stdout.splitlines()]
    assert rows[1][2:] == [
        "promoted",
        "base",
        "denizen-000001",
        "2",
        "0.300",
        "the gate said promote",
    ]
    assert rows[2][2:] == ["running", "base", "-", "2", "-", "asked for"]
    assert json.loads(denizen("cycles", "ls", "--json").stdout) == page


def test_a_cycle_shows_where_it_is_and_its_steps(service, denizen: Run) -> None:
    cycle = STARTED | {"steps": [FIRST, step(2)], "progress": PROGRESS}
    service.answer("GET /v1/cycles/cycle_1", cycle)
    lines = denizen("cycles", "show", "cycle_1").stdout.splitlines()
    assert "progress  step 2 of 2: practising" in lines
    assert "1\t0.070\t0.250\t8\t-\t-\t-\t21.400" in lines
    assert "2\t-\t-\t-\t-\t-\t-\t-" in lines
    assert json.loads(denizen("cycles", "show", "cycle_1", "--json").stdout) == cycle


TRAINED = FIRST["receipt"] | {
    "parameter_change": 0.00012,
    "kl_reference": None,
    "kl_sampler_trainer": 0.0021,
    "logprob_gap": 0.0604,
    "is_clipped_share": 0.25,
    "num_truncated": 3,
    "peak_memory_mib": 1727.4,
}
RECORDED = {"reward_mean": None, "live": {"reward_mean": 0.5}, "skipped_groups": {}}


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a terminal of 80 columns, without colour, show what is printed."""
    monkeypatch.setattr(render, "on_terminal", lambda: True)
    monkeypatch.setattr(follow, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")


def test_what_a_step_did_to_the_weights_and_skipped_is_shown(service, denizen: Run) -> None:
    cycle = STARTED | {"steps": [step(1, **TRAINED), step(2, **RECORDED)]}
    service.answer("GET /v1/cycles/cycle_1", cycle)
    lines = denizen("cycles", "show", "cycle_1").stdout.splitlines()
    assert "step\tchange\tkl\tkl sampler\tgap\tclipped\tcut\tmib" in lines
    assert "1\t0.00012\t-\t0.0021\t0.0604\t0.25\t3\t1727" in lines
    assert "2\t-\t-\t-\t-\t-\t-\t-" in lines
    assert lines[lines.index("step\tzero_signal") + 1 :][:2] == ["1\t2", "2\t0"]
    assert "2\t0.500\t-\t-\t-\t-\t-\t-" in lines  # the reward is that of recorded episodes


def test_a_terminal_plots_reward_by_step_and_the_score_before_and_after(
    service, denizen: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch)
    steps = [step(1, **TRAINED), step(2, reward_mean=0.5), step(3, reward_mean=1.0), step(4)]
    service.answer("GET /v1/cycles/cycle_1", ENDED | {"steps": steps})
    shown = denizen("cycles", "show", "cycle_1").stdout
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert lines[lines.index("mean reward (0 to 1)") + 1 :][:4] == [
        "step 1 0.070 ███▌",  # 3.5 of 50 columns
        f"step 2 0.500 {25 * chr(0x2588)}",
        f"step 3 1.000 {50 * chr(0x2588)}",
        "step 4 -",
    ]
    title = "held-out score (0 to 1), gain +0.300 (95%: +0.200 to +0.400)"
    assert lines[lines.index(title) + 1 :][:2] == [
        f"before 0.100 {5 * chr(0x2588)}",
        f"after 0.400 {20 * chr(0x2588)}",
    ]
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown


def test_a_cycle_of_recorded_episodes_alone_plots_their_reward(
    service, denizen: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch)
    service.answer("GET /v1/cycles/cycle_1", STARTED | {"steps": [step(1, **RECORDED)]})
    lines = denizen("cycles", "show", "cycle_1").stdout.splitlines()
    place = lines.index(next(line for line in lines if "reward of recorded episodes" in line))
    assert lines[place + 1].split() == ["step", "1", "0.500", 25 * "█"]


def test_without_a_score_on_both_sides_nothing_is_plotted_of_it(
    service, denizen: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch)
    gate = GATE | {"overall": EMPTY_SCORE, "verdict": "inconclusive"}
    service.answer("GET /v1/cycles/cycle_1", ENDED | {"gate": gate, "steps": []})
    result = denizen("cycles", "show", "cycle_1")
    assert result.exit_code == 0
    assert "(0 to 1)" not in result.stdout


def test_a_cycle_shows_how_far_its_candidate_drifted(service, denizen: Run) -> None:
    before = {"num_answers": 8, "mean_tokens": 18.4, "cut_share": 0.31, "mean_surprisal": 0.397}
    after = {"num_answers": 8, "mean_tokens": 5.12, "cut_share": 0.0, "mean_surprisal": None}
    probe = {"num_tokens": 295, "base": -1.756, "live": -1.756, "candidate": -1.812}
    drift = {
        "others": None,
        "practised": {"before": before, "after": after, "kl": 2.08},
        "probe": probe,
        "why_no_probe": None,
    }
    shown = ENDED | {"gate": GATE | {"drift": drift}, "steps": []}
    service.answer("GET /v1/cycles/cycle_1", shown)
    lines = denizen("cycles", "show", "cycle_1").stdout.splitlines()
    assert "practised\tbefore\t8\t18.4\t0.31\t0.397\t-" in lines
    assert "practised\tafter\t8\t5.12\t0\t-\t2.08" in lines
    assert not [line for line in lines if line.startswith("others")]
    assert "general probe: candidate   -1.812" in lines
    unknown = drift | {"practised": None, "probe": None, "why_no_probe": "the engine is too old"}
    shown = ENDED | {"gate": GATE | {"drift": unknown}, "steps": []}
    service.answer("GET /v1/cycles/cycle_1", shown)
    told = denizen("cycles", "show", "cycle_1").stdout
    assert "general probe: none" in told
    assert "the engine is too old" in told
