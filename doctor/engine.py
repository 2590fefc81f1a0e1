"""Checks of the engine: the base model, memory, and the servers that are named by URL."""

import asyncio
from urllib.parse import urlsplit

from agent import preflight
from agent.errors import BaseModelError, EngineStartError
from agent.machine_memory import available_bytes
from agent.policy import PolicyClient
from agent.vllm_command import is_cpu_build
from doctor.finding import Finding
from doctor.home_folder import FIX
from doctor.patient import Patient
from memory.errors import ConfigError, DenizenError

ANSWER_WITHIN_S = 10.0
UNREADABLE = "not looked at: the settings cannot be read"


def check_model(patient: Patient) -> Finding:
    """Is the base model's folder there, and complete?"""
    if patient.settings is None:
        return Finding.ok("model", UNREADABLE)
    folder, named = patient.model, patient.settings.engine.model
    if folder is None:
        return Finding.ok("model", f"{named or 'the engine names it'}; looked up at the start")
    if named is None and not folder.exists():
        mend = f"denizen serve prepares it (about 20 s, once), or {FIX}"
        return Finding.warn("model", f"not prepared in {folder}", mend=mend)
    try:
        preflight.check_model_folder(folder)
    except BaseModelError as error:
        mend = f"rm -r {folder}, then {FIX}" if named is None else "download the model again"
        return Finding.fail("model", error.message, mend=mend)
    return Finding.ok("model", str(folder))


def check_engine(patient: Patient) -> Finding:
    """Will the engine start as the settings say, or do those at the URLs answer?"""
    if patient.settings is None:
        return Finding.ok("engine", UNREADABLE)
    config = patient.settings.engine
    if config.urls:
        return _check_urls(config.urls, config.api_key)
    model = patient.model
    if model is None or not (model / "config.json").is_file():
        return Finding.ok("engine", "started by denizen serve; its model was not looked at")
    try:
        preflight.check_positions(config, model)
        preflight.check_template(config, model)
    except (ConfigError, BaseModelError) as error:
        return Finding.fail("engine", error.message, mend="change that setting")
    return Finding.ok("engine", "started by denizen serve; the settings suit the model")


def check_memory(patient: Patient) -> Finding:
    """Is there the memory that vLLM takes on a CPU?"""
    free = available_bytes()
    detail = "unknown" if free is None else f"{free / 1e9:.1f} GB available"
    if patient.service_runs:
        return Finding.ok("memory", f"{detail} beside the running service")
    model = patient.model
    has_weights = model is not None and (model / "config.json").is_file()
    if patient.settings is None or patient.settings.engine.urls or not has_weights:
        return Finding.ok("memory", detail)
    if not is_cpu_build() or model is None:
        return Finding.ok("memory", detail)
    try:
        warning = preflight.check_memory(patient.settings.engine, model)
    except EngineStartError as error:
        return Finding.fail("memory", error.message, mend="lower engine.kv_cache_gib")
    if warning is not None:
        return Finding.warn("memory", warning, mend="lower engine.kv_cache_gib, or end programs")
    needed = preflight.needed_bytes(patient.settings.engine, model)
    return Finding.ok("memory", f"{detail}; vLLM takes about {needed / 1e9:.1f}")


def _check_urls(urls: tuple[str, ...], api_key: str | None) -> Finding:
    answers, silent = [], []
    for url in urls:
        try:
            base = asyncio.run(_base_of(url, api_key))
        except (DenizenError, TimeoutError) as error:
            silent.append(f"{_shown(url)}: {error or 'no answer'}")
        else:
            answers.append(f"{_shown(url)} serves {base or 'a model that it does not name'}")
    if silent:
        mend = "start it, or change engine.urls or engine.api_key"
        return Finding.fail("engine", "; ".join(silent), mend=mend)
    return Finding.ok("engine", "; ".join(answers))


async def _base_of(url: str, api_key: str | None) -> str | None:
    async with PolicyClient(url, api_key) as client, asyncio.timeout(ANSWER_WITHIN_S):
        return await client.base_root()


def _shown(url: str) -> str:
    """Return an address without the user and password that may stand in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
