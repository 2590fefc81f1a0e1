"""The whole loop on the real vLLM and the packaged model."""

import random
import statistics
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.running import ask, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

NUM_CALLS = 50
MAX_MEAN_GAP = 0.05  # nats a token, between what vLLM reported and what Hugging Face computes
QUESTIONS = [f"What is {i} times {j}?" for i in range(3, 8) for j in range(3, 8)]


@pytest.fixture(scope="module")
def learned(real_service) -> dict[str, Any]:
    """Run one short cycle and make its candidate live, whatever the gate says of so little."""
    http = real_service.http
    body = {"from": "reasoning-gym:products", "n": 60, "seed": 1}
    body |= {"set": {"min_digits": "1", "max_digits": "1"}}
    http.post("/v1/tasks", json=body).raise_for_status()
    wait_until(
        lambda: all(t["skill_id"] for t in http.get("/v1/tasks?limit=100").json()["data"]), 60
    )
    cycle = http.post("/v1/cycles", json={}).json()
    wait_until(lambda: not http.get("/v1/status").json()["running"], 400)
    cycle = http.get(f"/v1/cycles/{cycle['id']}").json()
    if cycle["state"] != "promoted":
        forced = {"force": True, "reason": "a test of two steps"}
        http.post(f"/v1/adapters/{cycle['candidate']}/promote", json=forced).raise_for_status()
    return cycle


def test_the_openai_client_gets_a_sensible_streamed_answer(real_service):
    url = f"{real_service.http.base_url}/v1"
    with openai.OpenAI(base_url=url, api_key="none") as client:
        stream = client.chat.completions.create(
            model="denizen@base",
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            stream=True,
        )
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "Paris" in "".join(pieces)
    assert len(pieces) > 5


def test_a_cycle_really_learns_something_and_says_what(learned):
    assert learned["state"] in {"promoted", "inconclusive", "rejected"}, learned["end_reason"]
    for step in learned["steps"]:
        receipt = step["receipt"]
        assert receipt["grad_norm"] > 0
        assert receipt["parameter_change"] > 0
        assert receipt["trained_tokens"] > 0
        assert 0 <= receipt["kl_sampler_trainer"] < 0.05, "sampler and trainer disagree"
    assert learned["gate"]["overall"]["num_tasks"] >= 8
    drift = learned["gate"]["drift"]
    assert drift["probe"]["num_tokens"] > 200, drift["why_no_probe"]
    assert -5 < drift["probe"]["base"] == drift["probe"]["live"] < 0
    assert drift["probe"]["candidate"] != drift["probe"]["live"]
    assert drift["practised"]["kl"] > 0


def test_the_version_answers_differently_and_base_is_still_there(real_service, learned):
    asked = ask("What is 7 times 8?", temperature=0, max_tokens=16, logprobs=True)
    answers = {}
    for model in ("denizen", "denizen@000001", "denizen@base"):
        response = real_service.http.post("/v1/chat/completions", json=asked | {"model": model})
        [first, *_] = response.json()["choices"][0]["logprobs"]["content"]
        answers[model] = (response.headers["x-denizen-adapter"], first["logprob"])
    assert answers["denizen"][0] == answers["denizen@000001"][0] == learned["candidate"]
    assert answers["denizen@base"][0] == "base"
    assert answers["denizen"][1] == pytest.approx(answers["denizen@000001"][1], abs=0.02)
    assert answers["denizen"][1] != pytest.approx(answers["denizen@base"][1], abs=0.02)


def test_recorded_logprobs_are_what_hugging_face_computes(real_service, learned):
    rng = random.Random(0)
    ids = []
    for number in range(NUM_CALLS):
        asked = ask(rng.choice(QUESTIONS), max_tokens=16)
        if number % 4 < 2:  # rare tokens too, for half of each model's calls
            asked["temperature"] = 1.0
        asked["model"] = ("denizen@base", "denizen")[number % 2]
        response = real_service.http.post("/v1/chat/completions", json=asked)
        ids.append(response.headers["x-denizen-episode-id"])
    calls = [real_service.http.get(f"/v1/episodes/{id}").json()["calls"][0] for id in ids]
    assert {call["adapter"] for call in calls} == {"base", learned["candidate"]}
    adapter = real_service.service.home / "adapters" / learned["candidate"]
    gaps = recomputed_gaps(calls, real_service.model_dir, adapter)
    mean_gap = statistics.fmean(gaps)
    print(f"mean |recorded - recomputed| over {len(calls)} calls, {len(gaps)} tokens: {mean_gap}")
    assert mean_gap <= MAX_MEAN_GAP


def recomputed_gaps(calls: list[dict[str, Any]], model_dir: Path, adapter: Path) -> list[float]:
    """Return |recorded - recomputed| of every completion token, by plain Hugging Face and PEFT.

    In float32, so that the only rounding is the engine's.
    """
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    adapted = PeftModel.from_pretrained(plain, adapter).eval()
    gaps = []
    for call in calls:
        prompt, completion = call["prompt_token_ids"], call["completion_token_ids"]
        ids = torch.tensor([prompt + completion])
        with torch.no_grad():
            if call["adapter"] == "base":
                with adapted.disable_adapter():
                    logits = adapted(ids).logits
            else:
                logits = adapted(ids).logits
        logprobs = logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
        for position, token in enumerate(completion):
            recorded = call["sampler_logprobs"][position]
            gaps.append(abs(recorded - logprobs[position, token].item()))
    return gaps


def test_a_rollback_is_seen_by_the_next_request(real_service, learned):
    http = real_service.http
    http.post("/v1/adapters/rollback", json={"reason": "a test"}).raise_for_status()
    response = http.post("/v1/chat/completions", json=ask("hi", max_tokens=4))
    assert response.headers["x-denizen-adapter"] == "base"
    promoted = {"force": True, "reason": "a test"}
    http.post("/v1/adapters/denizen-000001/promote", json=promoted).raise_for_status()
    response = http.post("/v1/chat/completions", json=ask("hi", max_tokens=4))
    assert response.headers["x-denizen-adapter"] == "denizen-000001"
