import pytest

from tests.memory.erasing import Home


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path)
    yield home
    home.store.close()
