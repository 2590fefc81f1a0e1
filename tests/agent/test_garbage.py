import gc

from agent import garbage


def test_python_looks_rarely_for_a_while_and_then_as_before():
    before = gc.get_threshold()
    with garbage.looked_for_rarely():
        assert gc.get_threshold() == garbage.THRESHOLDS
        garbage.keep_what_is()
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
