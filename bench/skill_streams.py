"""Streams of unlabelled tasks in random order, and what kinds they really are.

Families of reasoning-gym, and the requests of real users that ``bfcl-eval`` carries, where the set
of functions that a request offers is its label.
"""

import json
import random
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import reasoning_gym  # type: ignore[import-untyped]

FAMILIES = [
    "letter_counting",
    "chain_sum",
    "products",
    "gcd",
    "spell_backward",
    "word_sorting",
    "prime_factorization",
    "calendar_arithmetic",
    "syllogism",
    "caesar_cipher",
    "course_schedule",
    "family_relationships",
    "leg_counting",
    "number_sorting",
    "propositional_logic",
    "simple_equations",
    "time_intervals",
    "tower_of_hanoi",
]
CALIBRATED_ON = [
    "basic_arithmetic",
    "lcm",
    "fraction_simplification",
    "base_conversion",
    "count_bits",
    "knights_knaves",
    "zebra_puzzles",
    "mini_sudoku",
    "isomorphic_strings",
    "ransom_note",
    "number_filtering",
    "polynomial_equations",
    "simple_geometry",
    "coin_flip",
    "word_ladder",
    "shortest_path",
    "game_of_life",
    "jugs",
    "aiw",
    "sentence_reordering",
    "string_manipulation",
    "bitwise_arithmetic",
    "decimal_arithmetic",
    "palindrome_generation",
    "self_reference",
    "rotate_matrix",
    "needle_haystack",
    "dice",
    "group_anagrams",
    "gsm_symbolic",
    "count_primes",
    "letter_jumble",
    "word_sequence_reversal",
    "circuit_logic",
    "largest_island",
    "figlet_font",
]
PER_FAMILY = 100
SEED = 1234
REAL = ("multiple", "simple", "parallel", "parallel_multiple", "relevance")
"""Files ``live_*`` whose requests fit the functions offered; ``irrelevance``, whose requests do
not, is measured apart, and all together.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """Tasks as they come, and what kinds they really are."""

    texts: Sequence[str]
    labels: Sequence[str]

    def shuffled(self, seed: int) -> "Stream":
        """Return the stream in another order."""
        return shuffled(self.texts, self.labels, seed)

    def behind(self, preamble: str) -> "Stream":
        """Return the stream with a preamble inside the user's message."""
        return Stream(texts=[f"{preamble}\n\n{text}" for text in self.texts], labels=self.labels)


def gym_tasks() -> tuple[list[str], list[str]]:
    """Return the texts of all families, and the family of each."""
    texts, labels = [], []
    for family in FAMILIES:
        tasks = reasoning_gym.create_dataset(family, size=PER_FAMILY, seed=SEED)
        texts += [tasks[n]["question"] for n in range(PER_FAMILY)]
        labels += [family] * PER_FAMILY
    return texts, labels


def real_requests(wheel: Path, files: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what the users of some ``live_*`` files ask, and the functions offered to each."""
    texts, labels = [], []
    with zipfile.ZipFile(wheel) as archive:
        for name in files:
            [path] = [
                path
                for path in archive.namelist()
                if path.endswith(f"live_{name}.json") and "possible_answer" not in path
            ]
            for line in archive.read(path).decode("utf-8").splitlines():
                row = json.loads(line)
                said = [m["content"] for m in row["question"][0] if m["role"] == "user"]
                if said and said[0].strip():
                    texts.append(said[0])
                    labels.append(" ".join(sorted(one["name"] for one in row["function"])))
    return texts, labels


def shuffled(texts: Sequence[str], labels: Sequence[str], seed: int = SEED) -> Stream:
    """Return tasks in a random order."""
    order = random.Random(seed).sample(range(len(texts)), len(texts))
    return Stream(texts=[texts[n] for n in order], labels=[labels[n] for n in order])


def preamble() -> str:
    """Return about 2,000 tokens of what a harness tells a model, in lines."""
    rng = random.Random(SEED)
    who = ("the agent", "a tool", "every answer", "the workspace", "a reviewer", "the session")
    does = ("must never reveal", "always reports", "waits for", "keeps a note of", "checks twice")
    what = ("file names", "the user's language", "open questions", "dates and units", "long logs")
    why = ("because others rely on it", "unless told otherwise", "before it goes on", "in one line")
    lines = [
        f"{n}. Remember that {rng.choice(who)} {rng.choice(does)} {rng.choice(what)} "
        f"{rng.choice(why)}, as section {rng.randrange(90)} says."
        for n in range(1, 91)
    ]
    return "\n".join(["You are part of a team of assistants. These rules hold.", *lines])
