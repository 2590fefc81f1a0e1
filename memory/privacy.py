"""What of an answer may go into the record, and whether it may teach.

Runs over each record on its way to the store; the client's answer has been sent as it is. A call's
token ids spell its text: where a secret was taken out of the text, the ids and their
log-probabilities go too, and the call says that it is ``redacted``. It does not know how secrets
are found, nor where records lie.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from memory.errors import InvalidRequestError
from memory.fences import ControlTokens
from memory.redaction import MARK, PatternRedactor, PresidioRedactor, Redactor
from memory.secret_forms import KINDS, Kind
from memory.types import Call, Episode, Feedback, Grade, Message, TaskSpec

REDACTED = "redacted"  # a secret was taken out of the prompt or the answer
CONTROL_TOKENS = "control_tokens"  # a message from outside holds what would end or begin a turn
TENANT = "tenant"  # of a tenant that privacy.learn_from does not name
LONG = 100_000
"""Characters from which an answer's records are cleaned beside the event loop: about 10 ms."""
NAMES = frozenset({"user", "safety_identifier", "prompt_cache_key", "model"})
"""Fields of a request that name somebody or something and never reach the prompt."""


class PrivacyConfig(BaseModel):
    """Settings of ``[privacy]``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    redact: tuple[Kind, ...] = KINDS
    """What is taken out of requests, answers, tool arguments, errors, comments, corrections, tasks
    and answers in practice before they are stored, with a mark in its place. What the client gets
    is not changed. A call in which something was found keeps no token ids, as they spell it, and
    teaches nothing by itself; tasks made from its text hold the mark. What operators write
    (guidelines, rubrics, names of skills) is stored as it is. All four by default: a record
    outlives what was meant when it was typed. The patterns are narrow, so that numbers in sums
    stay: in 100 tasks of each of 91 families of reasoning-gym they find one author's address and
    one office's telephone. A conversation that is continued by ``previous_response_id`` goes on
    from the record, marks included. Names that callers give (session, user) stay as they are,
    because one erases by them.
    """
    engine: Literal["patterns", "presidio"] = "patterns"
    """What looks for personal data: patterns of this package (microseconds a request), or
    presidio-analyzer, which has to be installed and takes milliseconds of the same core that
    answers. Keys are found by patterns either way.
    """
    control_tokens: Literal["flag", "neutralise", "pass"] = "flag"
    """What becomes of a message of a user or a tool that holds a control token of chat templates
    (``<|im_end|>``), which the engine reads as the token itself, so that it can forge a turn.
    "flag": the model sees what was sent, as it would without Denizen, and the episode is marked and
    never learned from. "neutralise": the literal is broken by a space on its way to the engine, so
    that it stays text; the record keeps the client's own words, marked and not learned from, as its
    tokens are not theirs. "pass": nothing is looked at. Prompts of ``/v1/completions`` are raw by
    their nature and always pass. A given task that holds one is refused by "flag", as nothing may
    be learned from it; by "neutralise" it is kept and practised with the literal broken.
    """
    learn_from: tuple[str, ...] = ()
    """The tenants of ``[auth.tenants]`` whose episodes may teach, besides the default tenant.
    All tenants are answered by the same weights, so what one teaches, others may read off; so by
    default a named tenant is answered and recorded, and its episodes say "tenant" as the reason why
    they are not learned from.
    """


def redactor_of(config: PrivacyConfig, *, known: Iterable[str]) -> Redactor:
    """Return what finds secrets by the settings.

    Args:
        config: what to look for, and with what.
        known: keys of the service itself, which are found as they stand.

    Raises:
        ConfigError: presidio is wanted and not installed.
    """
    make = PresidioRedactor if config.engine == "presidio" else PatternRedactor
    return make(config.redact, known if "keys" in config.redact else ())


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """What is known of a request before there is an answer to it."""

    request: Mapping[str, Any]
    clean: Mapping[str, Any]  # as it may be stored; the request itself where nothing was found
    in_prompt: bool  # what was taken out reached the prompt
    is_forged: bool  # a message from outside holds what would end or begin a turn


class Privacy:
    """Decides over records before they are stored.

    Args:
        config: the settings.
        redactor: finds secrets; the settings' own by default.
        control_tokens: the literals that the engine's tokenizer reads as tokens.
    """

    def __init__(
        self,
        config: PrivacyConfig | None = None,
        *,
        redactor: Redactor | None = None,
        control_tokens: ControlTokens | None = None,
    ) -> None:
        self.config = config or PrivacyConfig()
        self.control_tokens = control_tokens or ControlTokens()
        self._redactor = redactor or redactor_of(self.config, known=())

    def checked(self, request: Mapping[str, Any]) -> Checked:
        """Look through a request, which may be done before it is answered."""
        words = "\n".join(texts_in(request))
        clean = self._clean(request) if self._redactor.may_hold(words) else request
        looks = self.config.control_tokens != "pass" and self.control_tokens.occur_in(words)
        return Checked(
            request=request,
            clean=clean,
            in_prompt=clean is not request and _prompt(clean) != _prompt(request),
            is_forged=looks and self.control_tokens.forged_in(request.get("messages") or ()),
        )

    def kept(
        self, episode: Episode, calls: Sequence[Call], checked: Checked | None = None
    ) -> tuple[Episode, list[Call]]:
        """Return an episode and the calls of one answer, as they may be stored.

        The calls share one request. What nothing was found in is returned as it came.

        Args:
            episode: where they belong.
            calls: one a choice.
            checked: their request, where it has been looked through.
        """
        if checked is None or checked.request is not calls[0].request:
            checked = self.checked(calls[0].request)
        reason = self._withheld(episode, checked)
        kept = [self._kept(call, checked, reason) for call in calls]
        if checked.clean is not checked.request or episode.reference is not None:
            episode = dataclasses.replace(
                episode,
                task_text=self.text(episode.task_text),
                reference=self._clean(episode.reference),
            )
        told = reason == TENANT and not episode.learn  # its caller, or an earlier call, said why
        if reason not in {None, episode.withheld} and not told:
            episode = dataclasses.replace(episode, learn=False, withheld=reason)
        return episode, kept

    def takes_long(self, *values: Any) -> bool:
        """Say whether values hold so much that others would wait while it is looked through."""
        return sum(len(text) for value in values for text in _texts(value)) > LONG

    def feedback(self, feedback: Feedback) -> Feedback:
        """Return what a person said, as it may be stored."""
        return dataclasses.replace(
            feedback,
            comment=self._clean(feedback.comment),
            correction=self._clean(feedback.correction),
        )

    def grade(self, grade: Grade) -> Grade:
        """Return a grade as it may be stored: its explanation may quote the answer."""
        told = (grade.explanation, grade.unscored_reason, grade.evidence)
        clean = explanation, unscored_reason, evidence = tuple(map(self._clean, told))
        if all(one is other for one, other in zip(clean, told, strict=True)):
            return grade
        return dataclasses.replace(
            grade, explanation=explanation, unscored_reason=unscored_reason, evidence=evidence
        )

    def task(self, task: TaskSpec) -> TaskSpec:
        """Return a task as it may be stored; the task itself where nothing has to change.

        Its messages, reference and what its grader reads are redacted, and control tokens in them
        are broken where the setting says so; its id and split are those that it came with.

        Raises:
            InvalidRequestError: it holds a control token in a user's message, and such may not
                teach ("flag"), for which alone there are tasks.
        """
        held = self.config.control_tokens
        is_forged = held != "pass" and self.control_tokens.forged_in(task.messages)
        if is_forged and held == "flag":
            raise InvalidRequestError(
                "a user's message holds a control token of chat templates, so that nothing may be"
                ' learned from it: take it out, or set privacy.control_tokens = "neutralise"',
                param="messages",
            )
        messages = self.control_tokens.neutralised(task.messages) if is_forged else task.messages
        told = (messages, task.reference, task.grader_config)
        clean = tuple(map(self._clean, told))
        if not is_forged and all(one is other for one, other in zip(clean, told, strict=True)):
            return task
        return dataclasses.replace(
            task, messages=tuple(clean[0]), reference=clean[1], grader_config=clean[2]
        )

    def text(self, text: str) -> str:
        """Return a text as it may be stored."""
        clean: str = self._clean(text)
        return clean

    def is_same(self, given: str | None, stored: str | None) -> bool:
        """Say whether a text is the one that a record holds, which may hold marks in its place.

        The marks of another process differ, so that two secrets of one kind count as equal.
        """
        if given is None or stored is None or given == stored:
            return given == stored
        one, other = (MARK.sub(r"[\1]", self.text(text)) for text in (given, stored))
        return one == other

    def sent(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages as the engine may see them: as many, of the same roles."""
        if self.config.control_tokens != "neutralise":
            return messages
        return self.control_tokens.neutralised(messages)

    def _kept(self, call: Call, checked: Checked, reason: str | None) -> Call:
        request, message, error = checked.clean, call.message, self._clean(call.error)
        if message is not None and self._redactor.may_hold("\n".join(texts_in(message))):
            message = self._clean(message)
        if checked.in_prompt or message is not call.message:
            return dataclasses.replace(
                call,
                request=request,
                message=message,
                error=error,
                prompt_token_ids=None,
                completion_token_ids=None,
                sampler_logprobs=None,
                withheld=REDACTED,
            )
        if request is call.request and error == call.error and reason is None:
            return call
        return dataclasses.replace(call, request=request, error=error, withheld=reason)

    def _withheld(self, episode: Episode, checked: Checked) -> str | None:
        """Say why an answer is kept from learning, whatever its caller says.

        Forged turns come first: a tenant's own episodes are recalled for it, and those never.
        """
        if checked.is_forged:
            return CONTROL_TOKENS
        if episode.withheld is not None:
            return episode.withheld
        is_strange = episode.tenant is not None and episode.tenant not in self.config.learn_from
        return TENANT if is_strange else None

    def _clean(self, value: Any) -> Any:
        """Redact every text inside a value; return the value itself where nothing was found."""
        if isinstance(value, str):
            inner = parsed(value)
            found = self._redactor.redact(value) if inner is None else self._json(value, inner)
            return value if found == value else found
        if isinstance(value, dict):
            clean = {key: self._clean(inner) for key, inner in value.items()}
            return clean if any(clean[key] is not value[key] for key in clean) else value
        if isinstance(value, list | tuple):
            items = [self._clean(inner) for inner in value]
            return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
        return value

    def _json(self, text: str, inner: dict[str, Any] | list[Any]) -> str:
        """Redact a text that is JSON, such as a tool call's arguments, so that it stays JSON.

        An escape may hide where a secret begins; and the name of a field what its value is, so that
        the whole is looked at as well.
        """
        try:
            clean = self._clean(inner)
        except RecursionError:
            clean = inner
        inside = text if clean is inner else _dumped(clean)
        found = self._redactor.redact(inside)
        return inside if parsed(found) is None else found


def parsed(text: str) -> dict[str, Any] | list[Any] | None:
    """Return what a text says that is a JSON object or list; None for any other text."""
    if text[:256].lstrip()[:1] not in {"{", "["}:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def _dumped(value: dict[str, Any] | list[Any]) -> str:
    """Return a value as JSON; with escapes where UTF-8 cannot spell it (half a surrogate pair)."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text inside a value, and what stands escaped in those that are JSON."""
    left = [value]
    while left:
        for text in _texts(left.pop()):
            yield text
            if "\\" in text and (inner := parsed(text)) is not None:
                left.append(inner)


def _texts(value: Any) -> Iterator[str]:
    """Yield every text inside a value; names of fields are none."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            left.extend(one.values())
        elif isinstance(one, list | tuple):
            left.extend(one)


def _prompt(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a request can reach the prompt."""
    return {name: value for name, value in request.items() if name not in NAMES}
