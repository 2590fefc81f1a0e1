"""Calls as rows of ``calls``: what a call repeats of an earlier one stands in the file once.

In a conversation each request holds all that was said before. Such a call is based on another of
its episode: ``calls.base_id`` names it, and ``calls.shared`` says what is taken from it ::

    {"tokens": 812, "messages": 12, "fields": ["tools"], "answer": ["content"]}

The first 812 prompt tokens are those of the base's prompt and completion; the first 12 messages
are those of the base's request and its answer; ``tools`` stands as null in the row and is equal to
the base's; the first message of the row's own is the base's answer as the client gives it back, of
which ``content``, null in the row too, is equal. What is restored is equal to what came, byte by
byte. Short values stay where they are, so that they can be asked for in SQL.

A base precedes what is based on it in the order of rows, and the database refuses to commit without
it. It does not know which call is based on which.
"""

import dataclasses
import itertools
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson

from memory import rows, tokens
from memory.errors import StoreError
from memory.types import Call, Message

Row: TypeAlias = dict[str, Any]

LONG = 256
"""Bytes from which a value is left out where the base has it: naming it takes up to 50."""
_TOKEN_FIELDS = frozenset({"prompt_token_ids", "completion_token_ids", "sampler_logprobs"})
_OWN_FIELDS = _TOKEN_FIELDS | {"request", "message"}
TEXT_COLUMNS = ", ".join(
    field.name for field in dataclasses.fields(Call) if field.name not in _TOKEN_FIELDS
)
"""What ``decode_texts`` needs of a row, beside ``base_id`` and ``shared``."""


