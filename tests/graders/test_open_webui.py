"""The ratings of Open WebUI, in the form that its own page posts."""

import copy
from typing import Any

import pytest

from graders.open_webui import read_rating
from memory.errors import InvalidRequestError, NotFoundError
from memory.store import Store
from tests import records

CHAT, MESSAGE = "7c1d3c0e-chat", "b0a4-message"
RATING: dict[str, Any] = {
    "type": "rating",
    "data": {
        "rating": 1,
        "reason": "accurate_information",
        "comment": "just right",
        "tags": ["math"],
        "details": {"rating": 9},
        "model_id": "denizen",
        "sibling_model_ids": ["another-model"],
    },
    "meta": {
        "arena": False,
        "model_id": "denizen",
        "message_id": MESSAGE,
        "message_index": 2,
        "chat_id": CHAT,
        "base_models": {"denizen": None},
    },
    "snapshot": {
        "chat": {
            "id": CHAT,
            "user_id": "u1",
            "title": "Sums",
            "chat": {
                "models": ["denizen"],
                "history": {
                    "currentId": MESSAGE,
                    "messages": {
                        "u": {"id": "u", "role": "user", "content": "3 * 4?"},
                        MESSAGE: {
                            "id": MESSAGE,
                            "parentId": "u",
                            "role": "assistant",
                            "content": "12",
                        },
                    },
                },
            },
        }
    },
}


def rating(**changes: Any) -> dict[str, Any]:
    """Return the rating with some places changed: ``data__rating=-1``; None takes a key out."""
    body = copy.deepcopy(RATING)
    for path, value in changes.items():
        *parents, key = path.split("__")
        place = body
        for parent in parents:
            place = place[parent]
        if value is None:
            del place[key]
        else:
            place[key] = value
    return body


def with_text(text: str) -> dict[str, Any]:
    body = copy.deepcopy(RATING)
    body["snapshot"]["chat"]["chat"]["history"]["messages"][MESSAGE]["content"] = text
    return body


async def record(store: Store, *texts: str, episode: str = "ep_1", session: str = CHAT) -> None:
    """Record a session's answers as calls ``ep_1-0``, ``ep_1-1``, …"""
    for number, text in enumerate(texts):
        call = records.call(
            id=f"{episode}-{number}",
            episode_id=episode,
            message={"role": "assistant", "content": text},
        )
        kept = records.episode(id=episode, session=session)
        await store.episodes.record(kept, [call], [None])


async def test_a_thumb_with_its_reason_is_a_value_and_a_comment(store: Store) -> None:
    await record(store, "12")
    said = read_rating(RATING, store.episodes)
    assert (said.completion_id, said.score, said.source) == ("ep_1-0", 1.0, "open-webui")
    assert said.comment == "accurate_information: just right"
    down = read_rating(rating(data__rating=-1, data__reason=None), store.episodes)
    assert (down.score, down.comment) == (0.0, "just right")
    as_text = rating(data__rating="-1", data__reason=None, data__comment=None)
    assert read_rating(as_text, store.episodes).comment is None


async def test_the_rated_answer_is_found_by_its_text_among_those_of_the_chat(store: Store) -> None:
    await record(store, "11", "12", "Sums for beginners")  # the last is a title that was asked for
    await record(store, "12", episode="ep_2", session="another chat")
    assert read_rating(RATING, store.episodes).completion_id == "ep_1-1"


async def test_of_equal_answers_the_newest_is_meant(store: Store) -> None:
    await record(store, "12", "12")
    assert read_rating(RATING, store.episodes).completion_id == "ep_1-1"


async def test_thinking_that_is_shown_with_the_answer_does_not_hide_it(store: Store) -> None:
    await record(store, "12")
    shown = (
        '<details type="reasoning" done="true">\n<summary>Thought</summary>\n> 3 * 4\n</details>'
    )
    assert read_rating(with_text(f"{shown}\n12"), store.episodes).completion_id == "ep_1-0"


async def test_a_message_id_that_is_a_completions_id_needs_no_session(store: Store) -> None:
    await record(store, "12", session="some other name")
    said = read_rating(rating(meta__message_id="ep_1-0", snapshot=None), store.episodes)
    assert said.completion_id == "ep_1-0"


async def test_without_the_chat_the_episode_is_rated(store: Store) -> None:
    await record(store, "11", "12")
    said = read_rating(rating(snapshot=None), store.episodes)
    assert (said.completion_id, said.episode_id) == (None, "ep_1")


async def test_without_the_chat_and_with_two_episodes_nothing_is_guessed(store: Store) -> None:
    await record(store, "12")
    await record(store, "12", episode="ep_2")
    with pytest.raises(NotFoundError, match="has the text"):
        read_rating(rating(snapshot=None), store.episodes)


async def test_an_answer_of_another_model_in_the_same_chat_is_not_ours(store: Store) -> None:
    await record(store, "12")
    with pytest.raises(NotFoundError, match="has the text") as caught:
        read_rating(with_text("twelve, says another model"), store.episodes)
    assert caught.value.param == "meta.message_id"


async def test_an_unknown_chat_says_how_to_link_the_two(store: Store) -> None:
    with pytest.raises(NotFoundError, match="FORWARD_SESSION_INFO_HEADER_CHAT_ID") as caught:
        read_rating(RATING, store.episodes)
    assert caught.value.param == "meta.chat_id"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"type": "arena"}, "type"),
        ({"data": None}, "data"),
        ({"data__rating": None}, "data.rating"),
        ({"data__rating": 0}, "data.rating"),
        ({"data__rating": 5}, "data.rating"),
        ({"data__rating": "good"}, "data.rating"),
        ({"data__comment": "x" * 30_000}, "comment"),
        ({"meta": None}, "meta"),
        ({"meta__chat_id": None}, "meta.chat_id"),
        ({"meta__message_id": ""}, "meta.message_id"),
        ({"snapshot": "x"}, "snapshot"),
    ],
)
async def test_a_rating_that_says_nothing_is_refused_by_name(
    store: Store, change: dict[str, Any], param: str
) -> None:
    await record(store, "12")
    with pytest.raises(InvalidRequestError) as caught:
        read_rating(rating(**change), store.episodes)
    assert (caught.value.param or "").startswith(param)


@pytest.mark.parametrize("chat", [{}, {"chat": None}, {"chat": {"history": []}}])
async def test_a_snapshot_of_another_form_is_like_none(store: Store, chat: Any) -> None:
    await record(store, "12")
    assert read_rating(rating(snapshot={"chat": chat}), store.episodes).episode_id == "ep_1"
