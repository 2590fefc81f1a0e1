import orjson

from memory import schema_doc
from tests.memory.test_call_rows import conversation, record


def test_the_page_is_what_the_code_says():
    written = schema_doc.FILE.read_text(encoding="utf-8")
    assert written == schema_doc.document(), "write it again: make schema"


async def test_the_query_on_the_page_returns_the_whole_conversation(store):
    calls = conversation(6)
    await record(store, *calls)
    for call in calls:
        found = store.database.read(schema_doc.CONVERSATION, {"call": call.id})
        wanted = [*call.request["messages"], call.message]
        assert [orjson.loads(row["message"]) for row in found] == wanted
