"""The page of all settings; ``python -m assembly.settings_doc`` writes ``docs/settings.md``.

Names, defaults, limits and texts are those of the sections' models, so that the page cannot be
wrong about them; a setting without a text is an error.
"""

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from memory.errors import ConfigError
from settings import PREFIX, Settings

FILE = Path(__file__).parents[1] / "docs" / "settings.md"
WIDTH = 120

INTRODUCTION = f"""\
# Settings

`denizen.toml` in the home folder holds them, a section a table. The environment wins over the file:
`{PREFIX}LEARNER__GROUP_SIZE=4` is `group_size = 4` in `[learner]`, and a list is written as JSON.
An unknown name, a value outside its limits and sections that contradict each other are errors that
name the setting, before anything is started. This page is written by `make settings` from the
models that check them. Where a text names neither a source nor a measurement, the default is a
choice that nobody has measured.
"""

TYPES = {"boolean": "true or false", "integer": "whole number", "number": "number"}
LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minItems": "at least {} of them",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "pattern": "like `{}`",
}
"""What JSON schema calls a limit, and how the page says it."""


def document() -> str:
    """Return the page.

    Raises:
        ConfigError: a setting has no text.
    """
    settings = Settings.model_construct()  # of defaults alone, whatever the environment says
    sections = [_section(name, getattr(settings, name)) for name in Settings.model_fields]
    return "\n".join([INTRODUCTION, *sections])


def _section(name: str, defaults: BaseModel) -> str:
    values = defaults.model_dump(mode="json")
    properties = type(defaults).model_json_schema()["properties"]
    lines = [_setting(f"{name}.{key}", properties[key], values[key]) for key in values]
    return "\n".join([f"## [{name}]", "", *lines, ""])


def _setting(name: str, schema: Mapping[str, Any], default: Any) -> str:
    """Return an item of the list: what the setting is called, is by default, may be and does.

    Args:
        name: with its section.
        schema: the setting's JSON schema.
        default: as JSON; None where it is unset.
    """
    what = " ".join(schema.get("description", "").split()).replace("``", "`")
    if not what:
        raise ConfigError(f"the setting {name} has no text under it")
    key = name.partition(".")[2]
    shown = f"`{key}`, unset" if default is None else f"`{key} = {json.dumps(default)}`"
    text = f"- {shown} ({allowed(schema)}): {what}"
    return textwrap.fill(
        text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def allowed(schema: Mapping[str, Any]) -> str:
    """Say what a value may be: ``whole number, at least 1, at most 256``."""
    if "anyOf" in schema:  # it, or nothing
        return allowed(next(one for one in schema["anyOf"] if one["type"] != "null"))
    match schema:
        case {"enum": values}:
            kind = " or ".join(f"`{json.dumps(value)}`" for value in values)
        case {"type": "array", "items": items}:
            kind = f"list of: {allowed(items)}"
        case {"type": "object", "additionalProperties": values}:
            kind = f"names, each with a {allowed(values)}"
        case _:
            kind = TYPES.get(schema["type"], "text")
    limits = [said.format(schema[limit]) for limit, said in LIMITS.items() if limit in schema]
    return ", ".join([kind, *limits])


if __name__ == "__main__":
    FILE.write_text(document(), encoding="utf-8")
