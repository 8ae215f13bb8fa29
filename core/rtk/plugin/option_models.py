"""What a model of options must be like, so that files, variables, the schema and the lock can hold what it says.

One that is not would stop commands of people who have the plugin installed and do not use it.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from rtk.errors import one_line
from rtk.plugin.info import Options

NAME = r"[a-z][a-z0-9_]*"


def options_problem(model: type[Options]) -> str:
    """What is wrong with a model, as it follows "has options that"; empty if nothing is."""
    if not model.model_config.get("frozen") or model.model_config.get("extra") != "forbid":
        return "are not frozen, or take unknown keys; leave both as rtk.plugin.Options has it"
    try:
        options = model()  # nobody who does not use the plugin is asked for any
    except ValueError as error:
        return f"cannot be left out: {one_line(error)}; give each a default"
    try:
        written = options.model_dump(mode="json", by_alias=True, warnings="none")
    except ValueError as error:
        return f"cannot be written as JSON: {one_line(error)}; give each a type that can"
    for name in _misnamed(model, written):
        return (
            f"cannot be set: {name!r}; name each in small letters, digits and underscores, write it by the name "
            "that it is read by, and exclude none"
        )
    try:
        model.model_validate(
            {field.alias or name: getattr(options, name) for name, field in model.model_fields.items()}
        )
    except ValueError as error:
        return f"do not take their own defaults: {one_line(error)}"
    return ""


def _misnamed(model: type[BaseModel], written: Any) -> Iterator[str]:
    for name, field in model.model_fields.items():
        key = field.alias or name
        if not re.fullmatch(NAME, key) or not isinstance(written, Mapping) or key not in written:
            yield key
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _misnamed(field.annotation, written[key])
