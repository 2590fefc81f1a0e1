"""Which judges may teach which skills, worked out from the record and kept at hand.

``graders/calibration.py`` decides; this reads the evidence, remembers the decisions, and opens
episodes for merging again when a decision changes what their outcome is.

A ranking judge (``graders/ranking.py``) is trusted where the scores of the same model by the same
rubric are, and where nothing that was planted before it has raised an alarm.
"""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from graders.agreement import Pair
from graders.biases import Swap
from graders.calibration import Evidence, Standing, TrustConfig, decide
from graders.canaries import Canary
from graders.judge import JUDGE
from graders.ranking import RANKING, ranked_as, scored_as
from memory.judge_evidence import Beside, JudgeEvidence, Probe

SWAP = "swap"  # the kind of a probe that holds no planted answer
SAMPLED_LOOKS = 3

Key = tuple[str, str, int]  # grader, version, skill


class JudgeTrust:
    """Answers whether a judge may teach; ``refresh`` reads the record anew."""

    def __init__(self, evidence: JudgeEvidence, config: TrustConfig | None = None) -> None:
        self._evidence = evidence
        self._config = config or TrustConfig()
        self._standings: dict[Key, Standing] = {}
        self._merged: dict[int, int] = {}
        self._lock = threading.Lock()

    def doubt(self, grader: str, version: str, skill_id: int | None) -> str | None:
        """Say why a judge's grades on a skill are not trained on; None: they are."""
        if skill_id is None:
            return "judge not trusted yet: the answer has no skill yet"
        standing = self.standing(grader, version, skill_id)
        if standing is None and grader == RANKING and (scored := scored_as(version)) is not None:
            return self.doubt(JUDGE, scored, skill_id)
        if standing is None:
            return f"judge not trusted yet: 0 of {self._config.min_pairs} pairs"
        return standing.doubt

    def standing(self, grader: str, version: str, skill_id: int) -> Standing | None:
        """Return what is known of a judge in a skill; None: nothing."""
        with self._lock:
            skill_id = self._merged.get(skill_id, skill_id)
            return self._standings.get((grader, version, skill_id))

    def standings(self) -> list[Standing]:
        """Return all that is known, by skill."""
        with self._lock:
            found = list(self._standings.values())
        return sorted(found, key=lambda one: (one.skill_id, one.grader, one.version))

    def refresh(self) -> None:
        """Work out every standing from the record. Takes a while; for a thread."""
        merged = self._evidence.merged_skills()
        found = gather(self._evidence.judged(), self._evidence.probes())
        standings = {
            (one.grader, one.version, one.skill_id): decide(one, self._config) for one in found
        }
        standings |= {
            key: _beside_scores(own, standings) for key, own in standings.items() if _ranks(own)
        }
        with self._lock:
            self._standings, self._merged = standings, merged

    async def run(self, on_changed: Callable[[], None]) -> None:
        """Refresh, and have outcomes follow; ``on_changed`` is called when some must be merged."""
        await asyncio.to_thread(self.refresh)
        trusted = {
            (one.grader, one.version, one.skill_id) for one in self.standings() if one.is_trusted
        }
        beside = {(RANKING, ranked_as(version), skill) for _, version, skill in trusted}
        trusted |= {key for key in beside if self.doubt(*key) is None}
        if await self._evidence.merge_again(trusted):
            on_changed()

    def report(self, skill_ids: Collection[int]) -> list[dict[str, Any]]:
        """Return each judge's standing in some skills, for people who watch."""
        return [
            one.to_json() | {"doubt": one.doubt, "min_pairs": self._config.min_pairs}
            for one in self.standings()
            if one.skill_id in skill_ids
        ]

    def num_pairs_lacking(self, grader: str, version: str, skill_id: int) -> int:
        """Return how many more answers of known worth a judge should be asked about in a skill.

        Until the third look, which is strict again about what the second let in mildly; of a judge
        that seldom decides, until it was asked twice as often as that takes.
        """
        target = self._config.min_pairs << SAMPLED_LOOKS - 1
        standing = self.standing(grader, version, skill_id)
        if standing is None:
            return target
        num_asked = standing.num_pairs + standing.num_undecided + standing.num_abstained
        return max(0, min(target - standing.num_pairs, 2 * target - num_asked))


def _ranks(standing: Standing) -> bool:
    return standing.grader == RANKING


def _beside_scores(own: Standing, standings: Mapping[Key, Standing]) -> Standing:
    """Judge a ranking judge by its own alarms, and by what its scores lack."""
    version = scored_as(own.version)
    scored = None if version is None else standings.get((JUDGE, version, own.skill_id))
    lacks = ("its scores are compared with nothing yet",) if scored is None else scored.missing
    missing = (*lacks, *own.alarms)
    return replace(own, missing=missing, is_trusted=not missing)


def gather(judged: Sequence[Beside], probes: Sequence[Probe]) -> list[Evidence]:
    """Sort the rows by judge, version and skill; each part stays oldest first.

    Rankings of groups that were sampled stand beside nothing, and are no evidence.
    """
    pairs: dict[Key, list[Pair]] = defaultdict(list)
    abstained: dict[Key, int] = defaultdict(int)
    swaps: dict[Key, list[Swap]] = defaultdict(list)
    canaries: dict[Key, list[tuple[Canary, float | None]]] = defaultdict(list)
    keys: dict[Key, None] = {}
    for one in judged:
        if one.grader == RANKING:
            continue
        key = (one.grader, one.version, one.skill_id)
        keys[key] = None
        if not one.values:
            continue
        if one.judged is None:
            abstained[key] += 1
        else:
            truth = fmean(one.values)
            pairs[key].append(Pair(judge=one.judged, truth=truth, length=one.length))
    for probe in probes:
        key = (probe.grader, probe.version, probe.skill_id)
        keys[key] = None
        if probe.kind == SWAP:
            swaps[key].append(Swap(probe.swap or Swap.UNDECIDED))
        else:
            canaries[key].append((Canary(probe.kind), probe.value))
    return [
        Evidence(
            grader=key[0],
            version=key[1],
            skill_id=key[2],
            pairs=pairs[key],
            swaps=swaps[key],
            canaries=canaries[key],
            num_abstained=abstained[key],
        )
        for key in keys
    ]
