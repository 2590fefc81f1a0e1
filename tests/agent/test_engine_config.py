import importlib.util
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from agent.engine_config import LORA_RANKS, EngineConfig, reserved_flag


def test_an_unknown_setting_is_named():
    with pytest.raises(ValidationError, match="max_lora\n"):
        EngineConfig(max_lora=3)


@pytest.mark.parametrize("rank", [0, 2, 24, 1024])
def test_a_rank_that_vllm_does_not_take_is_refused_with_those_it_takes(rank):
    with pytest.raises(ValidationError, match="1, 8, 16, 32, 64"):
        EngineConfig(max_lora_rank=rank)


@pytest.mark.engine
def test_the_ranks_are_those_of_the_installed_vllm():
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    source = (Path(spec.origin).parent / "config/lora.py").read_text(encoding="utf-8")
    listed = re.search(r"^MaxLoRARanks = Literal\[(.*)\]", source, re.MULTILINE)
    assert listed is not None
    assert tuple(map(int, listed[1].split(","))) == LORA_RANKS


@pytest.mark.parametrize(
    ("argument", "flag"),
    [
        ("--api-key", "--api-key"),
        ("--api_key=SECRET", "--api-key"),
        ("--port=1", "--port"),
        ("--host", "--host"),
        ("--served-model-name", "--served-model-name"),
        ("--enable_lora", "--enable-lora"),
        ("--no-enable-lora", "--enable-lora"),
        ("--max-lora", "--max-lora-rank"),  # argparse takes beginnings
        ("--tool-call-parser", "--tool-call-parser"),
        ("--config", "--config"),
        ("--seed", None),
        ("--chat-template-content-format=string", None),
        ("--max-num-seqs", None),
        ("-tp", None),
        ("7", None),
    ],
)
def test_an_argument_that_the_service_sets_is_recognised(argument, flag):
    assert reserved_flag(argument) == flag


@pytest.mark.parametrize("url", ["http://user:SECRET@host:1", "http://SECRET@host", "host:8001"])
def test_an_engines_address_is_a_plain_one_and_no_key_in_it_is_shown(url):
    with pytest.raises(ValidationError, match="urls") as caught:
        EngineConfig(urls=(url,))
    assert "SECRET" not in str(caught.value.errors(include_input=False))


def test_extra_arguments_may_not_override_the_services_own_and_no_value_is_shown():
    with pytest.raises(ValidationError, match="--api-key is set by the service") as caught:
        EngineConfig(extra_args=("--seed", "7", "--api-key=SECRET"))
    assert "SECRET" not in str(caught.value.errors(include_input=False))
    assert EngineConfig(extra_args=("--seed", "7")).extra_args == ("--seed", "7")


@pytest.mark.parametrize(
    ("pinned", "learns", "needed"),
    [(False, False, 2), (False, True, 3), (True, False, 3), (True, True, 4)],
)
def test_live_and_previous_need_a_slot_and_practice_and_pinning_one_more_each(
    pinned, learns, needed
):
    assert EngineConfig(pin_sessions=pinned).num_slots_needed(learns=learns) == needed
