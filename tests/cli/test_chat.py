"""`rtk chat`: over an engine in this process, over a server, and in a terminal."""

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from fake_scheduler import STOP, Gate, refusal, saying
from http_harness import Served, assert_idle
from tiny_tokenizer import IM_END, IM_START, byte_level, ids_of
from typer.testing import CliRunner, Result

from rtk.cache.key import unpack
from rtk.config.load import config_from
from rtk.engine import Engine
from rtk.errors import RequestError, harmless
from rtk.schedule.budget import Limits
from rtk.schedule.messages import NewRequest
from rtk.serve import runtime
from rtk.serve.computing import Computing
from rtk.serve.runtime import Runtime
from rtk_cli import chat as module
from rtk_cli.answering import Piece
from rtk_cli.chat import Talk
from rtk_cli.main import app

TOKENIZER = byte_level()


def ctrl_c(seen: threading.Event) -> None:
    """As a terminal sends it, which wakes the main thread up; once more where that was about to go to sleep."""
    while True:
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        if seen.wait(3):
            break


def run(*args: str, lines: str, color: bool = False) -> Result:
    result = CliRunner().invoke(app, ["chat", *args], input=lines, color=color)
    assert "Traceback" not in result.output
    return result


# --- commands, over a scripted answerer -------------------------------------------------------------------------


class Scripted:
    """Answers with these pieces, one list a turn, the last one ever again; what is an exception is raised."""

    def __init__(self, *answers: list) -> None:
        self.answers = list(answers)
        self.asked: list = []
        self.closed = 0

    def answer(self, messages) -> Iterator[Piece]:
        self.asked.append([(message["role"], message["content"]) for message in messages])
        try:
            for piece in self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            self.closed += 1


OK = [Piece(content="ok", prompt_tokens=8, tokens=1), Piece(prompt_tokens=8, tokens=2, reason="stop")]


class Clock:
    """A second passes with each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def talk(monkeypatch, capsys):
    """Has a conversation of these lines; answers what was printed. A line that is an exception is raised."""

    def talk(answerer, *lines, system=None, terminal=True):
        monkeypatch.setattr(module, "_on_terminal", lambda: terminal)
        left, prompts = list(lines), []

        def typed(prompt=""):
            prompts.append(prompt)
            line = left.pop(0) if left else EOFError()
            if isinstance(line, BaseException):
                raise line
            return line

        monkeypatch.setattr("builtins.input", typed)
        Talk(answerer, system, Clock()).run()
        out, err = capsys.readouterr()
        return out, err.splitlines(), prompts

    return talk


def test_a_conversation_grows(talk):
    scripted = Scripted(OK)
    out, err, prompts = talk(scripted, "one", "  two ", system="be brief")
    assert out == "ok\nok\n"
    line = "[0 of 8 prompt tokens cached, first token after 1.00 s, 2 tokens at 1.0 tok/s]"
    assert err == ["/help lists the commands, Ctrl-D ends.", line, line, ""]
    first = [("system", "be brief"), ("user", "one")]
    assert scripted.asked == [first, [*first, ("assistant", "ok"), ("user", "two")]]
    assert prompts == ["> "] * 3


@pytest.mark.parametrize(
    ("pieces", "line"),
    [
        (
            [Piece("", "a", 1200, 1100, 5), Piece("", "", 1200, 1100, 9, "length")],
            "[1,100 of 1,200 prompt tokens cached, first token after 1.00 s, 9 tokens at 4.0 tok/s, "
            "cut: no more tokens are allowed]",
        ),
        (
            [Piece("", "a", 3, 0, 1), Piece("", "", 3, 0, 1, "abort")],
            "[0 of 3 prompt tokens cached, first token after 1.00 s, 1 token, abort]",
        ),
        ([Piece("", "", 3, 0, 0, "abort")], "[abort]"),
        ([], "[no answer]"),
        (
            # the counts of other servers come at the end, behind the reason
            [Piece(content="a"), Piece(content="b"), Piece(reason="stop"), Piece("", "", 3, 1, 2)],
            "[1 of 3 prompt tokens cached, first token after 1.00 s, 2 tokens at 0.7 tok/s]",
        ),
    ],
)  # fmt: skip
def test_how_an_answer_came(talk, pieces, line):
    assert talk(Scripted(pieces), "one")[1][1] == line


def test_ctrl_c_ends_an_answer_and_keeps_the_chat(talk):
    cut = [Piece(content="Well, ", prompt_tokens=4, tokens=2), KeyboardInterrupt()]
    scripted = Scripted(cut, [KeyboardInterrupt()], OK)
    out, err, _ = talk(scripted, "one", "two", "three")
    assert out == "Well, \nok\n"
    assert err[1:3] == ["[0 of 4 prompt tokens cached, first token after 1.00 s, 2 tokens, stopped]", "[stopped]"]
    # what came stays, and a question that nothing came of does not
    assert scripted.asked[2] == [("user", "one"), ("assistant", "Well, "), ("user", "three")]
    assert scripted.closed == 3


def test_ctrl_c_at_the_prompt_is_the_end(talk):
    scripted = Scripted(OK)
    talk(scripted, "one", KeyboardInterrupt(), "two")
    assert len(scripted.asked) == 1


def test_a_refused_message_was_not_said(talk):
    scripted = Scripted([RequestError("too long")], [Piece(content="x", tokens=1), RequestError("it broke")], OK)
    out, err, _ = talk(scripted, "one", "two", "three")
    assert out == "x\nok\n"
    assert err[1:3] == ["error: too long", "error: it broke"]
    assert scripted.asked[2] == [("user", "three")]
    with pytest.raises(RequestError, match="too long"):
        talk(Scripted([RequestError("too long")]), "one", terminal=False)


def test_messages_of_several_lines(talk):
    scripted = Scripted(OK)
    lines = ['"""def f():', "    return 1  ", "", '"""', '""" one """', '"""', "/quit", 'x"""', '"""never ended', "..."]
    prompts = talk(scripted, *lines)[2]
    said = [asked[-1][1] for asked in scripted.asked]
    assert said == ["def f():\n    return 1  ", " one ", "/quit\nx"]
    assert prompts[:5] == ["> ", "... ", "... ", "... ", "> "]