@dataclass(kw_only=True, slots=True)
class Said:
    """What a call says that a later one may repeat, in the spelling of the file."""

    prompt: bytes  # token ids
    completion: bytes
    messages: list[bytes]  # JSON, one each
    answer: bytes | None  # JSON
    fields: dict[str, bytes]  # the other long values of the request, as JSON

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes; what it shares with others counts in full."""
        texts = itertools.chain(self.messages, self.fields.values())
        return len(self.prompt) + len(self.completion) + sum(map(len, texts))


class NewestSaid:
    """What the newest calls said, so that the next ones are compared without reading the file.

    Bounded by the sum of the sizes. An entry is put in when its row has been written; since that
    write may still be undone with its transaction, whoever takes an entry has to see that the row
    is there.
    """

    def __init__(self, max_bytes: int = 64 * 2**20) -> None:
        self._max_bytes = max_bytes
        self._said: OrderedDict[str, Said] = OrderedDict()
        self._num_bytes = 0

    def get(self, call_id: str) -> Said | None:
        """Return what a call said, where it is among the newest."""
        said = self._said.get(call_id)
        if said is not None:
            self._said.move_to_end(call_id)
        return said

    def put(self, call_id: str, said: Said) -> None:
        """Remember what a call said; the oldest make room."""
        if (known := self._said.pop(call_id, None)) is not None:
            self._num_bytes -= known.size_bytes
        self._said[call_id] = said
        self._num_bytes += said.size_bytes
        while self._num_bytes > self._max_bytes and len(self._said) > 1:
            _, oldest = self._said.popitem(last=False)
            self._num_bytes -= oldest.size_bytes


def encode(call: Call, base_id: str | None = None, base: Said | None = None) -> tuple[Row, Said]:
    """Return a call as a row, and what it said.

    Args:
        call: the record.
        base_id: a call of the same episode whose row is in the file.
        base: what that call said; without, the row stands for itself.
    """
    said, shared = _said(call), _Shared()
    if base is not None:
        shared = _Shared.between(call, said, base)
    row = rows.encode(call, skip=_OWN_FIELDS)
    row["request"] = _request(call.request, said, shared)
    row["message"] = None if said.answer is None else said.answer.decode()
    row["prompt_token_ids"] = None
    if call.prompt_token_ids is not None:
        row["prompt_token_ids"] = said.prompt[shared.tokens * tokens.ID_BYTES :]
    row["completion_token_ids"] = None if call.completion_token_ids is None else said.completion
    row["sampler_logprobs"] = tokens.encode_logprobs(call.sampler_logprobs)
    row["base_id"] = base_id if shared else None
    row["shared"] = shared.encode() if shared else None
    return row, said


@dataclass(kw_only=True, slots=True)
class _Shared:
    """What a call takes from the one that it is based on."""

    tokens: int = 0
    messages: int = 0
    fields: Sequence[str] = ()
    answer: Sequence[str] = ()

    @classmethod
    def between(cls, call: Call, said: Said, base: Said) -> "_Shared":
        """Compare what two calls said; nothing is shared where it would not pay."""
        theirs = base.messages if base.answer is None else [*base.messages, base.answer]
        messages = _num_equal(said.messages, theirs)
        said.messages[:messages] = theirs[:messages]  # one copy in memory too
        fields = [name for name, text in said.fields.items() if base.fields.get(name) == text]
        said.fields.update({name: base.fields[name] for name in fields})
        answer: Sequence[str] = ()
        if messages == len(base.messages) < len(said.messages) and base.answer is not None:
            answer = _equal_values(call.request["messages"][messages], base.answer)
        shared = cls(
            tokens=tokens.num_shared(said.prompt, base.prompt + base.completion),
            messages=messages,
            fields=fields,
            answer=answer,
        )
        saved = shared.tokens * tokens.ID_BYTES + sum(map(len, said.messages[:messages]))
        return shared if fields or answer or saved >= LONG else cls()

    @classmethod
    def decode(cls, text: str) -> "_Shared":
        return cls(**orjson.loads(text))

    def encode(self) -> str:
        found = {field: getattr(self, field) for field in self.__slots__}
        return orjson.dumps({field: value for field, value in found.items() if value}).decode()

    def __bool__(self) -> bool:
        return bool(self.tokens or self.messages or self.fields or self.answer)


def _said(call: Call) -> Said:
    request = call.request
    return Said(
        prompt=tokens.encode_ids(call.prompt_token_ids) or b"",
        completion=tokens.encode_ids(call.completion_token_ids) or b"",
        messages=[orjson.dumps(message) for message in _messages(request)],
        answer=None if call.message is None else orjson.dumps(call.message),
        fields={
            name: text
            for name, value in request.items()
            if name != "messages"
            and isinstance(value, str | list | dict)
            and len(text := orjson.dumps(value)) >= LONG
        },
    )


def _messages(request: Mapping[str, Any]) -> Sequence[Any]:
    messages = request.get("messages")
    return messages if isinstance(messages, list | tuple) else ()


def _num_equal(ours: Sequence[bytes], theirs: Sequence[bytes]) -> int:
    number = 0
    for our, their in zip(ours, theirs, strict=False):
        if our != their:
            break
        number += 1
    return number


def _equal_values(message: Any, answer_json: bytes) -> list[str]:
    """Name the long values that a message has in common with an answer."""
    answer = orjson.loads(answer_json)
    if not isinstance(message, dict) or message.get("role") != answer.get("role"):
        return []
    return [
        name
        for name, value in message.items()
        if value == answer.get(name)
        and len(text := orjson.dumps(value)) >= LONG
        and text == orjson.dumps(answer[name])
    ]


def _request(request: Mapping[str, Any], said: Said, shared: _Shared) -> str:
    """Spell a request without what is shared, from the JSON that was made of its parts."""
    parts: dict[str, Any] = {
        name: orjson.Fragment(said.fields[name]) if name in said.fields else value
        for name, value in request.items()
    }
    parts |= dict.fromkeys(shared.fields)
    if said.messages:
        own = [orjson.Fragment(text) for text in said.messages[shared.messages :]]
        if shared.answer:
            message = request["messages"][shared.messages]
            own[0] = orjson.Fragment(orjson.dumps(message | dict.fromkeys(shared.answer)))
        parts["messages"] = own
    return orjson.dumps(parts).decode()


@dataclass(kw_only=True, slots=True)
class _Restored:
    """A row with what it shares put back."""

    row: Row
    prompt: bytes | None
    request: dict[str, Any]
    message: Message | None

    @classmethod
    def of(cls, row: Row, bases: Mapping[str, "_Restored"]) -> "_Restored":
        prompt, request = row.get("prompt_token_ids"), orjson.loads(row["request"])
        message = None if row["message"] is None else orjson.loads(row["message"])
        if row["base_id"] is not None:
            base = bases.get(row["base_id"])
            if base is None:
                raise StoreError(
                    f"call {row['id']!r} is based on {row['base_id']!r}, which is not in the file: "
                    "restore the database from a backup"
                )
            shared = _Shared.decode(row["shared"])
            if shared.tokens and "prompt_token_ids" in row:
                told = (base.prompt or b"") + (base.row["completion_token_ids"] or b"")
                prompt = told[: shared.tokens * tokens.ID_BYTES] + (prompt or b"")
            _put_back(request, shared, base)
        return cls(row=row, prompt=prompt, request=request, message=message)

    def texts(self) -> Call:
        """Return the record without its tokens."""
        plain = rows.decode(Call, self.row | dict.fromkeys(_OWN_FIELDS))
        return dataclasses.replace(plain, request=self.request, message=self.message)

    def call(self) -> Call:
        """Return the record."""
        return dataclasses.replace(
            self.texts(),
            prompt_token_ids=tokens.decode_ids(self.prompt),
            completion_token_ids=tokens.decode_ids(self.row["completion_token_ids"]),
            sampler_logprobs=tokens.decode_logprobs(self.row["sampler_logprobs"]),
        )

    def said(self) -> Said:
        """Return what a later call may repeat."""
        return _said(self.call())


def _put_back(request: dict[str, Any], shared: _Shared, base: _Restored) -> None:
    """Restore what a request shares; messages are the base's own objects, not copies."""
    request.update({name: base.request[name] for name in shared.fields})
    if shared.answer and base.message is not None:
        answer = base.message
        request["messages"][0].update({name: answer[name] for name in shared.answer})
    if shared.messages:
        told = base.request.get("messages") or []
        if shared.messages > len(told):
            told = [*told, base.message]
        request["messages"] = told[: shared.messages] + request["messages"]


