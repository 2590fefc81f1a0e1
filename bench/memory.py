"""Measures the record: how fast it takes calls, how much room they take, how vectors are found.

``python -m bench.memory`` prints one JSON object and takes about a quarter of an hour on two cores:

- ``ingest``: calls of 500 tokens a second through ``EpisodeStore.record`` on one core, sustained
  for a minute, for both settings of ``memory.durability``;
- ``episode``: the room that an episode of 100 turns takes, whose prompts hold all that was said
  before, as a multiple of what is unique in it: 4 bytes for each token id and each log-probability
  that is in no earlier call, and the JSON of each message and tool that is in no earlier call. The
  room is that of all pages of tables and indexes, keys and times included;
- ``vectors``: a million synthetic vectors in clusters: recall of the 10 nearest, how long a search
  takes, what the index keeps in memory, and how long a start takes with its file and without.

``--only`` runs a part; ``--vectors`` and ``--seconds`` make it smaller.
"""

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.ingest import measure_ingest
from bench.long_episode import measure_episode
from bench.vectors import measure_vectors


def main() -> None:
    """Run the parts that the command line asks for."""
    options = _options()
    parts: dict[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = {
        "ingest": measure_ingest,
        "episode": measure_episode,
        "vectors": measure_vectors,
    }
    report: dict[str, Any] = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "date": datetime.now(UTC).date().isoformat(),
    }
    for name, part in parts.items():
        if options.only in (None, name):
            with tempfile.TemporaryDirectory(prefix="denizen-bench-", dir=options.folder) as folder:
                report[name] = part(Path(folder), options)
    print(json.dumps(report, indent=2))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    parser.add_argument("--only", choices=("ingest", "episode", "vectors"))
    parser.add_argument("--seconds", type=float, default=60.0, help="of ingest, each durability")
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where to work; 4 GB for a million vectors")
    return parser.parse_args()


if __name__ == "__main__":
    main()
