import pytest

from agent.diagnosis import ANSWERS_NOTHING, COMPUTES_NOTHING, Ending, advise

CRASH = [
    "INFO 11-30 09:00:00 [core.py:93] Initializing a V1 LLM engine",
    "(EngineCore pid=7) ERROR 11-30 09:00:01 [core.py:300] Traceback (most recent call last):",
    "(EngineCore pid=7) ERROR 11-30 09:00:01 [core.py:300] KeyError: 'model.layers.0'",
    "RuntimeError: Engine core initialization failed. See root cause above.",
]


def ending(status: int, *lines: str, kills: int | None = 0) -> Ending:
    return Ending(status=status, lines=lines, num_oom_kills=kills)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (ending(137, kills=1), "vLLM ran out of memory: the kernel killed it; lower engine.kv"),
        (
            ending(1, "EngineDeadError: EngineCore encountered an issue.", kills=1),
            "vLLM ran out of memory: the kernel killed it",
        ),
        (ending(137, kills=0), "vLLM was killed (SIGKILL), and not by the kernel"),
        (ending(137, kills=None), "vLLM was killed, as the kernel does when memory runs out"),
        (
            ending(1, "x", "torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB", "bye"),
            "vLLM ran out of memory (OutOfMemoryError: CUDA out of memory. Tried 2 GiB); lower",
        ),
        (ending(1, "MemoryError"), "vLLM ran out of memory (MemoryError); lower"),
        (
            ending(1, "RuntimeError: [enforce fail] DefaultCPUAllocator: not enough memory: x"),
            "ran",
        ),
        (ending(1, *CRASH), "vLLM crashed with status 1; KeyError: 'model.layers.0'"),
        (ending(139), "vLLM crashed with status 139"),
        (ending(0), "vLLM crashed with status 0"),
    ],
)
def test_each_way_to_end_has_its_own_line(end, said):
    reason = end.reason()
    assert said in reason
    assert "\n" not in reason


LOST_CORE = [
    "(APIServer pid=5) ERROR 11-30 10:24 [hermes_tool_parser.py:117] json.JSONDecodeError: Extra",
    "(APIServer pid=5) WARNING 11-30 10:24 [x.py:1] errors like `OSError: Too many open files`",
    "(APIServer pid=5) WARNING 11-30 10:24 [core_client.py:817] engine core exited unexpectedly",
    "(APIServer pid=5) ERROR 11-30 10:24 [async_llm.py:906] exceptions.EngineDeadError: see above",
]


def test_an_error_that_the_server_survived_is_not_why_it_ended():
    reason = ending(0, *LOST_CORE).reason()
    assert reason == "vLLM crashed with status 0; one of its processes ended"


def test_a_process_of_vllm_that_the_kernel_killed_is_told_by_the_kernels_count():
    assert "the kernel killed it" in ending(0, *LOST_CORE, kills=1).reason()


def test_a_kill_of_another_process_on_the_machine_does_not_explain_a_crash():
    assert ending(1, *CRASH, kills=2).reason().startswith("vLLM crashed with status 1; KeyError")


def test_ordinary_lines_about_memory_are_no_lack_of_it():
    lines = ["INFO [kv_cache_utils.py:1305] CPU KV cache size: 46,592 tokens", "ValueError: x"]
    assert ending(1, *lines).reason() == "vLLM crashed with status 1; ValueError: x"


def test_the_two_hangs_have_lines_of_their_own():
    assert COMPUTES_NOTHING != ANSWERS_NOTHING
    assert "health check" in COMPUTES_NOTHING


@pytest.mark.parametrize(
    ("line", "setting"),
    [
        ("ValueError: ... larger than the available KV cache memory (0.1 GiB)", "kv_cache_gib"),
        ("KeyError: 'invalid tool call parser: foo (chose from {...})'", "engine.tool_call_parser"),
        ("api_server.py: error: unrecognized arguments: --sed 7", "engine.extra_args"),
        ("OSError: /m does not appear to have a file named config.json", "engine.model"),
        ("OSError: [Errno 98] Address already in use", "start again"),
    ],
)
def test_the_commonest_causes_come_with_what_to_do(line, setting):
    advice = advise(["INFO fine", line, "INFO bye"])
    assert advice is not None
    assert setting in advice
    assert setting in ending(1, line).reason()


def test_an_unknown_cause_gets_no_advice():
    assert advise(["ValueError: of a kind nobody has seen"]) is None
