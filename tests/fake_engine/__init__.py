"""A fake vLLM: a real HTTP server whose answers are known and whose failures are ordered.

It answers with the JSON shapes of vLLM 0.32 (recorded from the real engine), keeps a table of
loaded adapters, and records every request. Answers are functions of (model name, messages,
``seed``, choice index) alone: the base model is wordy, an adapter answers ``denizen-000007: TEXT``,
so tests can tell versions apart. What is written as ``<tool_call>{…}</tool_call>`` becomes
``tool_calls`` when the request offers tools.

In a test::

    @pytest.fixture
    def engine() -> Iterator[FakeEngine]:
        with FakeEngine() as engine:
            yield engine

    def test_something(engine):
        engine.control(cut_after_chunks=3)
        ... talk to engine.url ...
        assert engine.requests[-1].body["model"] == "denizen-000007"

``FakeEngine(answer=lambda model, messages: "12")`` replaces the answers. ``stop()`` is a SIGKILL:
connections break, and ``start()`` again listens on the same port with no adapters. As a program,
``python -m tests.fake_engine --port 0`` prints ``{"port": 51234}`` and takes its orders through
``POST /control`` (a JSON object of ``Switches``) and shows ``GET /control/requests``.
"""

from tests.fake_engine.faults import Switches
from tests.fake_engine.server import FakeEngine, Request

__all__ = ["FakeEngine", "Request", "Switches"]
