"""Tenants share weights and nothing else (case P-55)."""

from typing import Any

import pytest

from tests.running import ServiceThread, ask, wait_until

ADMIN = {"authorization": "Bearer admin-key"}
PLAIN = {"authorization": "Bearer plain-key"}
ACME = {"authorization": "Bearer acme-key"}
BOLT = {"authorization": "Bearer bolt-key"}
AUTH = {
    "admin_keys": ("admin-key",),
    "user_keys": ("plain-key",),
    "tenants": {"acme": ("acme-key",), "bolt": ("bolt-key",)},
}


@pytest.fixture
def service(engine, tmp_path):
    with ServiceThread(tmp_path, engine.url, {"auth": AUTH}) as service:
        service.http.headers.update(ADMIN)
        yield service


def chat(service: ServiceThread, headers: dict[str, str], text: str, **fields: Any) -> Any:
    body = ask(text, **fields)
    answer = service.http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def listed(service: ServiceThread, headers: dict[str, str], **params: Any) -> list[str]:
    answer = service.http.get("/v1/episodes", headers=headers, params=params)
    return [row["task_text"] for row in answer.json()["data"]]


def are_digested(service: ServiceThread) -> bool:
    """Say whether every episode has been graded, and its task stored; one write does both."""
    return all(row["outcome"] for row in service.http.get("/v1/episodes").json()["data"])


def test_each_tenant_lists_its_own_episodes_and_an_admin_all(service):
    for headers, text in ((ACME, "a"), (BOLT, "b"), (PLAIN, "c")):
        chat(service, headers, text)
    assert listed(service, ACME) == ["a"]
    assert listed(service, BOLT) == ["b"]
    assert listed(service, PLAIN) == ["c"]
    assert listed(service, ADMIN) == ["c", "b", "a"]
    assert listed(service, ADMIN, tenant="bolt") == ["b"]
    foreign = service.http.get("/v1/episodes", headers=ACME, params={"tenant": "bolt"})
    assert foreign.status_code == 400


def test_a_foreign_id_is_not_found(service):
    theirs = chat(service, ACME, "secret")
    episode_id, call_id = theirs.headers["x-denizen-episode-id"], theirs.json()["id"]
    for headers, status in ((BOLT, 404), (PLAIN, 404), (ACME, 200), (ADMIN, 200)):
        got = service.http.get(f"/v1/episodes/{episode_id}", headers=headers)
        assert got.status_code == status
        for target in ({"episode_id": episode_id}, {"completion_id": call_id}):
            body = target | {"value": 1}
            said = service.http.post("/v1/feedback", json=body, headers=headers)
            assert said.status_code == status
    deleted = service.http.delete(f"/v1/episodes/{episode_id}", headers=ACME)
    assert deleted.status_code == 403


def test_a_foreign_response_cannot_be_continued(service):
    body = {"model": "denizen", "input": "my secret is 5"}
    theirs = service.http.post("/v1/responses", json=body, headers=ACME).json()
    more = {"model": "denizen", "input": "what is it?", "previous_response_id": theirs["id"]}
    assert service.http.post("/v1/responses", json=more, headers=ACME).status_code == 200
    for headers in (BOLT, PLAIN, ADMIN):
        refused = service.http.post("/v1/responses", json=more, headers=headers)
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "previous_response_not_found"


def test_equal_conversations_of_two_tenants_are_two_episodes(service):
    history = ask("what is 3 * 4?")["messages"]
    episodes = set()
    for headers in (ACME, BOLT, PLAIN):
        said = chat(service, headers, "what is 3 * 4?").json()["choices"][0]["message"]
        messages = [
            *history,
            {"role": "assistant", "content": said["content"]},
            {"role": "user", "content": "and plus one?"},
        ]
        more = service.http.post(
            "/v1/chat/completions", json=ask("") | {"messages": messages}, headers=headers
        )
        episodes.add(more.headers["x-denizen-episode-id"])
    assert len(episodes) == 3
    for episode_id in episodes:
        assert len(service.http.get(f"/v1/episodes/{episode_id}").json()["calls"]) == 2


def test_a_session_of_one_name_is_another_one_for_each_tenant(service):
    named = {"x-denizen-session": "shared-name"}
    ids = [
        chat(service, headers | named, f"text {n}").headers["x-denizen-episode-id"]
        for n, headers in enumerate((ACME, BOLT, ACME))
    ]
    assert ids[0] == ids[2] != ids[1]


def test_a_retry_key_of_one_tenant_finds_nothing_of_another(service):
    key = {"idempotency-key": "same-key"}
    ids = [
        chat(service, headers | key, "hi").headers["x-denizen-episode-id"]
        for headers in (ACME, BOLT, ACME)
    ]
    assert ids[0] == ids[2] != ids[1]


def test_a_side_call_that_quotes_another_tenants_words_is_its_own_episode(service):
    text = "please plan a journey from the old harbour to the northern lighthouse by bicycle"
    theirs = chat(service, ACME, text)
    quoting = chat(service, BOLT, f"Write a title for this conversation:\n{text}")
    own = chat(service, ACME, f"Write a title for this conversation:\n{text}")
    ids = [answer.headers["x-denizen-episode-id"] for answer in (theirs, quoting, own)]
    assert ids[0] == ids[2] != ids[1]


