"""The fake engine as a program: serves until the process is ended."""

import argparse
import json
import os
import threading

from tests.fake_engine import FakeEngine


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fake_engine")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--api-key", default=os.environ.get("VLLM_API_KEY"))
    options = parser.parse_args()
    with FakeEngine(port=options.port, api_key=options.api_key) as engine:
        print(json.dumps({"port": engine.port}), flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
