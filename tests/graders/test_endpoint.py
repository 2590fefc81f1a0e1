"""A teacher by URL, and its key."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import SecretStr

import settings as configuration
from graders.chat_model import Failure, TeacherError
from graders.endpoint import EndpointModel, TeacherConfig
from memory.errors import ConfigError
from tests.fake_engine import FakeEngine
from tests.graders.test_teacher import REQUEST

KEY = "sk-proj-9aQ2v7LxT4mZ8r"


@pytest.fixture
def endpoint():
    with FakeEngine(base_name="teacher-1", api_key=KEY, answer=lambda *_: "a verdict") as endpoint:
        yield endpoint


@pytest.fixture
async def model(endpoint: FakeEngine) -> AsyncIterator[EndpointModel]:
    model = EndpointModel(config(endpoint.url))
    yield model
    await model.close()


def config(url: str, key: str = KEY) -> TeacherConfig:
    return TeacherConfig(base_url=f"{url}/v1", model="teacher-1", api_key=SecretStr(key))


async def test_an_endpoint_answers(endpoint: FakeEngine, model: EndpointModel) -> None:
    reply = await model.complete(REQUEST)
    assert reply.text.startswith("a verdict")
    assert reply.num_tokens is not None and reply.num_tokens > 0
    body = endpoint.requests[0].body
    assert (body["model"], body["seed"], body["temperature"]) == ("teacher-1", 1, 0.0)
    assert body["response_format"]["type"] == "json_schema"


@pytest.mark.parametrize(
    ("status", "failure", "is_tried_again"),
    [
        (500, Failure.UNAVAILABLE, True),
        (503, Failure.UNAVAILABLE, True),
        (429, Failure.UNAVAILABLE, True),
        (400, Failure.REFUSED, False),
        (422, Failure.REFUSED, False),
        (404, Failure.UNAVAILABLE, False),
    ],
)
async def test_failures_are_told_apart(endpoint, model, status, failure, is_tried_again) -> None:
    endpoint.control(http_error=status)
    with pytest.raises(TeacherError) as caught:
        await model.complete(REQUEST)
    assert caught.value.failure is failure
    assert (type(caught.value) is not TeacherError) == is_tried_again
    assert str(status) in caught.value.message


async def test_a_wrong_key_is_told_without_the_key(endpoint: FakeEngine) -> None:
    model = EndpointModel(config(endpoint.url, "sk-wrong-one-77"))
    with pytest.raises(TeacherError) as caught:
        await model.complete(REQUEST)
    await model.close()
    assert "401" in caught.value.message and "sk-" not in caught.value.message
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


async def test_an_endpoint_that_is_gone_is_unavailable(endpoint, model) -> None:
    endpoint.stop()
    with pytest.raises(TeacherError) as caught:
        await model.complete(REQUEST)
    assert caught.value.failure is Failure.UNAVAILABLE


@pytest.mark.parametrize(
    "key",
    [
        *("", " ", "sk-...", "sk-xxxxxxxx", "YOUR_API_KEY", "your-key", "<your key>", "changeme"),
        *("${TEACHER_KEY}", "{{ key }}", "sk-your-key-here", "placeholder", "api_key", "***"),
    ],
)
def test_p_48_a_missing_or_placeholder_key_fails_at_start(tmp_path: Path, key: str) -> None:
    section = {"base_url": "https://api.example.com/v1", "model": "m", "api_key": key}
    with pytest.raises(ConfigError, match=r"teacher\.api_key is (missing|a placeholder)"):
        configuration.load(tmp_path, {"teacher": section})


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"model": "m"}, "base_url"),
        ({"base_url": "https://x/v1", "api_key": KEY}, "teacher.model"),
        ({"base_url": "https://x/v1", "model": "m"}, "teacher.api_key is missing"),
        ({"base_url": "ftp://x", "model": "m", "api_key": KEY}, "base_url"),
    ],
)
def test_half_a_teacher_is_refused_and_its_key_not_shown(tmp_path, section, says) -> None:
    with pytest.raises(ConfigError) as caught:
        configuration.load(tmp_path, {"teacher": section})
    assert says in str(caught.value)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("key", [KEY, "a-real-looking-key", "none", "xai-84hf7"])
def test_a_key_or_none_is_taken(tmp_path: Path, key: str) -> None:
    section = {"base_url": "https://api.example.com/v1", "model": "m", "api_key": key}
    teacher = configuration.load(tmp_path, {"teacher": section}).teacher
    assert teacher.keys == ([] if key == "none" else [key])


def test_the_key_is_in_no_text_of_the_settings(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("DENIZEN_TEACHER__BASE_URL", "https://api.example.com/v1")
    monkeypatch.setenv("DENIZEN_TEACHER__MODEL", "m")
    monkeypatch.setenv("DENIZEN_TEACHER__API_KEY", KEY)
    settings = configuration.load(tmp_path)
    assert settings.teacher.keys == [KEY]
    assert KEY not in repr(settings) and KEY not in settings.model_dump_json()
