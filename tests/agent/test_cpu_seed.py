import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
pytest.importorskip("vllm")

from agent import cpu_seed  # noqa: E402

SEED = 7


class Runner:
    """Rewinds as vLLM's CUDA runner does, and keeps a log of what it saw."""

    def __init__(self, discarded: list[bool], generators: dict[int, "torch.Generator"]) -> None:
        self.discard_request_mask = SimpleNamespace(np=np.array(discarded))
        self.input_batch = SimpleNamespace(generators=generators)
        self.rewound: list[int] = []

    def _bookkeeping_sync(self, answer):
        for row in np.nonzero(self.discard_request_mask.np)[0]:
            generator = self.input_batch.generators.get(int(row))
            if generator is not None:
                generator.set_offset(generator.get_offset() - 4)
        if isinstance(answer, Exception):
            raise answer
        return answer


def drawn() -> "torch.Generator":
    """Return a seeded generator from which a number was drawn."""
    generator = torch.Generator().manual_seed(SEED)
    torch.rand(1, generator=generator)
    return generator


def number(generator) -> float:
    return float(torch.rand(1, generator=generator))


def mended(runner: Runner, answer):
    return cpu_seed.reseeding(Runner._bookkeeping_sync)(runner, answer)


def test_the_fault_is_there_without_the_mend():
    with pytest.raises(RuntimeError, match="offset"):
        Runner([True], {0: drawn()})._bookkeeping_sync("tokens")


def test_a_discarded_token_leaves_no_trace_in_the_generator():
    runner = Runner([True, False, True], {0: drawn(), 1: drawn()})
    assert mended(runner, "tokens") == "tokens"
    fresh = torch.Generator().manual_seed(SEED)
    assert number(runner.input_batch.generators[0]) == number(fresh)
    assert number(runner.input_batch.generators[1]) == number(drawn())


def test_the_generators_are_all_there_after_a_failure():
    runner = Runner([True], {0: drawn()})
    with pytest.raises(ValueError, match="broken"):
        mended(runner, ValueError("broken"))
    assert list(runner.input_batch.generators) == [0]


@pytest.fixture
def fake_vllm(monkeypatch):
    """Stand in for vLLM's modules, so that this process's real ones stay as they are."""

    class CPUModelRunner(Runner):
        pass

    modules = {
        "vllm.platforms": SimpleNamespace(current_platform=SimpleNamespace(is_cpu=lambda: True)),
        "vllm.v1.worker.cpu_model_runner": SimpleNamespace(CPUModelRunner=CPUModelRunner),
    }
    monkeypatch.setattr(cpu_seed, "importlib", SimpleNamespace(import_module=modules.__getitem__))
    return SimpleNamespace(platform=modules["vllm.platforms"].current_platform, run=CPUModelRunner)


def test_registering_mends_once(fake_vllm):
    cpu_seed.register()
    first = fake_vllm.run._bookkeeping_sync
    cpu_seed.register()
    assert first is not Runner._bookkeeping_sync
    assert fake_vllm.run._bookkeeping_sync is first


def test_other_platforms_are_left_as_they_are(fake_vllm):
    fake_vllm.platform.is_cpu = lambda: False
    cpu_seed.register()
    assert fake_vllm.run._bookkeeping_sync is Runner._bookkeeping_sync


def test_a_vllm_without_the_fault_is_left_as_it_is(fake_vllm, monkeypatch):
    def sound(self, answer):
        return answer

    monkeypatch.setattr(Runner, "_bookkeeping_sync", sound)
    cpu_seed.register()
    assert fake_vllm.run._bookkeeping_sync is sound


def test_an_unknown_vllm_is_refused(fake_vllm, monkeypatch):
    monkeypatch.delattr(Runner, "_bookkeeping_sync")
    with pytest.raises(RuntimeError, match="_bookkeeping_sync"):
        cpu_seed.register()


def test_the_installed_vllm_is_known():
    spec = importlib.util.find_spec("vllm.v1.worker.gpu_model_runner")
    assert f"def {cpu_seed._METHOD}(" in Path(spec.origin).read_text(encoding="utf-8")
