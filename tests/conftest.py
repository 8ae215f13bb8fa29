import logging
import signal
import sys
from functools import partialmethod
from pathlib import Path

import pytest

from rtk.observe import logs
from rtk.plugin.testing.harness import Harness
from rtk.plugin.testing.scripted import ScriptedExecutor


def pytest_configure():
    """What shells start in the background ignores Ctrl-C, and so would the commands that tests start and send it to."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    """Tiny models in one thread: several wait for each other in every operation, for long where other work runs."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(autouse=True)
def own_log():
    """How a test sets the log up, as every command does, is over with it."""
    root, setup = logging.getLogger(), logs._setup
    levels = [(logger, logger.level) for logger in (root, logging.getLogger("rtk"), logs.REQUESTS)]
    handlers = own_handlers(root)
    yield
    logs._setup = setup
    for logger, level in levels:
        logger.setLevel(level)
    for handler in own_handlers(root):
        root.removeHandler(handler)
    for handler in handlers:
        root.addHandler(handler)


def own_handlers(root):
    return [handler for handler in root.handlers if isinstance(handler, logs.Handler)]


@pytest.fixture(scope="session")
def zoo(tmp_path_factory):
    """Tiny random models by name, made once for the session."""
    sys.path.append(str(Path(__file__).parent / "model"))
    from tiny_models import Zoo  # brings torch, which most tests do without

    return Zoo(tmp_path_factory.mktemp("zoo"))


# --- every scheduler test runs with its steps one after the other, and overlapped ----------------------------------

LOOPS = {"serial": {"overlap": False, "lazy": False}, "overlapped": {"overlap": True, "lazy": True}}


def pytest_generate_tests(metafunc):
    """`stepwise` tests look at single steps, and run with one loop only."""
    names = vars(metafunc.module).values()
    schedules = any(
        (isinstance(value, type) and issubclass(value, Harness | ScriptedExecutor))
        or getattr(value, "__module__", None) == "real_server"
        for value in names
    )
    if schedules and not metafunc.definition.get_closest_marker("stepwise"):
        metafunc.parametrize("loop", LOOPS, indirect=True)


@pytest.fixture(autouse=True)
def loop(request, monkeypatch):
    """How the scheduler of a `Harness` steps where a test does not say."""
    settings = LOOPS[getattr(request, "param", "serial")]
    monkeypatch.setattr(Harness, "__init__", partialmethod(Harness.__init__, **settings))
    return settings
