"""The whole loop through the service: a fake engine answers, a real (tiny) model is trained."""

import threading
from functools import partial

import httpx
import pytest

from tests.fake_engine import FakeEngine
from tests.running import ServiceThread, ask, wait_until
from tests.tiny_model import VOCAB_SIZE

LEARNER = {
    "enabled": False,
    "rank": 2,
    "alpha": 4,
    "dtype": "float32",
    "group_size": 3,
    "tasks_per_step": 4,
    "steps_per_cycle": 2,
    "max_sequence_gap": 100.0,  # the fake engine's log-probabilities are not the tiny model's
    "num_threads": 1,
}


def right_answer(model: str, messages: list) -> str:
    """An adapter gives the bare product, the base model rambles around it."""
    task = messages[-1]["content"]
    if " * " not in task:  # whoever looks whether the engine moves says hello
        return "hello"
    left, right = task.removesuffix(" = ?").split(" * ")
    product = int(left) * int(right)
    return str(product) if model != "base" else f"the product of these two numbers is {product} ."


def tasks(num: int) -> list[dict]:
    pairs = [(i, j) for i in range(2, 2 + num) for j in range(2, 2 + num)][:num]
    return [{"prompt": f"{i} * {j} = ?", "reference": str(i * j)} for i, j in pairs]


@pytest.fixture
def engine(tiny_model):
    with FakeEngine(vocab_size=VOCAB_SIZE, root=str(tiny_model), answer=right_answer) as engine:
        yield engine


@pytest.fixture
def service(engine, tmp_path):
    with ServiceThread(tmp_path, engine.url, {"learner": LEARNER}) as service:
        yield service


def learn(service) -> dict:
    """Start a cycle by hand and return it when it has ended."""
    wait_until(lambda: all(t["skill_id"] for t in service.http.get("/v1/tasks").json()["data"]))
    started = service.http.post("/v1/cycles", json={})
    assert started.status_code == 202, started.text
    path = f"/v1/cycles/{started.json()['id']}"
    wait_until(lambda: service.http.get(path).json()["state"] != "running", 120)
    return service.http.get(path).json()


def live(service) -> str:
    return service.http.get("/v1/status").json()["live"]


def test_learn_gate_swap_ask_roll_back(service, engine):
    response = service.http.post("/v1/tasks", json={"tasks": tasks(60)})
    assert response.json() | {"imported": 60, "known": 0} == response.json()
    again = service.http.post("/v1/tasks", json={"tasks": tasks(60)})
    assert again.json() | {"imported": 0, "known": 60} == again.json()

    failures: list[str] = []
    stop = threading.Event()

    def chat_on() -> None:
        while not stop.is_set():
            answer = httpx.post(
                f"{service.http.base_url}/v1/chat/completions",
                json=ask("2 * 3 = ?", stream=True),
                timeout=30,
            )
            if answer.status_code != 200 or not answer.text.endswith("[DONE]\n\n"):
                failures.append(answer.text)

    user = threading.Thread(target=chat_on)
    user.start()
    try:
        cycle = learn(service)
        assert cycle["state"] == "promoted", cycle["end_reason"]
        assert live(service) == "denizen-000001"
        answer = service.http.post("/v1/chat/completions", json=ask("6 * 7 = ?"))
        assert answer.headers["x-denizen-adapter"] == "denizen-000001"
        assert answer.json()["choices"][0]["message"]["content"] == "42"
        moved = service.http.post("/v1/adapters/rollback", json={"reason": "a test"}).json()
        assert moved == {"moved": True, "from": "denizen-000001", "to": "base"}
        answer = service.http.post("/v1/chat/completions", json=ask("6 * 7 = ?"))
        assert answer.headers["x-denizen-adapter"] == "base"
    finally:
        stop.set()
        user.join()
    assert failures == []

    assert cycle["gate"]["overall"]["mean_gain"] > 0.5
    drift = cycle["gate"]["drift"]
    lengths = [drift["practised"][when]["mean_tokens"] for when in ("before", "after")]
    assert lengths == [pytest.approx(10), 2], "they may become shorter: they were practised"
    assert drift["probe"]["candidate"] < 0, drift["why_no_probe"]
    sampled_by = [step["receipt"]["adapter"] for step in cycle["steps"]]
    assert sampled_by == ["base", f"denizen-000001-step-01-{cycle['id'][-8:]}"]
    assert all(step["receipt"]["grad_norm"] > 0 for step in cycle["steps"])
    named = service.http.post(
        "/v1/chat/completions", json=ask("6 * 7 = ?") | {"model": "denizen@000001"}
    )
    assert named.json()["choices"][0]["message"]["content"] == "42"
    # Going back stays gone: rolling back again finds nothing earlier, and promoting asks the gate.
    assert service.http.post("/v1/adapters/rollback", json={}).status_code == 409
    promoted = service.http.post("/v1/adapters/denizen-000001/promote", json={}).json()
    assert promoted["moved"] is True
    twice = service.http.post("/v1/adapters/denizen-000001/promote", json={}).json()
    assert twice["moved"] is False
    moves = service.http.get("/v1/adapters/moves").json()["data"]
    assert [(m["kind"], m["to_version"]) for m in moves] == [
        ("promote", "denizen-000001"),
        ("rollback", "base"),
        ("promote", "denizen-000001"),
    ]
    wait_until(lambda: not [name for name in engine.adapters if "step" in name])


