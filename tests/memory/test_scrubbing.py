"""What is done to files, byte by byte."""

import random

import pytest

from memory import scrubbing
from memory.needles import Needles
from memory.scrubbing import scrub
from memory.store import Store

PLANTED = "zq7PlantedSecretText5f1c9a"


@pytest.mark.parametrize("chunk_bytes", [1, 7, 26, 64, 1_000])
def test_a_text_is_found_wherever_a_file_is_cut_into_pieces(tmp_path, monkeypatch, chunk_bytes):
    monkeypatch.setattr("memory.scrubbing.CHUNK_BYTES", chunk_bytes)
    rng, needle = random.Random(chunk_bytes), PLANTED.encode()
    needles = Needles([needle, needle[4:20]])
    path = tmp_path / "file"
    for _ in range(20):
        before, between = (bytes(rng.choices(b"xyz", k=rng.randint(0, 200))) for _ in range(2))
        path.write_bytes(before + needle + between + needle)
        with path.open("rb") as file:
            places = dict(scrubbing._places(file, needles))
        assert places[len(before)] == places[len(before) + len(needle) + len(between)] == needle
        assert scrubbing._mask(path, needles) == 2
        masked = b"*" * len(needle)
        assert path.read_bytes() == before + masked + between + masked


def test_a_large_file_is_read_in_pieces(tmp_path, monkeypatch):
    """What a search of the whole at once would hold the interpreter for."""
    read: list[int] = []
    whole = scrubbing._read

    def noted(file, at):
        piece = whole(file, at)
        read.append(len(piece))
        return piece

    monkeypatch.setattr("memory.scrubbing._read", noted)
    store = Store(tmp_path / "denizen.db")
    (tmp_path / "export.jsonl").write_bytes(b"x" * (5 * 2**20) + PLANTED.encode())
    told = scrub(store.database, tmp_path, {PLANTED}, lambda text: False)
    store.close()
    assert told.found == {"export.jsonl": 1}
    assert max(read) <= scrubbing.CHUNK_BYTES
