from learner.coverage import WINDOW_CALLS, Coverage
from memory.types import CallStatus, EpisodeSource
from tests import records


async def keep(store, number: int, num_calls: int = 1, **fields) -> None:
    episode = records.episode(id=f"ep_{number:03d}")
    calls = [
        records.call(
            id=f"c{number}-{n}", episode_id=episode.id, prompt_token_ids=(1, n + 3), **fields
        )
        for n in range(num_calls)
    ]
    await store.episodes.record(episode, calls, [None] * num_calls)


async def test_the_share_counts_tokens_and_names_why_the_rest_is_lost(store):
    await keep(store, 1)
    await keep(store, 2, status=CallStatus.CANCELLED)
    await keep(store, 3, learn=False)
    await keep(store, 4)
    assert Coverage(store.episodes).report() == {
        "window_episodes": 4,
        "sampled_tokens": 8,
        "learnable_tokens": 4,
        "share": 0.5,
        "not_learnable": {"cancelled": 2, "learning_off": 2},
    }


async def test_nothing_sampled_has_no_share(store):
    assert Coverage(store.episodes).report()["share"] is None


async def test_practice_is_no_part_of_it(store):
    practice = records.episode(source=EpisodeSource.PRACTICE)
    await store.episodes.record(practice, [records.call()], [None])
    assert Coverage(store.episodes).report()["window_episodes"] == 0


async def test_what_is_recorded_later_is_counted_and_nothing_else_is_read_again(store):
    coverage, read = Coverage(store.episodes), []
    await keep(store, 1)
    await keep(store, 2)
    coverage.report()
    original = store.episodes.calls
    store.episodes.calls = lambda id, **options: read.append(id) or original(id, **options)
    later = records.call(id="later", episode_id="ep_002")
    await store.episodes.record(records.episode(id="ep_002"), [later], [None])
    assert coverage.report()["sampled_tokens"] == 6
    assert read == ["ep_002"]


async def test_the_window_is_bounded_by_calls(store):
    for number in range(3):
        await keep(store, number, WINDOW_CALLS // 2)
    assert Coverage(store.episodes).report()["window_episodes"] == 2
