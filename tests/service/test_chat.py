"""Chat through the whole service, with the real client, against a fake engine."""

import json
import threading
from collections.abc import Iterator

import httpx
import openai
import pytest

from memory.types import CallStatus
from tests.running import ask, wait_until


@pytest.fixture
def client(service) -> Iterator[openai.OpenAI]:
    url = f"{service.http.base_url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def episode_of(service, response: httpx.Response) -> dict:
    return service.http.get(f"/v1/episodes/{response.headers['x-denizen-episode-id']}").json()


def test_an_answer_carries_the_contracts_headers_and_its_record_is_token_exact(service, engine):
    response = service.http.post("/v1/chat/completions", json=ask("hello there"))
    assert response.status_code == 200
    assert response.headers["x-denizen-call-id"] == response.json()["id"]
    assert response.headers["x-denizen-adapter"] == "base"
    assert response.json()["model"] == "denizen"
    [call] = episode_of(service, response)["calls"]
    assert call["id"] == response.json()["id"]
    assert call["status"] == "ok"
    assert call["prompt_token_ids"] == engine.prompt_ids(
        [{"role": "user", "content": "hello there"}]
    )
    assert len(call["sampler_logprobs"]) == len(call["completion_token_ids"]) > 0
    assert all(logprob < 0 for logprob in call["sampler_logprobs"])
    assert call["learnable"] is True


def test_a_streamed_answer_is_recorded_like_a_plain_one(service):
    plain = service.http.post("/v1/chat/completions", json=ask("the same"))
    streamed = service.http.post("/v1/chat/completions", json=ask("the same", stream=True))
    assert streamed.text.endswith("data: [DONE]\n\n")
    first, second = (episode_of(service, response)["calls"][0] for response in (plain, streamed))
    for field in ("prompt_token_ids", "completion_token_ids", "sampler_logprobs", "message"):
        assert first[field] == second[field]


def test_chunks_reach_the_client_one_by_one_while_the_engine_goes_on(service, engine):
    engine.control(stall_after_chunks=3)
    with service.http.stream(
        "POST", "/v1/chat/completions", json=ask("x", stream=True)
    ) as response:
        lines = (line for line in response.iter_lines() if line)
        assert json.loads(next(lines)[6:])["choices"][0]["delta"]["role"] == "assistant"
        assert next(lines).startswith("data: ")


def test_what_the_gateway_asked_for_does_not_leak_to_a_client_that_did_not(service):
    body = service.http.post("/v1/chat/completions", json=ask("quiet")).json()
    assert body["prompt_token_ids"] is None
    assert body["choices"][0]["token_ids"] is None
    assert body["choices"][0]["logprobs"] is None
    stream = service.http.post("/v1/chat/completions", json=ask("quiet", stream=True)).text
    assert '"logprob"' not in stream
    chunks = [json.loads(line[6:]) for line in stream.split("\n\n") if line.startswith("data: {")]
    assert all(choice.get("token_ids") is None for chunk in chunks for choice in chunk["choices"])


def test_a_client_that_asks_for_logprobs_and_ids_gets_them(service):
    asked = ask("loud", logprobs=True, return_token_ids=True)
    choice = service.http.post("/v1/chat/completions", json=asked).json()["choices"][0]
    assert len(choice["logprobs"]["content"]) == len(choice["token_ids"]) > 0


def test_the_openai_client_chats_streamed_and_not(client):
    messages = [{"role": "user", "content": "hi"}]
    plain = client.chat.completions.create(model="denizen", messages=messages)
    chunks = client.chat.completions.create(model="denizen", messages=messages, stream=True)
    streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert plain.choices[0].message.content == streamed
    assert {model.id for model in client.models.list()} == {"denizen", "denizen@base"}


