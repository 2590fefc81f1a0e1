from pathlib import Path

import pytest

from agent import vllm_command
from agent.base_model import FOLDER
from agent.engine_config import RESERVED_FLAGS, EngineConfig
from agent.vllm_command import TOOL_TEMPLATE, command_line, environment

MODEL = Path("/models/other")


def after(command: list[str], flag: str) -> str:
    return command[command.index(flag) + 1]


def test_vllm_gets_what_the_settings_say():
    config = EngineConfig(max_loras=3, max_lora_rank=32, extra_args=("--seed", "7"))
    command = command_line(config, MODEL, 8123)
    assert after(command, "--max-loras") == "3"
    assert after(command, "--max-lora-rank") == "32"
    assert after(command, "--served-model-name") == "base"
    assert after(command, "--host") == "127.0.0.1"
    assert after(command, "--port") == "8123"
    assert command[-2:] == ["--seed", "7"]


def test_the_environment_holds_the_key_and_lets_the_plugin_in(monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", "something_else")
    variables = environment(EngineConfig(kv_cache_gib=3), "KEY")
    assert variables["VLLM_API_KEY"] == "KEY"
    assert variables["VLLM_PLUGINS"] == ("something_else,denizen_cpu_lora,denizen_cpu_seed")
    assert variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    assert variables["VLLM_CPU_KVCACHE_SPACE"] == "3"
    assert variables["HF_HUB_OFFLINE"] == "1"
    monkeypatch.delenv("VLLM_PLUGINS")
    assert "VLLM_PLUGINS" not in environment(EngineConfig(), "KEY")


def test_tools_are_chosen_automatically_with_the_parser_of_the_settings():
    command = command_line(EngineConfig(), MODEL, 1)
    assert "--enable-auto-tool-choice" in command
    assert after(command, "--tool-call-parser") == "hermes"
    without = command_line(EngineConfig(tool_call_parser=None), MODEL, 1)
    assert not {"--enable-auto-tool-choice", "--tool-call-parser"} & set(without)


def test_the_template_with_tools_is_for_the_packaged_model_and_a_file_of_the_settings_wins():
    packaged = Path("/home/models") / FOLDER
    assert after(command_line(EngineConfig(), packaged, 1), "--chat-template") == str(TOOL_TEMPLATE)
    assert "--chat-template" not in command_line(EngineConfig(), MODEL, 1)
    for model in (packaged, MODEL):
        own = command_line(EngineConfig(chat_template="/t.jinja"), model, 1)
        assert after(own, "--chat-template") == "/t.jinja"


@pytest.mark.parametrize("is_cpu", [True, False])
def test_every_flag_that_is_set_is_reserved(monkeypatch, is_cpu):
    monkeypatch.setattr(vllm_command, "is_cpu_build", lambda: is_cpu)
    command = command_line(EngineConfig(chat_template="/t"), MODEL, 1)
    flags = {word for word in command if word.startswith("--")}
    assert flags - set(RESERVED_FLAGS) == {"--disable-uvicorn-access-log"}
