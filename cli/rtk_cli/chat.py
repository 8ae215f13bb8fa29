"""`rtk chat`: a conversation in the terminal, with what each answer took from the prefix cache and how fast it came."""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rtk.errors import ConfigError, RequestError, RtkError, harmless
from rtk_cli.answering import Answerer, Local, Piece, Remote
from rtk_cli.bars import transfer_bars
from rtk_cli.options import with_config
from rtk_cli.server import Server

if TYPE_CHECKING:
    from rtk.config.load import LoadedConfig

QUOTES = '"""'
HEED_S = 0.2
"""How late Ctrl-C may be heeded."""
HELP = f"""\
/help          this text
/reset         forget the conversation, but not /system
/system TEXT   what the model is told first; without TEXT: nothing
/save FILE     write the conversation as JSON, the body of a request
/stats         tokens and speed of all answers so far
/quit          end; so do Ctrl-D, and Ctrl-C at the prompt
Ctrl-C ends an answer that is being written, which stays in the conversation as far as it came.
{QUOTES} begins and ends a message of several lines. A message that begins with a slash is written with two."""


@with_config(lambda key: key.section != "serve")
def chat(
    loaded: "LoadedConfig",
    url: Annotated[
        str | None, typer.Option(help="ask a running server; default: run the model in this process")
    ] = None,
    api_key: Annotated[str | None, typer.Option(help="a key that the server at --url knows")] = None,
    system: Annotated[str | None, typer.Option(help="what the model is told first")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="longest answer in tokens; default: what fits")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 takes the likeliest token; default: the model's own, like the next two")
    ] = None,
    top_p: Annotated[float | None, typer.Option(help="keep the likeliest tokens up to this probability")] = None,
    top_k: Annotated[int | None, typer.Option(help="keep this many of the likeliest tokens; -1: all")] = None,
    seed: Annotated[int | None, typer.Option(help="the same seed gives the same answers; default: drawn")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="text that ends an answer; repeatable")] = None,
    think: Annotated[
        bool | None, typer.Option("--think/--no-think", help="for models that can do both; default: the model's own")
    ] = None,
) -> None:
    """Talk with a model in the terminal. Answers go to standard output, everything else to standard error."""
    sampling = {
        "max_new_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "seed": seed,
        "stop": stop or None,
    }
    params = {name: value for name, value in sampling.items() if value is not None}
    options = {} if think is None else {"enable_thinking": think}
    if url is not None:
        _check_no_flags(loaded)
        server = Server(url, api_key, source="--api-key")
        Talk(Remote(server, params, options), system).run()
    elif api_key is not None:
        raise ConfigError("--api-key: only for a server; name one with --url")
    else:
        from rtk.engine import Engine

        with Engine(loaded.config, fetching=transfer_bars) as engine:
            Talk(Local(engine, params, options), system).run()


def _check_no_flags(loaded: "LoadedConfig") -> None:
    """What is asked of an engine does not reach one that runs already."""
    given = sorted({source for _, _, source in loaded.rows() if source.startswith(("flag ", "--set "))})
    if given:
        flag = given[0].removeprefix("flag ")
        raise ConfigError(f"{flag} has no effect with --url: the server has its own; leave it out")


# --- the conversation -------------------------------------------------------------------------------------------


NOTHING = Piece()


@dataclass
class Turn:
    """How one answer came."""

    last: Piece = NOTHING
    first_s: float | None = None
    """From the question to the first token."""
    early_tokens: int = 0
    """Tokens that came with the first."""
    decoding_s: float = 0.0
    """From the first token to the last."""

    def add(self, piece: Piece, elapsed_s: float) -> None:
        """Take in what came `elapsed_s` after the question."""
        if self.first_s is None and (piece.tokens or piece.thought or piece.content):
            self.first_s, self.early_tokens = elapsed_s, piece.tokens
        if self.first_s is not None and piece.tokens > self.last.tokens:
            self.decoding_s = elapsed_s - self.first_s
        self.last = replace(piece, reason=piece.reason or self.last.reason)

    @property
    def later_tokens(self) -> int:
        """Tokens that came after the first."""
        return self.last.tokens - self.early_tokens

    def __str__(self) -> str:
        last = self.last
        if self.first_s is None:
            return f"[{last.reason or 'no answer'}]"
        ends = {"stop": "", "length": ", cut: no more tokens are allowed"}.get(last.reason or "", f", {last.reason}")
        unit = "token" if last.tokens == 1 else "tokens"
        return (
            f"[{last.cached_tokens:,} of {last.prompt_tokens:,} prompt tokens cached, first token after "
            f"{self.first_s:.2f} s, {last.tokens:,} {unit}{_rate(self.later_tokens, self.decoding_s)}{ends}]"
        )


