"""The JSON Schema of configuration files: what editors complete and check by."""

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core import core_schema

from rtk.config.keys import KeyTable
from rtk.config.models import PLUGIN_SECTIONS
from rtk.config.moved import MARKER, VERSION
from rtk.config.tree import config_model
from rtk.config.words import resolved
from rtk.plugin.registry import Registry

NULL = {"const": "null", "description": "null, for TOML, which has none"}


def json_schema(registry: Registry) -> dict[str, Any]:
    """The schema of this installation: with the options, and as choices the names, of the plugins that are here."""
    model = config_model(registry)
    schema = model.model_json_schema(schema_generator=_Lenient)
    table = KeyTable(model)
    for key in table:
        leaf = _leaf(schema, key.path)
        options = leaf.get("anyOf", [NULL])
        if key.nullable and NULL not in options:  # plugins may share a class of options
            options.append(NULL)
        if key.is_secret:
            leaf.pop("default", None)
    for name, section in PLUGIN_SECTIONS.items():
        leaf = _leaf(schema, f"{name}.{section.choice}")
        leaf.get("items", leaf)["enum"] = [*section.words, *registry.names(section.kind)]
    for path in table.sections:
        resolved(schema, _leaf(schema, path))["type"] = ["object", "null"]  # YAML's empty sections are null
    versions = {"type": "integer", "minimum": 1, "maximum": VERSION, "description": "version of the file's keys"}
    schema["properties"] = {MARKER: versions, **schema["properties"]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Configuration of rtk"}


def _leaf(schema: dict[str, Any], path: str) -> dict[str, Any]:
    node = schema
    for part in path.split("."):
        node = resolved(schema, node)["properties"][part]
    return node


class _Lenient(GenerateJsonSchema):
    """Options of a type that JSON Schema has no word for are anything; defaults that JSON cannot hold are left out."""

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        """Nobody who prints a schema can do anything about it."""

    def handle_invalid_for_json_schema(self, schema: core_schema.CoreSchema, error_info: str) -> JsonSchemaValue:
        return {}
