"""What an adapter has to fit to be served here: the base model, and the rank that the engine takes.

Reads the headers of the base model's files. Does not read adapters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

from safetensors import safe_open

from memory.errors import AdapterError

ROOM_FOR_RANKS = 4
"""An upload may be so many times the largest adapter served, so that a rank too high is refused by
its number and not by its size."""

SLACK_BYTES = 4 * 2**20
"""For the headers of safetensors and multipart, the configuration and the manifest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """The base model and the engine's limit.

    Example:
        ``Fit(base_digest="9f…", base_shapes={"model.layers.0.mlp.up_proj": (1536, 576), …},
        base_names=frozenset({"smollm2-135m-instruct"}), max_rank=16)``
    """

    base_digest: str  # sha256 of the base model's weights
    base_shapes: Mapping[str, tuple[int, int]]  # of its matrices: (outputs, inputs), by module
    base_names: frozenset[str]  # see ``names_of``
    max_rank: int  # engine.max_lora_rank

    @classmethod
    def of(cls, model_dir: Path, *, base_digest: str, max_rank: int) -> Self:
        """Describe the base model in ``model_dir``."""
        return cls(
            base_digest=base_digest,
            base_shapes=linear_shapes(model_dir),
            base_names=names_of(str(model_dir)) | names_of(str(model_dir.resolve())),
            max_rank=max_rank,
        )

    @property
    def max_upload_bytes(self) -> int:
        """The largest upload that is read: every matrix adapted in float32, and room to spare."""
        numbers_per_rank = sum(rows + columns for rows, columns in self.base_shapes.values())
        return ROOM_FOR_RANKS * self.max_rank * numbers_per_rank * 4 + SLACK_BYTES

    def check_rank(self, rank: int, what: str = "the adapter") -> None:
        """Refuse what the engine would refuse.

        Raises:
            AdapterError: the rank is above the engine's.
        """
        if rank > self.max_rank:
            raise AdapterError(
                f"{what} has rank {rank}, expected at most {self.max_rank} (engine.max_lora_rank)"
            )


def linear_shapes(model_dir: Path) -> dict[str, tuple[int, int]]:
    """Read the base model's matrices from its file headers: module name to (outputs, inputs)."""
    shapes: dict[str, tuple[int, int]] = {}
    for path in sorted(model_dir.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                shape = file.get_slice(name).get_shape()
                if name.endswith(".weight") and len(shape) == 2:
                    shapes[name.removesuffix(".weight")] = (shape[0], shape[1])
    return shapes


def names_of(model: str) -> frozenset[str]:
    """Return the names, casefolded, that a model's path or hub id stands for.

    The last part of it; in the hub's cache (``models--ORG--NAME/snapshots/REVISION``) also the
    repository's name.
    """
    path = PurePosixPath(model.replace("\\", "/"))
    names = {path.name.casefold()}
    if path.parent.name == "snapshots":
        names.add(path.parents[1].name.rpartition("--")[2].casefold())
    return frozenset(names)