def test_without_a_terminal_nothing_is_prompted(talk):
    out, err, prompts = talk(Scripted(OK), "one", "", terminal=False)
    assert (out, len(err), prompts) == ("ok\n", 1, ["", "", ""])


def test_commands(talk, tmp_path):
    scripted, file = Scripted(OK), tmp_path / "said.json"
    (tmp_path / "theirs").write_text("mine")
    lines = [
        "/system  be kind ",
        "one",
        f"/save {file}",
        "two",
        f"/save {file}",
        "/stats",
        "/reset",
        "three",
        "/system",
    ]
    lines += ["four", "/no such", "//help", "/save", f"/save {tmp_path / 'theirs'}", f"/save {tmp_path}/no/file"]
    _, err, _ = talk(scripted, *lines, "/help", "/quit", "five")
    kind = ("system", "be kind")
    one, two = [("user", "one"), ("assistant", "ok")], [("user", "two"), ("assistant", "ok")]
    assert scripted.asked[:4] == [
        [kind, ("user", "one")],
        [kind, *one, ("user", "two")],
        [kind, ("user", "three")],
        [("user", "three"), ("assistant", "ok"), ("user", "four")],
    ]
    assert scripted.asked[4][-1] == ("user", "/help")
    assert len(scripted.asked) == 5
    saved = json.loads(file.read_text())
    assert [(m["role"], m["content"]) for m in saved["messages"]] == [kind, *one, *two]
    assert (tmp_path / "theirs").read_text() == "mine"
    told = [line for line in err if not line.startswith("[")]
    assert told[1:13] == [
        "the model is told this first",
        f"wrote {file}",
        f"wrote {file}",
        "answers: 2; prompt tokens: 16, cached: 0 (0%); tokens: 4 at 1.0 tok/s",
        "the conversation is forgotten",
        "the model is told nothing first",
        "error: there is no /no; /help lists the commands",
        "error: /save needs the name of a file",
        f"error: {tmp_path / 'theirs'} is there already; choose another name",
        f"error: {tmp_path}/no/file cannot be written: No such file or directory",
        *module.HELP.splitlines()[:2],
    ]


def test_stats_of_nothing(talk):
    assert talk(Scripted(OK), "/stats")[1][1] == "answers: 0; prompt tokens: 0, cached: 0; tokens: 0"


def test_no_answer_steers_the_terminal(talk):
    evil = "a\x1b]0;title\x07\x1b[2J\r\x9b31m\u202eb\tc\n\u00e9\u200d\u3000\U0001f642"
    scripted = Scripted([Piece(thought=evil, tokens=1), Piece(content=evil, tokens=2)])
    out, err, _ = talk(scripted, "one", "two")
    clean = "a]0;title[2J31mb\tc\n\u00e9\u200d\u3000\U0001f642"
    assert out == f"{clean}\n" * 2
    assert "\n".join(err).count(clean) == 2
    assert scripted.asked[1][1] == ("assistant", evil)  # the model reads what it wrote
    assert harmless("".join(map(chr, [*range(0x20), 0x7F, 0x80, 0x9F, 0xD800, 0x2066, 0xA0]))) == "\t\n\xa0"


