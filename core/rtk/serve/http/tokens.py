"""Text to token ids and back, without a model, in vLLM's shapes: /tokenize, /detokenize."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rtk.errors import RequestError
from rtk.serve.http.body import must_be, typed
from rtk.serve.http.chat import read_messages
from rtk.serve.http.endpoints import Endpoints
from rtk.serve.http.errors import json_response
from rtk.serve.http.fields import Ignored, Scope
from rtk.serve.protocol import Chat


class Tokens(Endpoints):
    """Handlers that ask the tokenizer alone."""

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize: what a prompt becomes, with `add_special_tokens` as for an answer where it is not given."""
        values, ignored = await self.read(request, Scope.TOKENIZE)
        self.check_model(values)
        special = typed(values, "add_special_tokens", bool, None)
        name, prompt = _prompt(values, ignored)
        with_strings = typed(values, "return_token_strs", bool, False)
        ids = await self.manager.tokenize(prompt, name=name, add_special_tokens=special)
        answer = {
            "count": len(ids),
            "max_model_len": self.manager.facts.context_length,
            "tokens": ids,
            "token_strs": [self.manager.tokenizer.piece(token) for token in ids] if with_strings else None,
        }
        return json_response(answer, headers=ignored.headers)

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize: the text of token ids, special ones by name."""
        values, ignored = await self.read(request, Scope.DETOKENIZE)
        self.check_model(values)
        if "tokens" not in values:
            raise RequestError("tokens is missing: send a list of token ids", field="tokens")
        text = await self.manager.detokenize(typed(values, "tokens", list, []))
        return json_response({"prompt": text}, headers=ignored.headers)


def _prompt(values: Mapping[str, Any], ignored: Ignored) -> tuple[str, str | Chat]:
    """What the client calls the prompt, and the prompt."""
    given = [name for name in ("prompt", "messages") if name in values]
    if len(given) != 1:
        problem = f"{' and '.join(given) or 'nothing'} given: send either prompt or messages"
        raise RequestError(problem, field="prompt")
    (name,) = given
    options = {**typed(values, "chat_template_kwargs", dict, {})}
    if "add_generation_prompt" in values:
        options["add_generation_prompt"] = typed(values, "add_generation_prompt", bool, True)
    if name == "messages":
        return name, Chat(read_messages(values[name], ignored), options)
    for unread in ("chat_template_kwargs", "add_generation_prompt"):
        if unread in values:
            ignored.note(unread)
    prompt = values[name]
    if not isinstance(prompt, str):
        raise must_be("a string", name, prompt)
    return name, prompt
