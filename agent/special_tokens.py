"""The control tokens of a model's tokenizer, as its files list them."""

from pathlib import Path
from typing import Any

import orjson

FILES = ("tokenizer.json", "added_tokens.json", "tokenizer_config.json")


def special_tokens(model: Path) -> set[str]:
    """Return the literals that the tokenizer reads as single tokens; empty where no file tells.

    Args:
        model: the folder of the base model.
    """
    found: set[str] = set()
    for name in FILES:
        try:
            told = orjson.loads((model / name).read_bytes())
        except (OSError, orjson.JSONDecodeError):
            continue  # an engine by URL may be known by its name alone
        found |= set(_literals(told, name))
    return found


def _literals(told: dict[str, Any], name: str) -> list[str]:
    if name == "added_tokens.json":
        return list(told)
    if name == "tokenizer.json":
        return [token["content"] for token in told.get("added_tokens") or ()]
    return [token["content"] for token in (told.get("added_tokens_decoder") or {}).values()]