def test_thoughts_are_dim_and_not_part_of_the_answer(monkeypatch):
    pieces = [Piece(thought="hm"), Piece(thought=", so"), Piece(content="ok", tokens=3, reason="stop")]
    scripted = Scripted(pieces)
    monkeypatch.setattr(module, "Remote", lambda *_: scripted)
    result = run("--url", "http://x", lines="one\ntwo\n", color=True)
    assert result.stdout == "ok\nok\n"
    assert result.stderr.startswith("\x1b[2mhm\x1b[0m\x1b[2m, so\x1b[0m\n\n[0 of 0")
    assert scripted.asked[1] == [("user", "one"), ("assistant", "ok"), ("user", "two")]


# --- over an engine ---------------------------------------------------------------------------------------------


def answering(text: str):
    """A script that answers each chat with this text."""
    ids = [*ids_of(TOKENIZER, *text), IM_END]
    opening = len("assistant\n")

    def script(history):
        said = len(history) - 1 - max(i for i, token in enumerate(history) if token == IM_START) - opening
        return ids[said % len(ids)]

    return script


@pytest.fixture
def engine(monkeypatch):
    """Has the command build engines over a script; answers the list of them."""
    built = []

    def over(script):
        class Scripted(Engine):
            def __init__(self, config, *, fetching):
                limits = Limits(
                    context_length=256, pool_tokens=512, page_size=1, max_running=4, max_prefill_tokens=4096
                )
                from rtk.plugin.testing.scripted import ScriptedExecutor  # not above: each test would run twice

                executor = ScriptedExecutor(script, slots=512, page_size=1, max_running=4, context_length=256)
                computing = Computing(
                    executor, limits, TOKENIZER.size, frozenset({IM_END}), {}, "scripted", overlap=True
                )
                config = config_from({"model.path": "scripted"})
                super().__init__(runtime=Runtime(config, runtime.build_policies(config), computing, TOKENIZER))
                built.append(self)

            def close(self):
                if not self._closed:
                    self.end = self.stats() | {"in_flight": self._manager.in_flight}
                super().close()

        monkeypatch.setattr("rtk.engine.Engine", Scripted)
        return built

    return over


def test_later_turns_come_from_the_cache(engine):
    built = engine(answering("fine"))
    result = run("--max-tokens", "3", "--temperature", "0", lines="hi\nso\n")
    assert (result.exit_code, result.stdout) == (0, "fin\nfin\n")
    first, second = result.stderr.splitlines()
    # <|im_start|> user \n hi <|im_end|> \n <|im_start|> assistant \n
    prompt = 1 + 5 + 2 + 1 + 1 + 1 + 10
    assert first.startswith(f"[0 of {prompt} prompt tokens cached, first token after ")
    assert second.startswith(f"[{prompt + 2} of {2 * prompt + 3 + 2} prompt tokens cached, ")
    assert first.endswith(", cut: no more tokens are allowed]")
    assert (built[0].end["running"], built[0].end["in_flight"]) == (0, 0)


@pytest.mark.parametrize("tokens", [0, 5])
def test_ctrl_c_ends_the_request_in_the_engine(engine, monkeypatch, tokens):
    """Before the first token, which the model computes, and behind a few."""
    aborting, aborted, printed, asked = threading.Event(), threading.Event(), threading.Event(), []
    answer = answering("x" * 200)
    abort = Engine.abort

    def noted(self, rid):
        aborting.set()
        try:
            return abort(self, rid)
        finally:
            aborted.set()

    def script(history):
        asked.append(len(history))
        if len(asked) == tokens + 1:
            assert not tokens or printed.wait(10)
            ctrl_c(aborting)
            assert aborted.wait(10)
        return answer(history)

    monkeypatch.setattr(Engine, "abort", noted)
    monkeypatch.setattr(module, "harmless", lambda text: (text and printed.set(), text)[1])
    built = engine(script)
    result = run("--max-tokens", "200", lines="hi\n")
    assert result.exit_code == 0
    assert set(result.stdout) == ({"x", "\n"} if tokens else set())
    assert result.stderr.endswith(", stopped]\n" if tokens else "[stopped]\n")
    assert len(asked) <= tokens + 2  # one more step may have been under way
    assert (built[0].end["running"], built[0].end["waiting"], built[0].end["in_flight"]) == (0, 0, 0)


# --- over a server ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def http() -> Iterator[Served]:
    with Served(saying(*ids_of(TOKENIZER, *"fine"))) as http:
        yield http


def test_a_server(http):
    flags = "--seed", "5", "--top-k", "3", "--top-p", "0.5", "--stop", "zz", "--max-tokens", "9"
    result = run("--url", f"{http.base}/", "--system", "be brief", *flags, "--no-think", lines="hi\nso\n")
    assert (result.exit_code, result.stdout) == (0, "fine\nfine\n")
    line, _ = result.stderr.splitlines()
    assert line.startswith("[2 of 39 prompt tokens cached, first token after ")
    assert " 4 tokens" in line
    first, second = http.fake.of(NewRequest)[-2:]
    params = first.params
    assert (params.seed, params.top_k, params.top_p, params.max_new_tokens) == (5, 3, 0.5, 9)
    assert list(params.stop) == ["zz"]
    assert TOKENIZER.decode(http.fake.prompts()[-1]).endswith("user\nhi\nassistant\nfine\nuser\nso\nassistant\n")
    assert second.tokens.startswith(first.tokens)