class Talk:
    """A conversation: what was said, and the commands."""

    def __init__(self, answerer: Answerer, system: str | None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._answerer = answerer
        self._system = system
        self._clock = clock
        self._said: list[dict[str, str]] = []
        self._turns: list[Turn] = []
        self._saved: set[Path] = set()
        self._interactive = _on_terminal()
        self._commands: dict[str, Callable[[str], None]] = {
            "help": lambda _: _tell(HELP),
            "reset": self._reset,
            "system": self._set_system,
            "save": self._save,
            "stats": self._stats,
        }

    def run(self) -> None:
        """Read messages and commands until there are no more, and answer them.

        Without a terminal a failure is the end. Raises `RtkError`.
        """
        if self._interactive:
            _tell("/help lists the commands, Ctrl-D ends.")
            with suppress(ImportError):
                import readline  # noqa: F401 - has input() edit lines, and remember them
        while (text := self._read()) is not None:
            try:
                if text.startswith("/") and not text.startswith("//"):
                    name, _, rest = text[1:].partition(" ")
                    if name == "quit":
                        return
                    self._command(name, rest.strip())
                elif text:
                    self._say(text.removeprefix("/") if text.startswith("//") else text)
            except RtkError as error:
                if not self._interactive:
                    raise
                _tell(f"error: {error}")

    # --- reading

    def _read(self) -> str | None:
        """The next message, or command; None: the end."""
        line = self._line("> ")
        if line is None or not line.strip().startswith(QUOTES):
            return None if line is None else line.strip()
        lines, line = [], line.strip().removeprefix(QUOTES)
        while not line.rstrip().endswith(QUOTES):
            lines.append(line)
            more = self._line("... ")
            if more is None:
                return None
            line = more
        text = "\n".join([*lines, line.rstrip().removesuffix(QUOTES)]).strip("\n")
        return f"/{text}" if text.startswith("/") else text  # no command

    def _line(self, prompt: str) -> str | None:
        try:
            return input(prompt if self._interactive else "")
        except (EOFError, KeyboardInterrupt):
            if self._interactive:
                _tell("")
            return None

    # --- answering

    def _say(self, text: str) -> None:
        """Send a message, and print the answer as it comes. Raises `RtkError`: then nothing was said."""
        question = {"role": "user", "content": text}
        turn, thought, content = Turn(), "", ""
        began = self._clock()
        try:
            answer = self._answerer.answer([*self._messages(), question])
            with _heeding_ctrl_c(self._interactive), closing(answer) as pieces:
                for piece in pieces:
                    turn.add(piece, self._clock() - began)
                    if piece.thought:
                        typer.secho(harmless(piece.thought), nl=False, err=True, dim=True)
                    if piece.content and thought and not content:
                        _tell("\n")
                    typer.echo(harmless(piece.content), nl=False)
                    thought, content = thought + piece.thought, content + piece.content
        except KeyboardInterrupt:
            turn.last = replace(turn.last, reason="stopped")
        finally:
            if content or thought:
                typer.echo(err=not content)
        if content:
            self._said += [question, {"role": "assistant", "content": content}]
        self._turns.append(turn)
        _tell(str(turn))

    def _messages(self) -> list[dict[str, str]]:
        """All that the model knows of."""
        return [*([{"role": "system", "content": self._system}] if self._system else []), *self._said]

    # --- commands

    def _command(self, name: str, rest: str) -> None:
        if name not in self._commands:
            raise RequestError(f"there is no /{name}; /help lists the commands")
        self._commands[name](rest)

    def _reset(self, _: str) -> None:
        self._said.clear()
        _tell("the conversation is forgotten")

    def _set_system(self, text: str) -> None:
        self._system = text
        _tell("the model is told this first" if text else "the model is told nothing first")

    def _save(self, name: str) -> None:
        if not name:
            raise RequestError("/save needs the name of a file")
        file = Path(name).expanduser()
        text = json.dumps({"messages": self._messages()}, indent=2, ensure_ascii=False) + "\n"
        try:
            with file.open("w" if file in self._saved else "x", encoding="utf-8") as stream:
                stream.write(text)
        except FileExistsError:
            raise RequestError(f"{file} is there already; choose another name") from None
        except OSError as error:
            raise RequestError(f"{file} cannot be written: {error.strerror}") from None
        self._saved.add(file)
        _tell(f"wrote {file}")

    def _stats(self, _: str) -> None:
        turns = self._turns
        prompt, cached, tokens = (
            sum(getattr(turn.last, name) for turn in turns) for name in ("prompt_tokens", "cached_tokens", "tokens")
        )
        share = f" ({cached / prompt:.0%})" if prompt else ""
        rate = _rate(sum(turn.later_tokens for turn in turns), sum(turn.decoding_s for turn in turns))
        _tell(f"answers: {len(turns)}; prompt tokens: {prompt:,}, cached: {cached:,}{share}; tokens: {tokens:,}{rate}")


def _rate(tokens: int, seconds: float) -> str:
    return f" at {tokens / seconds:,.1f} tok/s" if tokens and seconds else ""


@contextmanager
def _heeding_ctrl_c(interactive: bool) -> Iterator[None]:
    """Python sees a signal that comes just before it begins to wait when it has waited: so it is not to wait for long.

    An alarm ends each wait after `HEED_S`, and Python goes on waiting unless there was a signal before.
    """
    if not interactive or not hasattr(signal, "setitimer"):
        yield
        return
    handler = signal.signal(signal.SIGALRM, lambda *_: None)
    timer = signal.setitimer(signal.ITIMER_REAL, HEED_S, HEED_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def _on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _tell(text: str) -> None:
    typer.echo(text, err=True)
