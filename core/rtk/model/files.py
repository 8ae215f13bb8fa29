"""Reads the small files of a checkpoint, or says in one line what is wrong with one."""

import json
from pathlib import Path
from typing import Any

from rtk.errors import ModelError, one_line


def read_text(path: Path) -> str:
    """The text of a file. Raises `ModelError`."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{path} is no UTF-8 text: {error.reason} at {error.start}") from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; an empty one where there is no file. Raises `ModelError`."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is no JSON: {one_line(error)}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path} must hold a JSON object, and holds a {type(found).__name__}")
    return found