def test_p44_answers_that_shrink_keep_a_candidate_from_going_live_where_that_is_asked_for(
    engine, tmp_path
):
    settings = {"learner": LEARNER, "promotion": {"limit_practised": True}}
    with ServiceThread(tmp_path, engine.url, settings) as service:
        service.http.post("/v1/tasks", json={"tasks": tasks(60)})
        cycle = learn(service)
        assert cycle["state"] == "inconclusive"
        assert cycle["gate"]["verdict"] == "inconclusive"
        shrunk, gained = cycle["gate"]["reasons"]
        assert shrunk == "answers of the practised skills: 10.0 -> 2.0 tokens, beyond 2 times"
        assert gained.startswith("overall: gain")
        assert live(service) == "base"


def test_no_contrast_ends_as_no_signal_and_publishes_nothing(service):
    hopeless = [task | {"reference": "nonsense", "grader": "exact"} for task in tasks(60)]
    service.http.post("/v1/tasks", json={"tasks": hopeless})
    cycle = learn(service)
    assert cycle["state"] == "no_signal"
    assert "zero_signal" in cycle["end_reason"]
    assert all(step["receipt"]["frac_reward_zero_std"] == 1.0 for step in cycle["steps"])
    assert service.http.get("/v1/adapters").json()["data"] == []
    assert live(service) == "base"


def test_a_candidate_that_is_worse_is_rejected_and_never_answers(engine, tmp_path):
    engine.answer = lambda model, messages: (
        right_answer("adapter", messages) if model == "base" or "step" in model else "no idea"
    )
    with ServiceThread(tmp_path, engine.url, {"learner": LEARNER}) as service:
        service.http.post("/v1/tasks", json={"tasks": tasks(60)})
        cycle = learn(service)
        assert cycle["state"] == "rejected"
        assert live(service) == "base"
        [version] = service.http.get("/v1/adapters").json()["data"]
        assert version["status"] == "rejected"
        refused = service.http.post(f"/v1/adapters/{version['id']}/promote", json={})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "force"
        forced = {"force": True, "reason": "I know better"}
        answer = service.http.post(f"/v1/adapters/{version['id']}/promote", json=forced)
        assert answer.json()["moved"] is True
        [move] = service.http.get("/v1/adapters/moves").json()["data"]
        assert (move["forced"], move["reason"]) == (True, "I know better")


def test_in_propose_mode_a_person_decides_and_a_stale_decision_changes_nothing(engine, tmp_path):
    sections = {"learner": LEARNER, "promotion": {"mode": "propose"}}
    with ServiceThread(tmp_path, engine.url, sections) as service:
        service.http.post("/v1/tasks", json={"tasks": tasks(60)})
        assert learn(service)["state"] == "proposed"
        assert live(service) == "base"
        [version] = service.http.get("/v1/adapters").json()["data"]
        answer = service.http.post(
            "/v1/chat/completions", json=ask("6 * 7 = ?") | {"model": "denizen@candidate"}
        )
        assert answer.headers["x-denizen-adapter"] == version["id"]
        path = f"/v1/adapters/{version['id']}/approve"
        assert service.http.post(path, json={"sha256": "0" * 64}).status_code == 409
        assert live(service) == "base"
        assert service.http.post(path, json={"sha256": version["sha256"]}).json()["moved"]
        assert live(service) == version["id"]
        assert service.http.post(path, json={}).status_code == 409


def test_graded_live_episodes_become_tasks_and_start_a_cycle_by_themselves(engine, tmp_path):
    learner = LEARNER | {
        "enabled": True,
        "check_interval_s": 0.5,
        "min_new_signal": 20,
    }
    with ServiceThread(tmp_path, engine.url, {"learner": learner}) as service:
        for task in tasks(60)[:10]:
            body = ask(task["prompt"], metadata={"reference": task["reference"]})
            service.http.post("/v1/chat/completions", json=body)
        skills = partial(service.http.get, "/v1/skills")
        wait_until(lambda: [one["num_graded"] for one in skills().json()["data"]] == [10])
        [skill] = service.http.get("/v1/status").json()["skills"]
        assert "10 of 20 newly graded episodes or tasks" in skill["missing"]
        assert service.http.get("/v1/cycles").json()["data"] == []
        for task in tasks(60)[10:]:
            body = ask(task["prompt"], metadata={"reference": task["reference"]})
            service.http.post("/v1/chat/completions", json=body)
        wait_until(lambda: service.http.get("/v1/cycles").json()["data"] != [], 20)
        wait_until(lambda: live(service) == "denizen-000001", 120)
        cycle = service.http.get("/v1/cycles").json()["data"][-1]
        assert "enough new signal" in cycle["reason"]
        # What was learned from is not new signal any more.
        [skill] = service.http.get("/v1/skills").json()["data"]
        assert skill["num_new_signal"] < skill["num_graded"] == 60


