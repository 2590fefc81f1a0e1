"""What of an answer may go into the record, and whether it may teach.

Runs over each record on its way to the store; the client's answer has been sent as it is. A call's
token ids spell its text: where a secret was taken out of the text, the ids and their
log-probabilities go too, and the call says that it is ``redacted``. It does not know how secrets
are found, nor where records lie.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from memory.fences import ControlTokens
from memory.redaction import KINDS, Kind, PatternRedactor, PresidioRedactor, Redactor
from memory.types import Call, Episode, Feedback, Message

REDACTED = "redacted"  # a secret was taken out of the prompt or the answer
CONTROL_TOKENS = "control_tokens"  # a message from outside holds what would end or begin a turn
TENANT = "tenant"  # of a tenant that privacy.learn_from does not name
NAMES = frozenset({"user", "safety_identifier", "prompt_cache_key", "model"})
"""Fields of a request that name somebody or something and never reach the prompt."""


class PrivacyConfig(BaseModel):
    """Settings of ``[privacy]``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    redact: tuple[Kind, ...] = KINDS
    """What is taken out of requests, answers, tool arguments, errors, comments and corrections
    before they are stored, with a mark in its place. What the client gets is not changed. A call in
    which something was found keeps no token ids, as they spell it, and teaches nothing by itself;
    tasks made from its text hold the mark. All four by default: a record outlives what was meant
    when it was typed. The patterns are narrow, so that numbers in sums stay: in 100 tasks of each
    of 91 families of reasoning-gym they find one author's address and one office's telephone. A
    conversation that is continued by
    ``previous_response_id`` goes on from the record, marks included. Names that callers give
    (session, user) stay as they are, because one erases by them.
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
    their nature and always pass.
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

    def kept(self, episode: Episode, calls: Sequence[Call]) -> tuple[Episode, list[Call]]:
        """Return an episode and the calls of one answer, as they may be stored.

        The calls share one request. What nothing was found in is returned as it came.
        """
        request = calls[0].request
        words = "\n".join(_texts(request))
        clean = self._clean(request) if self._redactor.may_hold(words) else request
        reason = self._withheld(episode, request, words)
        in_prompt = clean is not request and _prompt(clean) != _prompt(request)
        kept = [self._kept(call, clean, reason, in_prompt=in_prompt) for call in calls]
        if clean is not request or episode.reference is not None:
            episode = dataclasses.replace(
                episode,
                task_text=self.text(episode.task_text),
                reference=self._clean(episode.reference),
            )
        if reason is not None and episode.withheld is None:
            episode = dataclasses.replace(episode, learn=False, withheld=reason)
        return episode, kept

    def feedback(self, feedback: Feedback) -> Feedback:
        """Return what a person said, as it may be stored."""
        return dataclasses.replace(
            feedback,
            comment=self._clean(feedback.comment),
            correction=self._clean(feedback.correction),
        )

    def text(self, text: str) -> str:
        """Return a text as it may be stored."""
        return self._redactor.redact(text)

    def sent(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages as the engine may see them: as many, of the same roles."""
        if self.config.control_tokens != "neutralise":
            return messages
        return self.control_tokens.neutralised(messages)

    def _kept(
        self, call: Call, request: Mapping[str, Any], reason: str | None, *, in_prompt: bool
    ) -> Call:
        message, error = call.message, self._clean(call.error)
        if message is not None and self._redactor.may_hold("\n".join(_texts(message))):
            message = self._clean(message)
        if in_prompt or message is not call.message:
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

    def _withheld(self, episode: Episode, request: Mapping[str, Any], words: str) -> str | None:
        """Say why an episode is kept from learning, whatever its caller says."""
        if episode.withheld is not None:
            return episode.withheld
        if episode.tenant is not None and episode.tenant not in self.config.learn_from:
            return TENANT
        looks = self.config.control_tokens != "pass" and self.control_tokens.occur_in(words)
        is_forged = looks and self.control_tokens.forged_in(request.get("messages") or ())
        return CONTROL_TOKENS if is_forged else None

    def _clean(self, value: Any) -> Any:
        """Redact every text inside a value; return the value itself where nothing was found."""
        if isinstance(value, str):
            found = self._redactor.redact(value)
            return value if found == value else found
        if isinstance(value, dict):
            clean = {key: self._clean(inner) for key, inner in value.items()}
            return clean if any(clean[key] is not value[key] for key in clean) else value
        if isinstance(value, list | tuple):
            items = [self._clean(inner) for inner in value]
            return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
        return value


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
