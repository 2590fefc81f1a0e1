"""The check that looks whether an answer keeps to instructions on its form.

The constraints are those that a program can verify, as in IFEval (arXiv:2311.07911); the value is
the share that is kept, IFEval's instruction-level accuracy, so that an answer which keeps two of
three is worth more than one which keeps none.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from graders.checks import Check, Score, UnscoredError, read_config, shown
from graders.languages import KNOWN, language_of
from graders.types import Answer


def _known_language(code: str) -> str:
    if code not in KNOWN:
        raise ValueError(f"no language {code!r} is known; there are {', '.join(sorted(KNOWN))}")
    return code


Word = Annotated[str, Field(min_length=1, max_length=200)]
Bound = Annotated[int, Field(ge=0)]


class InstructionsConfig(BaseModel):
    """``grader_config`` of ``instructions``: at least one constraint."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    min_words: Bound | None = None
    """At least so many words."""
    max_words: Bound | None = None
    """At most so many."""
    min_characters: Bound | None = None
    """At least so many characters, white space at either end left out."""
    max_characters: Bound | None = None
    """At most so many."""
    case: Literal["lower", "upper"] | None = None
    """All letters are small, or capitals."""
    required: list[Word] = Field(default_factory=list)
    """Words or phrases that stand in it; case does not count."""
    forbidden: list[Word] = Field(default_factory=list)
    """Words or phrases that do not."""
    language: Annotated[str, AfterValidator(_known_language)] | None = None
    """Its language, such as "de"."""
    format: Literal["json", "bullets", "numbered", "one_line", "no_markdown"] | None = None
    """JSON; a list with a mark, or a number, at each line; one line; or no Markdown."""
    starts_with: Word | None = None
    """What it begins with, to the letter."""
    ends_with: Word | None = None
    """What it ends with, to the letter."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_dump(exclude_defaults=True):
            raise ValueError("give at least one constraint")
        for unit in ("words", "characters"):
            least, most = getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")
            if least is not None and most is not None and least > most:
                raise ValueError(f"min_{unit} is above max_{unit}: no answer could keep to both")
        return self


def score_instructions(answer: Answer) -> Score:
    """Score the share of constraints that the answer keeps.

    An empty answer keeps none: it says nothing. Unscored where the language cannot be told.
    """
    config = read_config(InstructionsConfig, answer.config)
    text = answer.text.strip()
    kept = {name: bool(text) and is_kept for name, is_kept in _verdicts(config, text)}
    broken = [name for name, is_kept in kept.items() if not is_kept]
    said = f"{len(kept) - len(broken)} of {len(kept)} kept"
    if broken:
        said += f"; not {', '.join(map(shown, broken))}"
    return Score(
        value=(len(kept) - len(broken)) / len(kept), explanation=said, evidence={"broken": broken}
    )


def _verdicts(config: InstructionsConfig, text: str) -> Iterator[tuple[str, bool]]:
    """Yield each constraint's name and whether it is kept."""
    for unit, num in (("words", len(text.split())), ("characters", len(text))):
        least, most = getattr(config, f"min_{unit}"), getattr(config, f"max_{unit}")
        if least is not None:
            yield f"at least {least} {unit} ({num})", num >= least
        if most is not None:
            yield f"at most {most} {unit} ({num})", num <= most
    if config.case is not None:
        letters = [letter for letter in text if letter.isalpha()]
        wanted = str.lower if config.case == "lower" else str.upper
        yield f"{config.case} case", all(letter == wanted(letter) for letter in letters)
    for phrase in config.required:
        yield f"with {phrase!r}", _has(phrase, text)
    for phrase in config.forbidden:
        yield f"without {phrase!r}", not _has(phrase, text)
    if config.starts_with is not None:
        yield f"begins with {config.starts_with!r}", text.startswith(config.starts_with)
    if config.ends_with is not None:
        yield f"ends with {config.ends_with!r}", text.endswith(config.ends_with)
    if config.format is not None:
        yield f"format {config.format}", _FORMATS[config.format](text)
    if config.language is not None:
        yield f"language {config.language}", _is_written_in(config.language, text)


def _has(phrase: str, text: str) -> bool:
    """Whether a phrase stands in a text as whole words."""
    pattern = rf"(?<!\w){re.escape(' '.join(phrase.split()))}(?!\w)"
    return bool(re.search(pattern, " ".join(text.split()), re.IGNORECASE))


def _is_written_in(language: str, text: str) -> bool:
    found = language_of(text) if text else language
    if found is None:
        raise UnscoredError(f"cannot tell the language of {shown(text)!r}")
    return found == language


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _is_list(mark: str) -> Callable[[str], bool]:
    pattern = re.compile(mark)

    def is_list(text: str) -> bool:
        lines = [line for line in text.splitlines() if line.strip()]
        items = [line for line in lines if not line.startswith((" ", "\t"))]
        return len(items) > 1 and all(pattern.match(line) for line in items)

    return is_list


_MARKDOWN = re.compile(r"^\s*(?:#{1,6} |[-*+] |\d+\. |> |```)|\*\*|__|`|\]\(", re.MULTILINE)
_FORMATS: Mapping[str, Callable[[str], bool]] = {
    "json": _is_json,
    "bullets": _is_list(r"[-*•+] \S"),
    "numbered": _is_list(r"\d+[.)] \S"),
    "one_line": lambda text: len(text.splitlines()) == 1,
    "no_markdown": lambda text: not _MARKDOWN.search(text),
}


def _check_config(config: Mapping[str, Any], _reference: str | None) -> None:
    read_config(InstructionsConfig, config)


INSTRUCTIONS = Check(name="instructions", score=score_instructions, validate=_check_config)
