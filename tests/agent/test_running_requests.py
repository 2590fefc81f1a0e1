"""Requests that are being answered."""

from agent.placement import Asked
from agent.running_requests import RunningRequests
from tests.agent.harness import user


def test_running_requests_that_never_end_do_not_pile_up(harness):
    running = RunningRequests(max_places=2)
    places = [
        harness.placement.place(Asked(messages=[user(f"{n}")], session=f"s{n}")) for n in range(4)
    ]
    for place in places:
        running.add(place)
    assert [running.in_session(f"s{n}") is not None for n in range(4)] == [False, False, True, True]
    running.discard(places[3])
    assert running.attempt(places[3].keys) is None
