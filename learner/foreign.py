"""Adapters from outside: what they say of themselves has to be true of this base model.

A manifest beside the weights, as another Denizen writes it, is proof; without one the name of the
base model in the configuration is at least a hint. Does not know how the files arrived.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from learner.adapter_files import check_same, read_manifest
from learner.adapter_format import (
    CONFIG_NAME,
    MANIFEST_NAME,
    AdapterFacts,
    check_files,
    inspect,
    read_json,
)
from learner.fit import Fit, names_of
from memory.errors import AdapterError

ANY_BASE = "base"
"""How an adapter may call a base model without naming it."""


def inspect_foreign(folder: Path, fit: Fit) -> AdapterFacts:
    """Check an adapter that was not trained here, and say what it holds.

    Raises:
        AdapterError: it is of another base model, was changed after its manifest was written, or is
            not what an adapter must be; names what was expected and what was found.
    """
    check_files(folder)
    manifest = read_manifest(folder) if (folder / MANIFEST_NAME).exists() else None
    if manifest is not None and manifest.base_digest != fit.base_digest:
        raise AdapterError(
            f"{MANIFEST_NAME} is of another base model: base_digest is expected as "
            f"{fit.base_digest}, found {manifest.base_digest!s:.80}"
        )
    facts = inspect(folder, base_shapes=fit.base_shapes)
    fit.check_rank(facts.rank)
    if manifest is None:
        _check_base_name(read_json(folder / CONFIG_NAME), fit)
        return facts
    try:
        check_same(asdict(manifest), asdict(facts))
    except AdapterError as error:
        raise AdapterError(
            f"the files are not what {MANIFEST_NAME} says: {error.message}"
        ) from None
    return facts


def _check_base_name(config: dict[str, Any], fit: Fit) -> None:
    """Find an adapter of another model with the same shapes, such as base for instruct."""
    name = config.get("base_model_name_or_path")
    if not name:
        return
    if not isinstance(name, str) or not names_of(name) & (fit.base_names | {ANY_BASE}):
        raise AdapterError(
            f"{CONFIG_NAME}: base_model_name_or_path is expected as {sorted(fit.base_names)}, "
            f"found {name!r:.200}; if it was trained on this very model, set it to null"
        )