def decode(found: Sequence[Row]) -> Iterator[Call]:
    """Yield rows as calls.

    Args:
        found: in the order of the file; the base of each precedes it among them.

    Raises:
        StoreError: a base is not among them.
    """
    for restored in _restore(found):
        yield restored.call()


def decode_texts(found: Sequence[Row]) -> Iterator[Call]:
    """Yield rows as calls whose tokens and log-probabilities are None, whatever was recorded.

    Args:
        found: as for ``decode``; the columns of tokens may be missing.

    Raises:
        StoreError: a base is not among them.
    """
    for restored in _restore(found):
        yield restored.texts()


def newest_said(chain: Sequence[Row]) -> Said:
    """Return what the last of a chain of rows said, each based on the one before."""
    *_, last = _restore(chain)
    return last.said()


def decode_newest(chain: Sequence[Row]) -> Call:
    """Return the last of a chain of rows, each based on the one before."""
    *_, last = _restore(chain)
    return last.call()


def _restore(found: Sequence[Row]) -> Iterator[_Restored]:
    needed_until = {row["base_id"]: position for position, row in enumerate(found)}
    bases: dict[str, _Restored] = {}
    for position, row in enumerate(found):
        restored = _Restored.of(row, bases)
        if needed_until.get(row["base_id"]) == position:
            bases.pop(row["base_id"], None)  # so that a chain takes the memory of two calls
        if row["id"] in needed_until:
            bases[row["id"]] = restored
        yield restored
