"""A child process, and the main process that it loses."""

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rtk.frames import send
from rtk.observe.logs import LogSetup
from rtk.serve.processes.child import Setup
from rtk.serve.processes.wire import Meeting

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there are unix sockets")

ORPHAN = """
import os, subprocess, sys
code = "from rtk.serve.processes.detokenizer import main; main()"
subprocess.Popen((sys.executable, "-P", "-c", code), stdout=subprocess.DEVNULL)
os.kill(os.getpid(), 9)
"""


def test_one_that_is_orphaned_before_it_begins_tidies_up(monkeypatch):
    meeting = Meeting()
    try:
        source, sink = os.pipe()
        with os.fdopen(sink, "wb") as out:
            send(out, pickle.dumps(Setup({}, meeting.place, "detokenizer1", LogSetup())))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        parent = subprocess.run((sys.executable, "-c", ORPHAN), stdin=source, stderr=subprocess.PIPE, check=False)
        os.close(source)
        # `run` reads until nobody has the pipe any more, so both have ended
        assert (parent.returncode, parent.stderr) == (-signal.SIGKILL, b"")
        assert not Path(meeting.place.folder).exists()
    finally:
        meeting.close()
