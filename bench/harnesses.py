"""Four kinds of agent programs as scripts, and a model that plays along.

No script names its session in any way: each sends chat messages and goes on with the answers. It
does not know who answers, nor how well the sessions are told apart.
"""

import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
Ask: TypeAlias = Callable[..., Awaitable[Message]]
"""Sends messages, and tools if there are any; returns the assistant's message."""

WORDS = """a build test file line error user value list page cache queue time index query parser
graph token model letter river stone garden window paper market train engine sugar winter summer
music doctor teacher number answer question reason result change history summary plan finds reads
writes opens closes moves breaks needs shows keeps loses starts ends returns slowly quickly never
always often again before after without between because while red green""".split()  # noqa: SIM905
OPENERS = (
    "Hello there, can you help me with my homework today?",
    "What is the best way to learn a new language?",
    "Please explain how a hash table works in simple words.",
    "hi",
)
EDITOR, LEAD, SCOUT = "You edit code.", "You lead a team of agents.", "You look things up."
RUN = {"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}
DELEGATE = {"type": "function", "function": {"name": "agent", "parameters": {"type": "object"}}}
COMMANDS = ("ls", "git status", "make test", "cat README.md", "grep -rn TODO src")


class Model:
    """Answers as the scripts need it, in other words each time."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def __call__(self, _: str, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the text of an answer, tool calls in their markup."""
        system = str(messages[0]["content"])
        num_results = sum(message["role"] == "tool" for message in messages)
        if system.startswith(EDITOR) and num_results < 6:
            return words(self._rng, 8) + _call("run", command=self._rng.choice(COMMANDS))
        if system.startswith(SCOUT) and num_results < 2:
            return _call("run", command=f"grep {words(self._rng, 2)}")
        if system.startswith(LEAD) and num_results < 2:
            return _call("agent", prompt=words(self._rng, 18))
        return words(self._rng, self._rng.randint(15, 40)) + self._rng.choice(("", "", "", "\n"))


def words(rng: random.Random, count: int) -> str:
    """Return a sentence that means nothing."""
    return " ".join(rng.choices(WORDS, k=count))


def _call(name: str, **arguments: str) -> str:
    call = f'{{"name": "{name}", "arguments": {json.dumps(arguments)}}}'
    return f"<tool_call>{call}</tool_call>"


def user(text: str) -> Message:
    """Return a user's message."""
    return {"role": "user", "content": text}


async def linear_chat(ask: Ask, rng: random.Random) -> None:
    """A person who chats; some begin alike, and some clients write the time into the prompt."""
    opener = rng.choice(OPENERS) if rng.random() < 0.4 else words(rng, 12)
    has_clock = rng.random() < 0.4
    history = [user(opener)]
    for minute in range(rng.randint(3, 6)):
        clock = f"You chat with people. It is 9:{minute:02d}."
        head = [{"role": "system", "content": clock}] if has_clock else []
        answer = await ask([*head, *history])
        answer["content"] = answer["content"].strip()
        history += [answer, user(rng.choice(("Go on.", "Why?", words(rng, 9))))]


async def tool_loop(ask: Ask, rng: random.Random) -> None:
    """A coding agent that calls a tool until it is done."""
    history = [{"role": "system", "content": EDITOR}, user(f"Fix this: {words(rng, 15)}")]
    await _loop(ask, rng, history)


async def _loop(ask: Ask, rng: random.Random, history: list[Message]) -> Message:
    """Ask and run tools until the answer calls none; return it."""
    while True:
        answer = await ask(history, tools=[RUN])
        history.append(answer)
        if not answer.get("tool_calls"):
            return answer
        for call in answer["tool_calls"]:
            content = rng.choice(("done", "no such file", words(rng, 20)))
            history.append({"role": "tool", "tool_call_id": call["id"], "content": content})


async def compacting_chat(ask: Ask, rng: random.Random) -> None:
    """A chat with a title beside it, whose history is replaced by a summary or cut short."""
    system = {"role": "system", "content": f"You keep notes on {words(rng, 3)}."}
    history = [system, user(words(rng, 14))]
    for turn in range(4):
        answer = await ask(history)
        if turn == 0:
            chat = f"USER: {history[1]['content']}\nASSISTANT: {answer['content']}"
            await ask(
                [user(f"Write a title of five words for this chat.\n<chat>\n{chat}\n</chat>")]
            )
        history += [answer, user(words(rng, 8))]
    history = await _compact(ask, rng, history)
    for _ in range(3):
        answer = await ask(history)
        history += [answer, user(words(rng, 8))]


async def _compact(ask: Ask, rng: random.Random, history: list[Message]) -> list[Message]:
    """Return a shorter history, made in one of three ways."""
    system, last = history[0], history[-1]
    way = rng.choice(("side call", "same conversation", "dropped"))
    if way == "dropped":
        return [*history[:2], *history[-3:]]
    if way == "same conversation":
        summary = await ask([*history[:-1], user("Sum up this conversation for yourself.")])
    else:
        lines = [f"{m['role']}: {m['content']}" for m in history[1:]]
        summary = await ask([user("Summarise the conversation.\n" + "\n".join(lines))])
    return [system, user(f"The story so far:\n{summary['content']}\n\n{last['content']}")]


async def sub_agents(ask: Ask, rng: random.Random) -> None:
    """An agent that hands work to others; answers get lost now and then and are asked for again."""
    history = [{"role": "system", "content": LEAD}, user(f"Find out: {words(rng, 12)}")]
    while True:
        answer = await ask(history, tools=[DELEGATE])
        if rng.random() < 0.15:  # the answer was lost on its way
            answer = await ask(history, tools=[DELEGATE])
        history.append(answer)
        if not answer.get("tool_calls"):
            return
        for call in answer["tool_calls"]:
            prompt = json.loads(call["function"]["arguments"])["prompt"]
            task = [{"role": "system", "content": SCOUT}, user(prompt)]
            if rng.random() < 0.3:
                await ask(task, tools=[RUN])
            found = await _loop(ask, rng, task)
            result = {"role": "tool", "tool_call_id": call["id"], "content": found["content"]}
            history.append(result)


SHAPES: Mapping[str, Callable[[Ask, random.Random], Awaitable[None]]] = {
    "linear_chat": linear_chat,
    "tool_loop": tool_loop,
    "compaction": compacting_chat,
    "sub_agents": sub_agents,
}
LINEAR = ("linear_chat", "tool_loop")
