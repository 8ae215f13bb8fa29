"""A chat as a prompt: its messages, and how the model's template is to write them."""

from collections.abc import Mapping
from typing import Any

from rtk.errors import RequestError
from rtk.serve.http.body import typed
from rtk.serve.http.chat import read_messages
from rtk.serve.http.fields import Ignored
from rtk.serve.protocol import Chat

CHAT_OPTIONS = ("chat_template_kwargs", "add_generation_prompt", "continue_final_message")
"""Fields that say how messages are written."""


def read_chat(values: Mapping[str, Any], ignored: Ignored) -> Chat:
    """The chat that a body asks about. Raises `RequestError` naming the field that cannot be used."""
    if "messages" not in values:
        raise RequestError("messages is missing: a chat is a list of messages", field="messages")
    messages = read_messages(values["messages"], ignored)
    options = typed(values, "chat_template_kwargs", dict, {})
    continues = typed(values, "continue_final_message", bool, False)
    opens = typed(values, "add_generation_prompt", bool, not continues)
    if continues and opens:
        problem = (
            "add_generation_prompt and continue_final_message: the answer is a new message or goes on with the last"
        )
        raise RequestError(f"{problem}; send one of them", field="continue_final_message")
    if "add_generation_prompt" in values:
        options = {**options, "add_generation_prompt": opens}
    return Chat(messages, options, continues)
