"""Sessions without any header, through the whole service: told apart, drawn, and learned from."""

from pathlib import Path

import pytest

from bench.sessions import pairwise, run
from tests.running import ServiceThread, ask, wait_until

CHAT = "/v1/chat/completions"
QUESTION = "Why does the nightly build of the parser fail since Tuesday?"


def test_200_interleaved_sessions_are_told_apart_and_their_tokens_reach_rows(tmp_path: Path):
    report = run(tmp_path, num_sessions=200, seed=7)
    assert report["assignment"]["f1"] >= 0.98
    tokens = report["tokens"]
    assert tokens["share_linear"] >= 0.95
    assert tokens["share"] >= 0.90
    assert tokens["in_rows"] == tokens["trained"], "none twice, none in a row without an account"
    assert tokens["sampled"] == tokens["trained"] + sum(tokens["not_trained"].values())
    assert {"retried", "rerendered"} <= tokens["not_trained"].keys(), "the mix has both"


def test_the_pairwise_score_of_a_hand_worked_case():
    # truth: {1 2 3} {4}; found: {1 2} {3 4}. Pairs in both: 1-2. Found: 2. True: 3.
    score = pairwise("aaab", "xxyy")
    assert score == {"precision": 0.5, "recall": 0.3333, "f1": 0.4}


@pytest.fixture
def tree(service: ServiceThread) -> dict:
    """A question, its continuation, a fork and a title, as the service shows them."""
    answer = service.http.post(CHAT, json=ask(QUESTION)).json()["choices"][0]["message"]
    history = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": answer["content"]},
    ]
    for more in ("Go on.", "Stop here."):
        body = ask("") | {"messages": [*history, {"role": "user", "content": more}]}
        service.http.post(CHAT, json=body)
    last = service.http.post(CHAT, json=ask(f"A title for this chat: USER: {QUESTION}"))
    id = last.headers["x-denizen-episode-id"]
    episode: dict = service.http.get(f"/v1/episodes/{id}").json()
    return episode


def test_an_episode_shows_its_tree_and_what_becomes_of_each_token(tree):
    calls = tree["calls"]
    first = calls[0]["id"]
    assert [(call["parent"], call["edge"]) for call in calls] == [
        (None, None),
        (first, "continuation"),
        (first, "fork"),
        (first, "side_call"),
    ]
    for call in calls:
        assert call["token_fates"] == {"trained": len(call["completion_token_ids"])}


def test_a_title_beside_an_answer_is_not_graded_in_its_place(service):
    body = ask(QUESTION, metadata={"reference": QUESTION})
    answered = service.http.post(CHAT, json=body)
    title = service.http.post(CHAT, json=ask(f"Title: {QUESTION}", max_tokens=2))
    id = answered.headers["x-denizen-episode-id"]
    assert title.headers["x-denizen-episode-id"] == id

    service.http.get(f"/v1/episodes/{id}").raise_for_status()  # both answers are in the file

    def graded() -> bool:
        row = service.parts.store.episodes.get(id)
        return row.digested_revision == row.revision == 2

    wait_until(graded, 10)
    episode = service.http.get(f"/v1/episodes/{id}").json()
    assert episode["outcome"]["value"] > 0, "the answer holds the reference, its title does not"


def test_the_status_says_what_share_of_tokens_can_be_learned_from(service):
    service.http.post(CHAT, json=ask("one two three"))
    service.http.post(CHAT, json=ask("four five six"), headers={"x-denizen-learn": "off"})
    learnable = service.http.get("/v1/status").json()["learnable"]
    assert learnable["window_episodes"] == 2
    assert 0 < learnable["share"] < 1
    assert list(learnable["not_learnable"]) == ["learning_off"]
