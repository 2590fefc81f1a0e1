"""``denizen key``."""

import json

from typer.testing import CliRunner

from agent.access import AuthConfig
from console.cli import app
from memory.tenants import Caller


def run(*arguments: str, input: str | None = None):
    return CliRunner().invoke(app, ["key", *arguments], input=input)


def test_a_new_key_is_known_by_its_hash():
    made = json.loads(run("--json").stdout)
    assert len(made["key"]) > 40
    assert made["key"] != json.loads(run("--json").stdout)["key"]
    auth = AuthConfig(admin_keys=(made["hash"],))
    assert auth.caller_of(made["key"].encode()) == Caller()


def test_a_key_that_is_there_is_hashed_and_not_repeated():
    done = run("--stdin", "--json", input="my own key\n")
    assert "my own key" not in done.stdout
    auth = AuthConfig(user_keys=(json.loads(done.stdout)["hash"],))
    assert auth.caller_of(b"my own key") == Caller(is_admin=False)
    assert run("--stdin", input="\n").exit_code == 1
