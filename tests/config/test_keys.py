"""The one walk over the tree, and what is generated from it."""

import dataclasses
import enum
import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import AnyHttpUrl, BaseModel, Field, SecretStr

from rtk.config.keys import Key, KeyTable, as_text, nearest, spelling, walk
from rtk.config.models import Config
from rtk.config.tree import config_model
from rtk.plugin import Options, Plugin
from rtk.plugin.host import installed
from rtk.plugin.registry import Origin, Registered, Registry

KEYS = list(walk(config_model(installed())))


class Knobs(Options):
    weights: list[float] = Field([1.0], description="one for each")
    ratio: float = Field(0.5, ge=0, le=1)
    share: float | None = Field(None, gt=0, le=1)
    tempo: Literal["slow", "fast"] = "slow"
    label: str = ""
    folder: Path = Path("x")
    limit: int = Field(3, le=9)


@pytest.fixture
def knobs() -> dict[str, Key]:
    """The keys of a plugin that has every kind of option."""
    plugin = Plugin(kind="schedule", name="shortest-first", summary="s", target="m:C", options=Knobs)
    registry = Registry([Registered(plugin, Origin("e", "rtk-schedule-x", "1"))])
    paths = KeyTable(config_model(registry)).by_path
    return {path.rpartition(".")[2]: key for path, key in paths.items() if "shortest_first" in path}


@pytest.mark.parametrize("kind", ["path", "flag", "variable"])
def test_every_name_is_given_once(kind: str) -> None:
    names = Counter(name for key in KEYS if (name := getattr(key, kind)))
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.path)
def test_every_key_explains_itself(key: Key) -> None:
    assert key.description
    assert key.description[0].islower() or key.description.split()[0].isupper()


def test_every_key_of_the_runtime_has_a_flag_and_no_option_of_a_plugin_has_one() -> None:
    own = {key.path for key in walk(Config)}
    assert {key.path for key in KEYS if key.flag} == own


@pytest.mark.parametrize(
    ("path", "flag", "variable"),
    [
        ("model.path", "--model", "RTK_MODEL__PATH"),
        ("cache.disable", "--disable-cache", "RTK_CACHE__DISABLE"),
        ("cache.page_size", "--page-size", "RTK_CACHE__PAGE_SIZE"),
        ("eviction.policy", "--eviction", "RTK_EVICTION__POLICY"),
        ("schedule.policy", "--schedule", "RTK_SCHEDULE__POLICY"),
        ("attention.backend", "--attention", "RTK_ATTENTION__BACKEND"),
        ("eviction.slru.protect_after_hits", None, "RTK_EVICTION__SLRU__PROTECT_AFTER_HITS"),
    ],
)
def test_names_follow_from_the_path(path: str, flag: str | None, variable: str) -> None:
    key = KeyTable(config_model(installed())).by_path[path]
    assert (key.flag, key.variable) == (flag, variable)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.path)
def test_a_default_survives_being_written_as_text(key: Key) -> None:
    values = {key.path: key.parse(as_text(key.default))}
    section, _, rest = key.path.partition(".")
    tree = values[key.path]
    for part in reversed(rest.split(".")):
        tree = {part: tree}
    assert key.value(config_model(installed()).model_validate({section: tree})) == key.default


def test_a_dashed_plugin_name_becomes_underscores_in_keys(knobs: dict[str, Key]) -> None:
    assert knobs["ratio"].path == "schedule.shortest_first.ratio"
    assert knobs["ratio"].variable == "RTK_SCHEDULE__SHORTEST_FIRST__RATIO"


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("weights", "a JSON array"),
        ("ratio", "a number from 0 to 1"),
        ("share", "a number above 0 and up to 1, or null"),
        ("tempo", "one of slow, fast"),
        ("label", "text"),
        ("folder", "a path"),
        ("limit", "an integer up to 9"),
    ],
)
def test_what_a_key_takes_is_said_in_words(knobs: dict[str, Key], option: str, words: str) -> None:
    assert knobs[option].allowed == words


@pytest.mark.parametrize(
    ("path", "metavar"),
    [
        ("cache.page_size", "INTEGER"),
        ("cache.mem_fraction", "NUMBER"),
        ("model.dtype", "auto|float32|bfloat16|float16"),
        ("model.cache_dir", "PATH"),
        ("serve.host", "TEXT"),
        ("schedule.overlap", "true|false"),
    ],
)
def test_usage_lines_name_the_type(path: str, metavar: str) -> None:
    assert KeyTable(Config).by_path[path].metavar == metavar