def test_feedback_and_corrections_become_outcomes_and_tasks(service):
    answer = service.http.post("/v1/chat/completions", json=ask("6 * 7 = ?"))
    episode = f"/v1/episodes/{answer.headers['x-denizen-episode-id']}"
    for value in (False, True):  # a second thumb replaces the first
        body = {"completion_id": answer.json()["id"], "value": value, "correction": "42"}
        assert service.http.post("/v1/feedback", json=body).status_code == 200
    wait_until(lambda: (service.http.get(episode).json()["outcome"] or {}).get("value") == 1.0)
    assert service.http.get(episode).json()["outcome"]["provenance"] == "person"
    assert len(service.http.get(episode).json()["feedback"]) == 2
    [task] = service.http.get("/v1/tasks").json()["data"]
    assert task["reference"] == "42"


def test_a_correction_replaces_the_task_with_the_wrong_answer(service):
    body = ask("6 * 7 = ?", metadata={"reference": "43"})
    answer = service.http.post("/v1/chat/completions", json=body)
    wait_until(lambda: len(service.http.get("/v1/tasks").json()["data"]) == 1)
    said = {"completion_id": answer.json()["id"], "value": 1, "correction": "42"}
    service.http.post("/v1/feedback", json=said)
    tasks = lambda: [t["reference"] for t in service.http.get("/v1/tasks").json()["data"]]  # noqa: E731
    wait_until(lambda: tasks() == ["42"])


def test_comparing_with_a_version_that_is_not_there_is_a_404_and_not_a_report_of_nothing(service):
    service.http.post("/v1/tasks", json={"tasks": tasks(60)})
    wait_until(lambda: all(t["skill_id"] for t in service.http.get("/v1/tasks").json()["data"]))
    body = {"before": "base", "after": "denizen-000099"}
    response = service.http.post("/v1/adapters/compare", json=body)
    assert response.status_code == 404
    assert "denizen-000099" in response.json()["error"]["message"]
    same = service.http.post("/v1/adapters/compare", json=body | {"after": "base"}).json()
    assert (same["overall"]["mean_gain"], same["verdict"]) == (0.0, "inconclusive")


def test_a_blank_task_is_refused_and_a_paused_skill_is_not_learned(service):
    blank = service.http.post("/v1/tasks", json={"tasks": [{"prompt": " \n", "reference": "1"}]})
    assert blank.status_code == 400
    service.http.post("/v1/tasks", json={"tasks": tasks(30)})
    wait_until(lambda: service.http.get("/v1/skills").json()["data"] != [])
    service.http.patch("/v1/skills/1", json={"policy": "paused"}).raise_for_status()
    refused = service.http.post("/v1/cycles", json={"skill": 1})
    assert refused.status_code == 409
    assert "paused" in refused.json()["error"]["message"]


def test_a_check_outranks_a_person(service):
    body = ask("6 * 7 = ?", metadata={"reference": "42", "grader": "exact"})
    answer = service.http.post("/v1/chat/completions", json=body)
    episode_id = answer.headers["x-denizen-episode-id"]
    service.http.post("/v1/feedback", json={"episode_id": episode_id, "value": True})
    episode = f"/v1/episodes/{episode_id}"
    wait_until(lambda: len(service.http.get(episode).json()["grades"]) == 2)
    assert service.http.get(episode).json()["outcome"]["value"] == 0.0
    assert service.http.get(episode).json()["outcome"]["provenance"] == "check"


def test_a_training_process_that_is_killed_is_a_failed_cycle_and_no_outage(service):
    import psutil

    def workers() -> list[psutil.Process]:
        return [
            process
            for process in psutil.Process().children(recursive=True)
            if "learner.worker" in " ".join(process.cmdline())
            and "leash" not in process.cmdline()[2]
        ]

    service.http.post("/v1/tasks", json={"tasks": tasks(60)})
    wait_until(lambda: all(t["skill_id"] for t in service.http.get("/v1/tasks").json()["data"]))
    cycle = service.http.post("/v1/cycles", json={}).json()
    wait_until(lambda: workers() != [])
    workers()[0].kill()
    path = f"/v1/cycles/{cycle['id']}"
    wait_until(lambda: service.http.get(path).json()["state"] == "failed", 60)
    assert "killed" in service.http.get(path).json()["end_reason"]
    assert service.http.post("/v1/chat/completions", json=ask("6 * 7 = ?")).status_code == 200
    assert service.http.get("/v1/adapters").json()["data"] == []
