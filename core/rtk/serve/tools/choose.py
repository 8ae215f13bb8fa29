"""Which format a model writes calls in: its chat template says so, or whoever runs the server."""

from rtk.serve.tokenizer import Tokenizer
from rtk.serve.tools import hermes, mistral, objects, pythonic, qwen3_coder
from rtk.serve.tools.layout import Format

NAMES = ("hermes", "qwen3_coder", "llama3_json", "mistral", "pythonic", "json")
"""What may be chosen by name."""

_FORMATS = {
    one.name: one
    for one in (hermes.FORMAT, qwen3_coder.FORMAT, objects.LLAMA3, mistral.OLD, pythonic.FORMAT, objects.JSON)
}
_SIGNS = (
    ("mistral", {mistral.MARK}),
    ("none", {hermes.BEGIN, "<arg_key>"}),  # the same marks around another format
    ("qwen3_coder", {hermes.BEGIN, qwen3_coder.FUNCTION}),
    ("hermes", {hermes.BEGIN}),
    ("pythonic", {"func_name1("}),
    ("llama3_json", {objects.TAG}),
    ("llama3_json", {'"parameters": dictionary of argument name'}),
)
"""What stands in templates of each format, the surest first."""


def tool_format(tokenizer: Tokenizer, setting: str) -> Format | None:
    """How calls are written; None: in no way that is known. `setting` is one of `NAMES`, "auto" or "none"."""
    template = tokenizer.tool_template or ""
    if setting == "auto":
        setting = next((name for name, signs in _SIGNS if all(sign in template for sign in signs)), "none")
    if setting == "mistral" and mistral.ARGUMENTS in template:
        return mistral.NEW
    return _FORMATS.get(setting)
