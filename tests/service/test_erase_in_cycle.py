"""Erasing while a cycle learns from what is erased: the cycle stops, and nothing is left of it."""

from tests.running import ServiceThread, ask, wait_until
from tests.service.test_erase import PLANTED, files_with
from tests.service.test_learning import LEARNER, tasks
from tests.service.versions import live


def test_erasing_an_episode_whose_task_is_practised_stops_the_cycle_and_leaves_no_byte(
    engine, tmp_path
):
    engine.answer = lambda weights, messages: "well , 5"
    with ServiceThread(tmp_path, engine.url, {"learner": LEARNER}) as service:
        http = service.http
        for number in range(8):
            metadata = {"reference": str(number), "task": "products"}
            body = ask(f"{number} * 1 = ? {PLANTED} {number}", metadata=metadata, user="ann")
            http.post("/v1/chat/completions", json=body).raise_for_status()
        told = [task | {"task_key": "products"} for task in tasks(60)]
        http.post("/v1/tasks", json={"tasks": told}).raise_for_status()

        def all_sorted() -> bool:
            found = http.get("/v1/tasks?limit=100").json()["data"]
            return len(found) == 68 and all(task["skill_id"] for task in found)

        wait_until(all_sorted)
        engine.control(delay_s=0.3)
        cycle = http.post("/v1/cycles", json={}).json()["id"]
        wait_until(lambda: [*(tmp_path / "work").glob("*")] != [])
        answer = http.post("/v1/erase", json={"user": "ann"})
        assert answer.status_code == 200, answer.text
        # Not only soon: by the time that the erasure is acknowledged.
        ended = http.get(f"/v1/cycles/{cycle}").json()
        assert ended["state"] == "interrupted"
        assert "was erased" in ended["end_reason"]
        assert [*(tmp_path / "work").glob("*")] == []
        assert files_with(tmp_path, PLANTED) == []
        assert (http.get("/v1/adapters").json()["data"], live(service)) == ([], "base")
