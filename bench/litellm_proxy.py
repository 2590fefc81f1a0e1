"""LiteLLM's proxy, in an environment of its own, as what a gateway is compared with.

The environment is made on demand in the system's folder for temporary files and kept there. The
wheel holds the proxy; its ``proxy`` extra pins packages that do not resolve together here, so what
the proxy imports is named below.
"""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

VERSION = "1.110.2"
NEEDS = (
    "apscheduler<4",
    "backoff",
    "cryptography",
    "email-validator",
    "expression",
    "fastapi",
    "fastapi-sso",
    "mcp",
    "orjson",
    "pyjwt",
    "python-multipart",
    "pyyaml",
    "rich",
    "rq",
    "semver",
    "soundfile",
    "uvicorn",
    "uvloop",
    "websockets",
)
CONFIG = """\
model_list:
  - model_name: denizen
    litellm_params:
      model: openai/base
      api_base: {engine_url}/v1
      api_key: none
general_settings:
  master_key: sk-bench
"""
QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
"""It would fetch a table of prices from the network."""


def install() -> Path:
    """Return the Python of an environment that has the proxy; the first time takes a minute."""
    folder = Path(tempfile.gettempdir()) / f"denizen-bench-litellm-{VERSION}"
    python = folder / "bin/python"
    complete = folder / "complete"
    if not complete.exists():
        venv.create(folder, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", f"litellm=={VERSION}", *NEEDS]
        subprocess.run(command, check=True, stdout=sys.stderr)
        complete.touch()
    return python


def command(python: Path, folder: Path, engine_url: str, port: int) -> list[str]:
    """Return the command that serves one model, one worker; writes its configuration."""
    config = folder / "litellm.yaml"
    config.write_text(CONFIG.format(engine_url=engine_url), encoding="utf-8")
    start = "from litellm.proxy.proxy_cli import run_server; run_server()"
    options = ["--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
    return [str(python), "-c", start, "--config", str(config), *options, "--num_workers", "1"]
