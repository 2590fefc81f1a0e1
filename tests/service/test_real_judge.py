"""The packaged model as a judge, with the real vLLM behind the whole service."""

import pytest

from graders.verdicts import Unread
from tests.running import ServiceThread, ask, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]


def test_the_packaged_model_writes_verdicts_that_can_be_read(real_service: ServiceThread) -> None:
    http = real_service.http
    body = ask("What is 7 times 8?", max_tokens=8, metadata={"grader": "judge"})
    episode_id = http.post("/v1/chat/completions", json=body).headers["x-denizen-episode-id"]

    def grades() -> list[dict]:
        shown = http.get(f"/v1/episodes/{episode_id}").json()
        return [grade for grade in shown["grades"] if grade["kind"] == "judge"]

    wait_until(lambda: bool(grades()), 300)
    [grade] = grades()
    scores = [one for one in grade["evidence"]["scores"] if one is not None]
    assert len(scores) >= 2, grade["evidence"]
    assert all(0.0 <= one <= 1.0 for one in scores)
    assert grade["unscored_reason"] not in list(Unread)
    assert "denizen@base:" in grade["version"]
