"""What is refused in a plugin's options, so that nobody else's commands stumble over it."""

import enum
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr, computed_field, field_serializer

from rtk.plugin import Options
from rtk.plugin.option_models import options_problem


class Open(Options):
    model_config = ConfigDict(extra="allow")


class Thawed(Options):
    model_config = ConfigDict(frozen=False)


class Required(Options):
    url: str


class WrongDefault(Options):
    size: int = Field(default=0, ge=1)


class ReadOtherwise(Options):
    size: int = Field(default=1, validation_alias=AliasChoices("size", "length"))


class ReadByAnotherName(Options):
    size: int = Field(default=1, validation_alias="length")


class WrittenByAnotherName(Options):
    size: int = Field(default=1, serialization_alias="length")


class Excluded(Options):
    size: int = Field(default=1, exclude=True)


class Capitals(Options):
    maxSize: int = 1  # noqa: N815 - what is refused


class Dashes(Options):
    size: int = Field(default=1, alias="max-size")


class Part(BaseModel):
    size: int = Field(default=1, alias="max.size")


class Nested(Options):
    part: Part = Part()


class Code(Options):
    rank: Callable[[int], int] = abs


class FailsToWrite(Options):
    size: int = 1

    @field_serializer("size")
    def _written(self, size: int) -> int:
        raise RuntimeError("no")


NAMES = "name each in small letters, digits and underscores"


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (Open, "are not frozen, or take unknown keys; leave both as rtk.plugin.Options has it"),
        (Thawed, "are not frozen, or take unknown keys; leave both as rtk.plugin.Options has it"),
        (Required, "cannot be left out: ValidationError: 1 validation error for Required url Field required"),
        (WrongDefault, "do not take their own defaults: ValidationError: 1 validation error for WrongDefault size "),
        (
            ReadByAnotherName,
            "do not take their own defaults: ValidationError: 1 validation error for ReadByAnotherName",
        ),
        (WrittenByAnotherName, f"cannot be set: 'size'; {NAMES}"),
        (Excluded, f"cannot be set: 'size'; {NAMES}"),
        (Capitals, f"cannot be set: 'maxSize'; {NAMES}"),
        (Dashes, f"cannot be set: 'max-size'; {NAMES}"),
        (Nested, f"cannot be set: 'max.size'; {NAMES}"),
        (Code, "cannot be written as JSON: PydanticSerializationError: Unable to serialize unknown type: "),
        (FailsToWrite, "cannot be written as JSON: PydanticSerializationError: Error calling function `_written`: "),
    ],
)
def test_options_that_rtk_cannot_hold_are_refused(model: type[Options], problem: str) -> None:
    assert options_problem(model).startswith(problem)


class Colour(enum.Enum):
    RED = "red"


class Tree(BaseModel):
    kids: "list[Tree]" = Field(default_factory=list)


class Usual(Options):
    lambda_: float = Field(default=0.5, alias="lambda")
    token: SecretStr = SecretStr("s3cret")
    colour: Colour = Colour.RED
    names: frozenset[str] = frozenset({"a"})
    tree: Tree = Tree()
    anything: Any = None
    made: Callable[[], int] | None = None
    limit: float = float("inf")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def half(self) -> float:
        return self.lambda_ / 2


@pytest.mark.parametrize("model", [Options, Usual, ReadOtherwise])
def test_others_are_not(model: type[Options]) -> None:
    assert options_problem(model) == ""
