import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator

from memory.errors import InvalidRequestError
from memory.wire import parse_body, read_json


class Inner(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int = Field(ge=1)


class Outer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = "x"
    inner: list[Inner] = []

    @model_validator(mode="after")
    def _named(self) -> "Outer":
        if self.name == "bad":
            raise ValueError("that name is taken")
        return self


def test_good_body_becomes_its_model() -> None:
    assert parse_body(Outer, {"name": "y", "inner": [{"size": 2}]}) == Outer(
        name="y", inner=[Inner(size=2)]
    )


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"nam": "y"}, "nam", "nam: Extra inputs are not permitted; known keys: name, inner"),
        ({"inner": [{"size": 1}, {"size": 0}]}, "inner.1.size", "inner.1.size: Input should be"),
        ({"name": "bad"}, None, "that name is taken"),
        ([], None, "Input should be"),
    ],
)
def test_first_fault_names_its_place_and_reason(
    body: object, param: str | None, message: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_body(Outer, body)
    assert caught.value.param == param
    assert caught.value.message.startswith(message)


def test_prefix_says_which_part_was_read() -> None:
    with pytest.raises(InvalidRequestError, match=r"^line 3: name: "):
        parse_body(Outer, {"name": 7}, where="line 3: ")


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"7", b"null", b'{"a": NaN}', b"\xff"])
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="body"):
        read_json(raw)


def test_json_object_is_read() -> None:
    assert read_json(b'{"a": [1]}') == {"a": [1]}
