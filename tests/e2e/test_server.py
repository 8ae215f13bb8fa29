"""`rtk serve` as a process, over the demo model, with the official client."""

import json
import re
import signal
import subprocess
import sys
import threading
import urllib.request

import pytest
from openai import OpenAI

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
NAME = "smollm2-135m-instruct"


class Server:
    """The command in a process; lines of its log are read until it is ready."""

    def __init__(self, *flags):
        script = "from rtk_cli.main import main; main()"
        command = [sys.executable, "-c", script, "serve", "--port", "0", "--pool-tokens", "4096", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.log = []
        for line in self.process.stderr:
            self.log.append(line)
            if match := re.search(r"ready on (http://\S+) as", line):
                self.url = match[1]
                break
        else:
            raise AssertionError("".join(self.log))
        self._drain = threading.Thread(target=lambda: self.log.extend(self.process.stderr))
        self._drain.start()
        self.client = OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def info(self):
        with urllib.request.urlopen(f"{self.url}/server_info", timeout=30) as answer:
            return json.load(answer)

    def stop(self, number):
        self.process.send_signal(number)
        code = self.process.wait(30)
        self.client.close()
        self._drain.join(10)
        self.process.stderr.close()
        return code


@pytest.fixture(scope="module")
def server(model_folder):
    one = Server("--page-size", "16", "--eviction", "slru", "--schedule", "hrrn", "--drain-s", "1")
    yield one
    if one.process.poll() is None:
        one.stop(signal.SIGTERM)


def test_start_up_prints_the_arithmetic(server):
    text = "".join(server.log)
    assert "KV pool 4,096 tokens: 4,096 tokens asked for, + a page of 16, x 46,080 B" in text
    assert server.info()["config"]["eviction"]["policy"] == "slru"


def test_chat_with_and_without_stream(server):
    whole = server.client.chat.completions.create(model=NAME, messages=CAPITAL, temperature=0)
    assert "Paris" in whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "stop"
    chunks = list(
        server.client.chat.completions.create(
            model=NAME, messages=CAPITAL, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    usage = chunks[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)
    assert usage.prompt_tokens_details.cached_tokens == (usage.prompt_tokens - 1) // 16 * 16


def test_completions_of_text_ids_and_batches(server):
    complete = server.client.completions.create
    settings = {"model": NAME, "max_tokens": 8, "temperature": 0, "extra_body": {"ignore_eos": True}}
    one = complete(prompt="The tide comes in", **settings).choices[0].text
    both = complete(prompt=["The tide comes in", "Once upon a time"], **settings)
    assert [choice.index for choice in both.choices] == [0, 1]
    assert both.choices[0].text == one
    assert both.usage.completion_tokens == 16
    ids = complete(prompt=[504, 28, 260], **settings)
    assert ids.usage.prompt_tokens == 3


def test_bad_input_disturbs_nobody(server):
    import openai

    answers = {}

    def good():
        answers["good"] = server.client.completions.create(
            model=NAME, prompt="One, two, three,", max_tokens=48, temperature=0, extra_body={"ignore_eos": True}
        )

    good()
    alone = answers.pop("good").choices[0].text
    thread = threading.Thread(target=good)
    thread.start()
    for body in ({"prompt": [49152]}, {"prompt": ""}, {"temperature": -1}, {"max_tokens": 10**6}, {"stop": ""}):
        with pytest.raises(openai.BadRequestError):
            server.client.completions.create(**{"model": NAME, "prompt": "x", **body})
    thread.join(120)
    assert answers["good"].choices[0].text == alone
    stats = server.info()["stats"]
    assert stats["free"] + stats["evictable"] == stats["pool"] == 4096
    assert stats["invariant_violations"] == stats["plugin_faults"] == 0


def test_sigterm_tells_who_still_waits_and_ends_cleanly(server):
    import openai

    stream = server.client.completions.create(
        model=NAME, prompt="On and on", max_tokens=3000, temperature=0, stream=True, extra_body={"ignore_eos": True}
    )
    first = next(iter(stream))
    problems = []

    def read():
        try:
            list(stream)
        except openai.APIError as error:
            problems.append(str(error))

    assert first.choices[0].text
    reader = threading.Thread(target=read)
    reader.start()
    assert server.stop(signal.SIGTERM) == 0
    reader.join(20)
    assert problems == ["the engine shut down"]
    assert "Traceback" not in "".join(server.log)
    assert "leaked" not in "".join(server.log)  # so say extension modules whose objects outlive the interpreter
