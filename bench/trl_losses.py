"""Writes what TRL's GRPOTrainer makes of given log-probabilities, for tests to compare with.

``python -m bench.trl_losses > tests/learner/trl_losses.json``; TRL's environment is made the first
time. Losses are those that TRL and Denizen both have, with TRL's normalization over all tokens.
"""

import json
import random
import tempfile
from pathlib import Path
from typing import Any

from agent.base_model import prepare_packaged_model
from bench import trl_peer
from tests.tiny_model import save_tiny_model

LENGTHS = (5, 3, 6, 1)
LOSSES: dict[str, dict[str, Any]] = {
    "cispo": {"loss_type": "cispo", "epsilon_high": 2.0},
    "clip": {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28},
    "gspo": {
        "loss_type": "dapo",
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "importance_sampling_level": "sequence",
    },
    "cispo with kl": {"loss_type": "cispo", "epsilon_high": 2.0, "beta": 0.1},
}


def main() -> None:
    """Print the inputs and what TRL makes of them."""
    rng = random.Random(0)

    def near(values: list[list[float]], spread: float) -> list[list[float]]:
        return [[value + rng.uniform(-spread, spread) for value in row] for row in values]

    longest = max(LENGTHS)
    trainer_logprobs = [[rng.uniform(-3, -0.5) for _ in range(longest)] for _ in LENGTHS]
    inputs = {
        "trainer_logprobs": trainer_logprobs,
        "sampler_logprobs": near(trainer_logprobs, 1.0),
        "ref_logprobs": near(trainer_logprobs, 0.5),
        "mask": [[int(t < length) for t in range(longest)] for length in LENGTHS],
        "advantages": [0.75, -0.25, 0.5, -1.0],
    }
    with tempfile.TemporaryDirectory(prefix="denizen-bench-") as folder:
        model = save_tiny_model(Path(folder) / "tiny")
        tokenizer = prepare_packaged_model(Path(folder), lambda _: None)
        task = {**inputs, "losses": LOSSES, "model": str(model), "tokenizer": str(tokenizer)}
        found = trl_peer.run(task)
    print(json.dumps({"trl": trl_peer.VERSION, "inputs": inputs, "losses": found}, indent=1))


if __name__ == "__main__":
    main()
