"""Text to token ids and back, without a model, in vLLM's shapes: /tokenize, /detokenize."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rtk.errors import RequestError
from rtk.serve.http.body import must_be, typed
from rtk.serve.http.chat_prompt import CHAT_OPTIONS, read_chat
from rtk.serve.http.endpoints import Endpoints
from rtk.serve.http.errors import json_response
from rtk.serve.http.fields import Ignored, Scope
from rtk.serve.http.tools import template_tools
from rtk.serve.protocol import Chat


class Tokens(Endpoints):
    """Handlers that ask the tokenizer alone."""

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize: what a prompt becomes, with `add_special_tokens` as for an answer where it is not given."""
        values, ignored = await self.read(request, Scope.TOKENIZE)
        self.check_model(values)
        special = typed(values, "add_special_tokens", bool, None)
        prompt: str | Chat
        if _is_chat(values):
            name, chat = "messages", read_chat(values, ignored)
            prompt = replace(chat, options={**chat.options, **template_tools(values, ignored, self.manager.tokenizer)})
        else:
            name, prompt = "prompt", _text(values, ignored)
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


def _is_chat(values: Mapping[str, Any]) -> bool:
    """Whether a chat is given, and not a text."""
    given = [name for name in ("prompt", "messages") if name in values]
    if len(given) != 1:
        problem = f"{' and '.join(given) or 'nothing'} given: send either prompt or messages"
        raise RequestError(problem, field="prompt")
    return given == ["messages"]


def _text(values: Mapping[str, Any], ignored: Ignored) -> str:
    for option in (*CHAT_OPTIONS, "tools"):
        if option in values:
            ignored.note(option)
    prompt = values["prompt"]
    if not isinstance(prompt, str):
        raise must_be("a string", "prompt", prompt)
    return prompt