def test_collections_are_written_as_json(knobs: dict[str, Key]) -> None:
    assert knobs["weights"].parse("[1, 2.5]") == [1, 2.5]
    assert as_text([1, 2.5]) == "[1, 2.5]"
    with pytest.raises(ValueError, match="Extra data"):
        knobs["weights"].parse("1, 2.5")


class Colour(enum.Enum):
    RED = "r"
    BLUE = "b"


class Part(BaseModel):
    size: int = 1
    parts: "list[Part]" = Field(default_factory=list)


@dataclasses.dataclass
class Login:
    token: SecretStr


class Unusual(Options):
    colour: Colour = Colour.RED
    level: Literal[1, 2, "top"] = 1
    names: Sequence[str] = ()
    shares: Mapping[str, float] = Field(default_factory=dict)
    few: Annotated[list[int], Field(max_length=2)] | None = None
    part: Part | None = None
    tags: str | list[str] = "x"
    login: Login | None = None
    word: str = Field("abc", min_length=2, max_length=4)
    code: str = Field("abc", min_length=2)
    below: float = Field(0.5, ge=0, lt=1)
    since: date = date(2026, 1, 31)
    gap: timedelta = timedelta(seconds=3)
    page: AnyHttpUrl | None = None
    anything: Any = None
    group: frozenset[str] = frozenset({"b", "a"})
    renamed: int = Field(1, alias="size")


@pytest.fixture
def unusual() -> dict[str, Key]:
    return {key.path: key for key in walk(Unusual)}


@pytest.mark.parametrize(
    ("option", "text", "value", "allowed"),
    [
        ("colour", "b", Colour.BLUE, "one of r, b"),
        ("level", "2", 2, "one of 1, 2, top"),
        ("level", "top", "top", "one of 1, 2, top"),
        ("names", '["a", "b"]', ["a", "b"], "a JSON array"),
        ("shares", '{"a": 0.5}', {"a": 0.5}, "a JSON object"),
        ("few", "[1, 2]", [1, 2], "a JSON array, or null"),
        ("part", '{"size": 2, "parts": []}', Part(size=2), "a JSON object, or null"),
        ("tags", "x y", "x y", "text, or a JSON array"),
        ("tags", '["x"]', ["x"], "text, or a JSON array"),
        ("word", "abcd", "abcd", "text of 2 to 4 characters"),
        ("code", "ab", "ab", "text of 2 characters or more"),
        ("below", "0.25", 0.25, "a number from 0 and below 1"),
        ("since", "2026-02-01", date(2026, 2, 1), "a date, such as 2026-01-31"),
        ("gap", "PT5S", timedelta(seconds=5), "a duration, such as PT30S"),
        ("page", "http://h/", AnyHttpUrl("http://h/"), "a URL, or null"),
        ("anything", "x", "x", "any value"),
        ("anything", "null", None, "any value"),
        ("size", "7", 7, "an integer"),
    ],
)
def test_options_of_every_kind_can_be_set_by_text(
    unusual: dict[str, Key], option: str, text: str, value: object, allowed: str
) -> None:
    key = unusual[option]
    options = Unusual.model_validate({option: key.parse(text)})
    assert functools.reduce(getattr, key.attributes, options) == value
    assert key.allowed == allowed
    assert Unusual.model_validate({option: key.parse(as_text(value))}) == options


def test_texts_are_the_same_in_every_process() -> None:
    assert as_text(Unusual().group) == '["a", "b"]'
    assert as_text({"x": [Colour.BLUE, frozenset({"b", "a"}), Part()]}) == (
        '{"x": ["b", ["a", "b"], {"size": 1, "parts": []}]}'
    )


def test_a_type_with_itself_inside_is_looked_at_once(unusual: dict[str, Key]) -> None:
    assert {path for path, key in unusual.items() if key.is_secret} == {"login"}


def test_null_is_a_value_only_where_it_is_allowed(knobs: dict[str, Key]) -> None:
    assert knobs["share"].parse("null") is None
    assert knobs["label"].parse("null") == "null"


@pytest.mark.parametrize("written", ["cache.page-size", "Cache.Page_Size", " cache.page_size "])
def test_a_path_has_one_spelling(written: str) -> None:
    assert spelling(written) == "cache.page_size"


@pytest.mark.parametrize(
    ("meant", "found"),
    [
        ("scheduling_polcy", "did you mean schedule.policy?"),
        ("cache.page_sise", "did you mean cache.page_size?"),
        ("page_size", "did you mean cache.page_size?"),
        ("max_running", "did you mean schedule.max_running?"),
        ("zzz", "see 'rtk config show'"),
    ],
)
def test_the_nearest_name_is_offered(meant: str, found: str) -> None:
    assert nearest(meant, [key.path for key in KEYS]) == found
