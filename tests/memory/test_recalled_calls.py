"""What other episodes were told of the erased ones."""

from tests.memory.erasing import PLANTED
from tests.records import call, episode, version


async def test_what_was_recalled_elsewhere_goes_with_its_tokens(home):
    await home.record(1)
    told = {"block": PLANTED, "episodes": [{"id": "ep_1"}], "skill": 1, "message": 0, "digest": ""}
    other = call(id="c9", episode_id="ep_9", recalled=told)
    await home.store.episodes.record(episode(id="ep_9"), [other], [None])
    follow = call(id="c9b", episode_id="ep_9", parent_id="c9", prompt_token_ids=(1, 9, 8, 33, 2, 5))
    await home.store.episodes.record(episode(id="ep_9"), [follow], [None])
    home.store.versions.add(version(1), ["ep_9"])
    report = await home.erase(episode="ep_1")
    assert home.files_with(PLANTED) == []
    left = home.store.episodes.calls("ep_9")
    assert [kept.id for kept in left] == ["c9", "c9b"]
    for kept in left:
        assert kept.prompt_token_ids is None
        assert kept.not_learnable_reason == "erased"
    assert [one.version for one in report["tainted"]] == ["denizen-000001"]
    again = call(id="c9c", episode_id="ep_9", parent_id="c9b")
    await home.store.episodes.record(episode(id="ep_9"), [again], [None])
    assert home.store.episodes.call("c9c").prompt_token_ids == (1, 9, 8)


async def test_what_is_recalled_of_erased_episodes_by_a_running_answer_is_not_stored(home):
    await home.record(1)
    await home.erase(episode="ep_1")
    told = {
        "block": f"quoted {PLANTED}",
        "episodes": [{"id": "ep_1"}, {"id": "ep_2"}],
        "skill": 1,
        "message": 0,
        "digest": "",
    }
    await home.store.episodes.record(
        episode(id="ep_9"), [call(id="c9", episode_id="ep_9", recalled=told)], [None]
    )
    kept = home.store.episodes.call("c9")
    assert (kept.recalled["block"], kept.recalled["episodes"]) == (None, [{"id": "ep_2"}])
    assert kept.prompt_token_ids is kept.completion_token_ids is kept.sampler_logprobs is None
    assert kept.not_learnable_reason == "erased"
    assert home.files_with(PLANTED) == []
