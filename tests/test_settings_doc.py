import re
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from assembly import settings_doc
from memory.errors import ConfigError
from settings import Settings


def test_the_page_is_what_the_code_says() -> None:
    written = settings_doc.FILE.read_text(encoding="utf-8")
    assert written == settings_doc.document(), "write it again: make settings"


def test_every_setting_stands_on_the_page_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DENIZEN_LEARNER__GROUP_SIZE", "3")
    page = settings_doc.document()
    assert "- `group_size = 8` (whole number, at least 2): " in page
    sections = dict(re.findall(r"^## \[(\w+)\]\n(.*?)(?=^## |\Z)", page, re.M | re.S))
    for section, field in Settings.model_fields.items():
        assert isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        named = re.findall(r"^- `(\w+)", sections[section], re.M)
        assert named == list(field.annotation.model_fields)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "boolean"}, "true or false"),
        ({"type": "integer", "minimum": 1, "maximum": 9}, "whole number, at least 1, at most 9"),
        ({"enum": ["a", "b"], "type": "string"}, '`"a"` or `"b"`'),
        (
            {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "null"}]},
            "number, above 0",
        ),
        (
            {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "list of: text, at least 1 of them",
        ),
    ],
)
def test_limits_are_said_in_words(schema: dict[str, Any], said: str) -> None:
    assert settings_doc.allowed(schema) == said


def test_a_setting_without_a_text_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare(BaseModel):
        model_config = ConfigDict(use_attribute_docstrings=True)

        told: int = 1
        """It has one."""
        silent: int = Field(default=2)

    class Some(Settings):
        bare: Bare = Bare()

    monkeypatch.setattr(settings_doc, "Settings", Some)
    with pytest.raises(ConfigError, match=r"bare\.silent"):
        settings_doc.document()
