"""Every setting: ``denizen.toml`` in the home folder, overridden by ``DENIZEN_SECTION__KEY``.

Each section is declared by the package that it configures; an unknown key is an error that names
it.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from agent.access import AuthConfig
from agent.engine_config import LORA_RANKS, EngineConfig
from graders.config import GradersConfig
from graders.endpoint import TeacherConfig
from learner.curriculum import LearnerConfig
from learner.promotion import PromotionConfig
from learner.tasks import TasksConfig
from memory.database import MemoryConfig
from memory.errors import ConfigError
from memory.privacy import PrivacyConfig
from memory.recall import RecallConfig
from memory.skills import SkillsConfig

PREFIX = "DENIZEN_"
PLAIN_VARIABLES = {"DENIZEN_HOME", "DENIZEN_URL", "DENIZEN_API_KEY", "DENIZEN_CPU_LORA"}
LOOPBACK = {"127.0.0.1", "localhost", "::1"}


class ServerConfig(BaseModel):
    """Settings of ``[server]``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    host: str = "127.0.0.1"
    """Address to listen on; anything but loopback needs ``auth`` keys."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one. 8000 as vLLM's own server."""
    max_body_mib: float = Field(default=8.0, gt=0)
    """Largest request body; a 1M-token conversation fits."""
    max_in_flight: int = Field(default=1_000, ge=1)
    """Requests that are answered at once; one more gets 503 and Retry-After at once. Each costs
    memory for its conversation twice, and a connection to the engine.
    """
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Level of the service's own log."""


class Settings(BaseSettings):
    """All sections."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    server: ServerConfig = ServerConfig()
    auth: AuthConfig = AuthConfig()
    engine: EngineConfig = EngineConfig()
    teacher: TeacherConfig = TeacherConfig()
    graders: GradersConfig = GradersConfig()
    memory: MemoryConfig = MemoryConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    recall: RecallConfig = RecallConfig()
    skills: SkillsConfig = SkillsConfig()
    tasks: TasksConfig = TasksConfig()
    learner: LearnerConfig = LearnerConfig()
    promotion: PromotionConfig = PromotionConfig()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Let the environment win over what the file says (which comes in as arguments)."""
        return env_settings, init_settings


def load(home: Path, overrides: Mapping[str, Mapping[str, Any]] | None = None) -> Settings:
    """Read the settings of a home folder.

    Args:
        home: where ``denizen.toml`` may lie.
        overrides: section -> key -> value from the command line; win over file and environment.

    Raises:
        ConfigError: names the file or variable, the key, and what is wrong with it.
    """
    _check_variables(os.environ)
    path = home / "denizen.toml"
    try:
        told = tomllib.loads(path.read_text("utf-8")) if path.exists() else {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    try:
        settings = Settings(**told)
        for section, values in (overrides or {}).items():
            changed = {**getattr(settings, section).model_dump(), **values}
            kind = type(getattr(settings, section))
            settings = settings.model_copy(update={section: kind.model_validate(changed)})
    except ValidationError as error:
        raise ConfigError(_describe(error, path)) from error
    except SettingsError as error:
        raise ConfigError(f"{error}; a list is written as JSON: '[\"KEY\"]'") from error
    _check_together(settings)
    return settings


def _check_variables(environment: Mapping[str, str]) -> None:
    """Refuse a variable that looks like a setting and is none; it would be ignored in silence."""
    for name in environment:
        if not name.startswith(PREFIX) or name in PLAIN_VARIABLES:
            continue
        section = name.removeprefix(PREFIX).partition("__")[0].lower()
        if section not in Settings.model_fields:
            raise ConfigError(
                f"unknown setting {name}: sections are {', '.join(Settings.model_fields)}"
            )


def _describe(error: ValidationError, path: Path) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    where = f"in {path} or as DENIZEN_{key.upper().replace('.', '__')}"
    if first["type"] == "extra_forbidden":
        return f"unknown setting {key!r} ({where})"
    return f"setting {key!r} ({where}): {first['msg']}"


def _check_together(settings: Settings) -> None:
    """Find contradictions between sections before anything is started."""
    engine, learner = settings.engine, settings.learner
    if learner.rank > engine.max_lora_rank:
        enough = next((str(rank) for rank in LORA_RANKS if rank >= learner.rank), None)
        mend = f"raise engine.max_lora_rank to {enough}, or " if enough else ""
        raise ConfigError(
            f"learner.rank is {learner.rank}, above engine.max_lora_rank {engine.max_lora_rank}: "
            f"{mend}lower learner.rank"
        )
    needed = engine.num_slots_needed(learns=learner.enabled)
    if engine.max_loras < needed:
        raise ConfigError(
            f"engine.max_loras is {engine.max_loras}, but {needed} versions answer at once (live, "
            "previous; one in practice with learner.enabled; one pinned with engine.pin_sessions): "
            f"raise engine.max_loras to {needed}"
        )
    if strangers := set(settings.privacy.learn_from) - set(settings.auth.tenants):
        raise ConfigError(
            f"privacy.learn_from names {sorted(strangers)[0]!r}, which is none of auth.tenants"
        )
    if settings.server.host not in LOOPBACK and not settings.auth.admin_keys:
        raise ConfigError(
            f"server.host {settings.server.host} is reachable by others: "
            "set auth.admin_keys (and auth.user_keys)"
        )
