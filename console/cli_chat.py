"""``denizen chat``: one question, or a conversation in which answers can be rated.

Knows the chat and feedback routes. The conversation lives here only as long as the command runs;
its record is the service's.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from console.commands import JsonFlag, connect
from console.errors import ServiceError
from console.render import harmless, on_terminal, print_json

if TYPE_CHECKING:
    from console.client import ServiceClient

HELP = (
    "/good, /bad [what it should have said]: rate the last answer · /new: forget this conversation"
    " · /quit"
)


def chat(
    text: Annotated[
        str | None, typer.Argument(help="One message; without it, a conversation.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="denizen (live), denizen@base or a version: denizen@000007.")
    ] = "denizen",
    session: Annotated[
        str | None, typer.Option(help="Name the session that this belongs to.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Bound the answer.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Talk to the agent; reads one message from standard input when that is a pipe."""
    if text is None and not sys.stdin.isatty():
        text = sys.stdin.read().strip()
    if not text and (as_json or text is not None):
        raise typer.BadParameter("give the message: denizen chat 'What is 6 times 7?'")
    with connect() as client:
        talk = Conversation(client=client, model=model, session=session, max_tokens=max_tokens)
        if not text:
            talk.run()
        elif as_json:
            print_json(talk.ask_at_once(text))
        else:
            talk.ask(text)


@dataclass(kw_only=True, slots=True)
class Conversation:
    """The messages so far, and the id of the last answer, which is what gets rated."""

    client: "ServiceClient"
    model: str
    session: str | None
    max_tokens: int | None
    messages: list[dict[str, str]] = field(default_factory=list)
    completion_id: str | None = None

    def ask(self, text: str) -> None:
        """Send one message and print the answer as it comes; a failed question is forgotten."""
        messages = [*self.messages, {"role": "user", "content": text}]
        stream = self.client.stream_chat(self._body(messages), session=self.session)
        try:
            for piece in stream:
                print(harmless(piece), end="", flush=True)
        finally:
            print()
        self.messages = [*messages, {"role": "assistant", "content": stream.text}]
        self.completion_id = stream.completion_id
        if on_terminal():
            typer.secho(f"{stream.adapter} · {stream.completion_id}", dim=True)

    def ask_at_once(self, text: str) -> Any:
        """Send one message and return the completion as the service sent it."""
        body = self._body([*self.messages, {"role": "user", "content": text}])
        return self.client.complete(body, session=self.session)

    def run(self) -> None:
        """Read lines and answer them until the end of input; errors do not end it."""
        import readline  # noqa: F401 - gives input() its line editing and history

        typer.secho(HELP, dim=True)
        while True:
            try:
                line = input("> ").strip()
                if line in ("/quit", "/exit"):
                    return
                self._act(line)
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print()
            except ServiceError as error:
                typer.echo(f"denizen: {error.message}", err=True)

    def _act(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        actions: dict[str, Callable[[], None]] = {
            "/good": lambda: self._rate(True, None),
            "/bad": lambda: self._rate(False, rest.strip() or None),
            "/new": self._forget,
        }
        if word in actions:
            actions[word]()
        elif word.startswith("/"):
            typer.secho(HELP, dim=True)
        elif line:
            self.ask(line)

    def _rate(self, value: bool, correction: str | None) -> None:
        if self.completion_id is None:
            typer.echo("There is no answer to rate yet.")
            return
        body = {"completion_id": self.completion_id, "value": value, "correction": correction}
        self.client.post("feedback", body=body)
        typer.secho("Noted.", dim=True)

    def _forget(self) -> None:
        self.messages, self.completion_id = [], None

    def _body(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        bound = {} if self.max_tokens is None else {"max_tokens": self.max_tokens}
        return {"model": self.model, "messages": messages, **bound}