def test_a_server_needs_no_torch(http):
    look = "print({'torch', 'transformers'} & {*sys.modules})"
    code = f"import sys; from rtk_cli.main import main\ntry: main()\nfinally: {look}"
    command = [sys.executable, "-c", code, "chat", "--url", http.base]
    result = subprocess.run(command, input="hi\n", capture_output=True, text=True, check=True)
    assert result.stdout == "fine\nset()\n"


def test_what_a_server_refuses(http, monkeypatch):
    monkeypatch.setattr(http.fake, "script", lambda new: iter([refusal(new, status=503, code="busy", problem="later")]))
    result = run("--url", http.base, lines="one\n")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "error: later (busy)\n")


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (200, b'{"data": [{"id": "x"}]}', " broke off its answer"),
        (200, b"data: {}\n", " answers 200 in a form that rtk does not know; name another server with --url"),
        (200, b"data: {\n", " answers 200 in a form that rtk does not know; name another server with --url"),
        (200, b'data: {"error": {"message": "it broke", "code": "b"}}\n', "it broke (b)"),
        (401, b'{"error": {"message": "no key", "code": "x"}}', "no key (x); rtk takes it from --api-key"),
        (500, b"oh", " answers 500 in a form that rtk does not know; name another server with --url"),
    ],
)
def test_answers_of_other_servers(httpd, status, body, problem):
    httpd.status, httpd.body = status, body
    result = run("--url", httpd.base, "--api-key", "k3y", lines="one\n")
    url = httpd.base if problem.startswith(" ") else ""
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"error: {url}{problem}\n")
    assert httpd.keys == ["Bearer k3y"] * 2


@pytest.fixture
def httpd():
    """A server that knows a model, and answers chats with whatever a test says."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(200, b'{"data": [{"id": "x"}]}')

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(server.status, server.body)

        def answer(self, status, body):
            server.keys.append(self.headers["Authorization"])
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.base, server.keys = f"http://127.0.0.1:{server.server_port}", []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    with server:
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--url", "http://127.0.0.1:9"], "no answer from http://127.0.0.1:9: Connection refused; start a server"),
        (["--url", "127.0.0.1:9"], "--url 127.0.0.1:9: must begin with http:// or https://"),
        (["--url", "http://x", "--api-key", "a b"], "--api-key: must be printable ASCII characters without spaces"),
        (["--api-key", "a"], "--api-key: only for a server; name one with --url"),
        (["--url", "http://x", "--page-size", "4"], "--page-size has no effect with --url: the server has its own"),
        (["--url", "http://x", "--set", "cache.page_size=4"], "--set cache.page_size has no effect with --url"),
    ],
)
def test_what_cannot_be_begun(args, message):
    result = run(*args, lines="")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.count("\n") == 1


# --- in a terminal ----------------------------------------------------------------------------------------------


def test_a_terminal(http, monkeypatch):
    """The command on a terminal of its own: keys are typed, and what stands on the screen is read."""

    def script(new):
        prompt = TOKENIZER.decode(unpack(new.tokens))
        if "never" not in prompt:
            yield tuple(ids_of(TOKENIZER, *"fine"))
        yield STOP if "quick" in prompt else Gate()

    monkeypatch.setattr(http.fake, "script", script)
    keys, screen = pty.openpty()
    code = "from rtk_cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "chat", "--url", http.base],
        stdin=screen, stdout=screen, stderr=screen, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        env={**os.environ, "TERM": "dumb"},
    )  # fmt: skip
    os.close(screen)
    seen = ""

    def until(text):
        nonlocal seen
        while text not in seen:
            seen += os.read(keys, 4096).decode()
        before, _, seen = seen.partition(text)
        return before

    try:
        until("Ctrl-D ends.\r\n")
        until("> ")
        os.write(keys, b"slow\n")
        until("fine")
        os.write(keys, b"\x03")
        until(", stopped]\r\n> ")
        os.write(keys, b"/reset\nnever\n")
        http.fake.wait_for(lambda fake: any("never" in TOKENIZER.decode(prompt) for prompt in fake.prompts()))
        os.write(keys, b"\x03")
        until("[stopped]\r\n> ")
        os.write(keys, b"quick\n")
        until("fine\r\n[")
        until("]\r\n> ")
        os.write(keys, b"\x04")
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(keys)
    assert_idle(http.manager, http.fake)