def test_what_a_tenant_does_is_not_learned_from_and_says_so(service):
    metadata = {"reference": "12", "task": "sums"}
    for headers in (ACME, PLAIN):
        chat(service, headers, "what is 3 * 4?", metadata=metadata)

    def tasks() -> list[Any]:
        return service.http.get("/v1/tasks").json()["data"]

    wait_until(lambda: are_digested(service))
    assert len(tasks()) == 1
    assert tasks()[0]["tenant"] is None
    assert service.http.get("/v1/tasks", headers=ACME).json()["data"] == []
    [theirs] = service.http.get("/v1/episodes", params={"tenant": "acme"}).json()["data"]
    shown = service.http.get(f"/v1/episodes/{theirs['id']}").json()
    assert (shown["learn"], shown["withheld"]) == (False, "tenant")
    assert shown["calls"][0]["not_learnable_reason"] == "tenant"


def test_a_named_tenant_teaches(engine, tmp_path):
    sections = {"auth": AUTH, "privacy": {"learn_from": ("acme",)}}
    with ServiceThread(tmp_path, engine.url, sections) as service:
        service.http.headers.update(ADMIN)
        metadata = {"reference": "12", "task": "sums"}
        for headers in (ACME, BOLT):
            chat(service, headers, "what is 3 * 4?", metadata=metadata)
        wait_until(lambda: are_digested(service))
        [task] = service.http.get("/v1/tasks").json()["data"]
        assert task["tenant"] == "acme"
        assert service.http.get("/v1/tasks", headers=BOLT).json()["data"] == []


def test_skills_of_one_name_are_two_tenants_skills(service):
    for headers in (ACME, BOLT, PLAIN):
        chat(service, headers, "what is 3 * 4?", metadata={"task": "sums"})

    def skills(headers: dict[str, str]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = service.http.get("/v1/skills", headers=headers).json()["data"]
        return found

    wait_until(lambda: len(skills(ADMIN)) == 3)
    assert [skill["tenant"] for skill in skills(ACME)] == ["acme"]
    assert [skill["tenant"] for skill in skills(PLAIN)] == [None]
    [theirs] = skills(ACME)
    assert service.http.get(f"/v1/skills/{theirs['id']}", headers=BOLT).status_code == 404
    assert service.http.get(f"/v1/skills/{theirs['id']}", headers=ACME).status_code == 200
    status = service.http.get("/v1/status", headers=BOLT).json()
    assert [skill["title"] for skill in status["skills"]] == ["sums"]
    assert status["counts"]["episodes"] == 1


def test_a_tenants_status_tells_of_nothing_but_its_own(service):
    chat(service, ACME, "alpha")
    chat(service, BOLT, "beta")
    chat(service, BOLT, "gamma")
    body = {"tasks": [{"messages": [{"role": "user", "content": "a"}], "reference": "1"}]}
    assert service.http.post("/v1/tasks", json=body).status_code == 200
    whole = service.http.get("/v1/status").json()
    assert (whole["counts"]["episodes"], whole["counts"]["tasks"]) == (3, 1)
    for headers, num_episodes, num_tasks in ((ACME, 1, 0), (BOLT, 2, 0), (PLAIN, 0, 1)):
        told = service.http.get("/v1/status", headers=headers).json()
        assert set(told) == {"version", "url", "live", "ready", "counts", "skills", "judges"}
        assert told["counts"]["episodes"] == num_episodes
        assert told["counts"]["tasks"] == num_tasks
    assert {"home", "learnable", "last_cycle", "running", "tainted"} <= set(whole)


def test_without_tenants_a_user_key_is_told_all(engine, tmp_path):
    auth = {"admin_keys": ("admin-key",), "user_keys": ("plain-key",)}
    with ServiceThread(tmp_path, engine.url, {"auth": auth}) as service:
        service.http.headers.update(ADMIN)
        told = service.http.get("/v1/status", headers=PLAIN).json()
        assert set(told) == set(service.http.get("/v1/status").json())


def test_an_export_holds_the_callers_own(service):
    chat(service, ACME, "alpha")
    chat(service, BOLT, "beta")
    theirs = service.http.get("/v1/export/episodes", headers=ACME).text
    assert "alpha" in theirs
    assert "beta" not in theirs
    assert len(service.http.get("/v1/export/episodes").text.splitlines()) == 2


def test_only_admins_look_at_what_all_tenants_share(service):
    for path in ("/v1/adapters", "/v1/cycles", "/v1/erasures"):
        assert service.http.get(path, headers=ACME).status_code == 403
        assert service.http.get(path, headers=PLAIN).status_code == 403
        assert service.http.get(path, headers=ADMIN).status_code == 200


def test_erasing_a_tenant_leaves_the_others(service):
    for headers, text in ((ACME, "a"), (BOLT, "b"), (PLAIN, "c")):
        chat(service, headers, text)
    assert service.http.post("/v1/erase", json={"tenant": "acme"}, headers=ACME).status_code == 403
    told = service.http.post("/v1/erase", json={"tenant": "acme"})
    assert told.json()["counts"]["episodes"] == 1
    assert listed(service, ADMIN) == ["c", "b"]