def test_usage_comes_once_at_the_end_when_asked_for(client):
    stream = client.chat.completions.create(
        model="denizen",
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert [bool(chunk.usage) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_each_of_n_choices_is_a_call_of_its_own(service):
    response = service.http.post("/v1/chat/completions", json=ask("three", n=3))
    first = response.json()["id"]
    calls = episode_of(service, response)["calls"]
    assert [call["id"] for call in calls] == [first, f"{first}.1", f"{first}.2"]


def test_metadata_and_headers_steer_the_record_and_never_reach_the_engine(service, engine):
    asked = ask("3 * 4?", metadata={"reference": "12", "task": "sums", "user": "ann"})
    response = service.http.post("/v1/chat/completions", json=asked)
    assert "metadata" not in engine.requests[-1].body
    episode = episode_of(service, response)
    assert (episode["reference"], episode["task_key"], episode["user"]) == ("12", "sums", "ann")


def test_record_off_leaves_no_trace_but_the_version(service):
    headers = {"x-denizen-record": "off"}
    response = service.http.post("/v1/chat/completions", json=ask("psst"), headers=headers)
    assert [name for name in response.headers if name.startswith("x-denizen")] == [
        "x-denizen-adapter"
    ]
    assert service.http.get("/v1/episodes").json()["data"] == []


def test_learn_off_is_recorded_and_not_learned_from(service):
    headers = {"x-denizen-learn": "off"}
    response = service.http.post("/v1/chat/completions", json=ask("no"), headers=headers)
    assert episode_of(service, response)["calls"][0]["not_learnable_reason"] == "learning_off"


def test_a_conversation_without_a_session_is_one_episode(service):
    first = service.http.post("/v1/chat/completions", json=ask("hi"))
    said = first.json()["choices"][0]["message"]["content"]
    history = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": [{"type": "text", "text": "and now?"}]},
    ]
    second = service.http.post("/v1/chat/completions", json=ask("") | {"messages": history})
    calls = episode_of(service, second)["calls"]
    assert [call["parent"] for call in calls] == [None, first.json()["id"]]


def test_a_named_session_is_one_episode_and_other_sessions_are_not(service):
    ids = [
        service.http.post(path, json=ask(text), headers=headers).headers["x-denizen-episode-id"]
        for path, text, headers in (
            ("/s/s1/v1/chat/completions", "one", {}),
            ("/v1/chat/completions", "two", {"x-denizen-session": "s1"}),
            ("/s/s2/v1/chat/completions", "one", {}),
        )
    ]
    assert ids[0] == ids[1] != ids[2]


def test_a_client_that_hangs_up_cancels_the_engine_and_leaves_a_cancelled_record(service, engine):
    engine.control(chunk_delay_s=0.05)
    with service.http.stream(
        "POST", "/v1/chat/completions", json=ask("x", stream=True)
    ) as response:
        next(response.iter_lines())
    wait_until(lambda: engine.requests[-1].disconnected, 2)
    wait_until(lambda: episode_of(service, response)["calls"] != [], 2)
    [call] = episode_of(service, response)["calls"]
    assert call["status"] == CallStatus.CANCELLED
    assert call["not_learnable_reason"] == "cancelled"


def test_an_engine_that_breaks_off_in_mid_stream_is_an_error_for_the_client(
    service, engine, client
):
    engine.control(cut_after_chunks=3)
    with pytest.raises(openai.APIError, match="broke off"):
        list(
            client.chat.completions.create(
                model="denizen", messages=[{"role": "user", "content": "x"}], stream=True
            )
        )
    newest = service.http.get("/v1/episodes").json()["data"][0]["id"]
    [call] = service.http.get(f"/v1/episodes/{newest}").json()["calls"]
    assert call["status"] == "error"
    assert call["completion_token_ids"], "the tokens up to the break are kept"


def test_a_failing_engine_is_a_502_and_recorded(service, engine):
    engine.control(http_error=500)
    response = service.http.post("/v1/chat/completions", json=ask("x"))
    assert response.status_code == 502
    assert response.json()["error"]["code"] == "engine_error"
    assert len(service.http.get("/v1/episodes").json()["data"]) == 1


def test_an_engine_that_is_gone_is_a_503_with_retry_after_and_not_ready(service, engine):
    engine.stop()
    response = service.http.post("/v1/chat/completions", json=ask("x"))
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) > 0
    wait_until(lambda: service.http.get("/ready").status_code == 503, 10)
    assert "does not answer" in service.http.get("/ready").json()["reasons"][0]
    assert service.http.get("/health").status_code == 200
    engine.start()
    wait_until(lambda: service.http.get("/ready").status_code == 200, 10)


def test_what_the_engine_refuses_about_the_request_reaches_the_client(service, engine):
    response = service.http.post("/v1/chat/completions", json=ask("x", max_tokens=5000))
    assert response.status_code == 400
    assert "max_model_len" in response.json()["error"]["message"]


def test_a_full_disk_breaks_no_answer_and_is_shown(service, tmp_path):
    database = service.parts.store.database
    database.write(lambda db: db.execute("PRAGMA max_page_count = 1"))
    answers = [service.http.post("/v1/chat/completions", json=ask("x " * 5000)) for _ in range(3)]
    assert {response.status_code for response in answers} == {200}
    wait_until(lambda: service.http.get("/ready").status_code == 503)
    ready = service.http.get("/ready")
    assert "not recorded" in ready.json()["reasons"][0]
    assert "denizen_records_dropped_total" in service.http.get("/metrics").text
    database.write(lambda db: db.execute("PRAGMA max_page_count = 1000000"))
    service.http.post("/v1/chat/completions", json=ask("room again"))
    wait_until(lambda: service.http.get("/ready").status_code == 200)


def test_many_at_once_are_each_recorded_once(service):
    def chat(number: int) -> None:
        response = httpx.post(
            f"{service.http.base_url}/v1/chat/completions", json=ask(f"n{number}", stream=True)
        )
        assert response.text.endswith("data: [DONE]\n\n")

    threads = [threading.Thread(target=chat, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    texts = [row["task_text"] for row in service.http.get("/v1/episodes?limit=100").json()["data"]]
    assert sorted(texts) == sorted(f"n{number}" for number in range(40))


def test_calls_of_a_session_that_start_together_are_one_episode(service, engine):
    engine.control(delay_s=0.2)
    ids: list[str] = []

    def chat(text: str) -> None:
        url = f"{service.http.base_url}/s/job/v1/chat/completions"
        ids.append(httpx.post(url, json=ask(text)).headers["x-denizen-episode-id"])

    threads = [threading.Thread(target=chat, args=(f"side {n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 1
    assert len(service.http.get(f"/v1/episodes/{ids[0]}").json()["calls"]) == 4


def test_another_task_of_the_same_session_is_an_episode_of_its_own(service):
    path, grades = "/s/job/v1/chat/completions", []
    for reference in ("12", "25"):
        body = ask(f"what makes {reference}?", metadata={"reference": reference})
        grades.append(episode_of(service, service.http.post(path, json=body)))
    assert [episode["reference"] for episode in grades] == ["12", "25"]
    assert grades[0]["id"] != grades[1]["id"]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "text", "text": 5}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": None}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]},
    ],
)
def test_an_odd_message_is_never_a_server_error(service, message):
    body = ask("") | {"messages": [message, {"role": "user", "content": "go on"}]}
    assert service.http.post("/v1/chat/completions", json=body).status_code in {200, 400}
