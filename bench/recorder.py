"""Records conversations, vectors and erasures, and says what the store has acknowledged.

Each call can be told from its id alone, so that nothing else need be kept to check it.
"""

from typing import Any

import numpy as np

from bench.child import say
from memory.database import Transaction
from memory.erasure import Erasure, Scope
from memory.errors import StoreError
from memory.skill_writes import set_vector
from memory.store import Store
from memory.types import Call, CallStatus, Edge, Episode, EpisodeSource, utc_now
from memory.vectors import EpisodeVectors

DIMENSION = 16
MAX_EXACT = 64  # so few that the file of vectors is written too
TURNS = 4


async def record_episode(store: Store, episode_id: str, turns: int = TURNS) -> None:
    """Record an episode call by call, then its vector."""
    for turn in range(turns):
        call = call_of(episode_id, turn)
        await acknowledged(f"call {call.id}", recorded(store, call))
    await acknowledged(f"vector {episode_id}", _embedded(store, episode_id))


async def acknowledged(what: str, writing: Any) -> None:
    """Say what was written once the store says so, or that it said no."""
    try:
        await writing
    except StoreError as error:
        say(f"refused {error.message}")
    else:
        say(what)


async def recorded(store: Store, call: Call) -> None:
    """Wait until a call survives this process."""
    source = EpisodeSource.CHAT
    episode = Episode(id=call.episode_id, created_at=utc_now(), source=source, task_text="a task")
    await store.episodes.keep(episode, [call], [None]).safe


async def _embedded(store: Store, episode_id: str) -> None:
    vector_D = np.random.default_rng().normal(size=DIMENSION).astype(np.float32)

    def write(db: Transaction) -> None:
        found = list(db.query("SELECT id FROM episodes WHERE id = ?", (episode_id,)))
        if found:  # its calls may have been refused
            set_vector(db, episode_id, embedder="kills", vector_D=vector_D, missing_reason=None)
        else:
            raise StoreError("its episode is not there")

    await store.database.write_async(write)


async def erase(store: Store, episode_id: str) -> None:
    """Erase an episode; say so before and after."""
    say(f"erasing {episode_id}")
    await acknowledged(f"erased {episode_id}", _erased(Erasure(store), episode_id))


async def finish_erasures(store: Store) -> None:
    """Finish what was cut short, as the service does when it starts.

    What is marked is gone for good: nothing of it that was still on its way comes into the file.
    """
    erasure = Erasure(store)
    for erased, left in erasure.unfinished():
        await erasure.erase(left, erased)
        await erasure.end(erased)


async def _erased(erasure: Erasure, episode_id: str) -> None:
    erased = await erasure.begin(Scope(episode=episode_id), [episode_id], actor="bench")
    await erasure.erase([episode_id], erased)
    await erasure.end(erased)


def call_of(episode_id: str, turn: int) -> Call:
    """Return a call that can be told from its id alone; each turn holds those before it."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief. " * 30}]
    for number in range(turn):
        messages += [_question(episode_id, number), _answer(number)]
    messages.append(_question(episode_id, turn))
    return Call(
        id=f"{episode_id}/{turn}",
        episode_id=episode_id,
        created_at=utc_now(),
        adapter="base",
        request={"messages": messages},
        message=_answer(turn),
        prompt_token_ids=tuple(range(100 * turn + 100)),
        completion_token_ids=tuple(range(100 * turn + 100, 100 * turn + 150)),
        sampler_logprobs=(-0.5,) * 50,
        finish_reason="stop",
        status=CallStatus.OK,
        latency_ms=1.0,
        parent_id=f"{episode_id}/{turn - 1}" if turn else None,
        edge=Edge.CONTINUATION if turn else None,
    )


def _question(episode_id: str, turn: int) -> dict[str, Any]:
    return {"role": "user", "content": f"{episode_id}, question {turn}: " + "and then? " * 20}


def _answer(turn: int) -> dict[str, Any]:
    return {"role": "assistant", "content": f"answer {turn} " * 20}


def vectors_of(store: Store) -> EpisodeVectors:
    """Return the store's vectors, not yet opened."""
    return EpisodeVectors(
        store.database,
        embedder_id="kills",
        dimension=DIMENSION,
        file=store.database.path.with_name("vectors.faiss"),
        max_exact=MAX_EXACT,
    )
