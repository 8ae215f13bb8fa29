"""What goes from process to process comes out as it went in, and only who belongs there is heard."""

import os
import stat
import time
import types
import typing
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from zmq.utils.monitor import recv_monitor_message

from rtk.cache.key import AdapterRef, Namespace
from rtk.schedule.messages import Inbound, NewRequest, Outbound, Stats
from rtk.schedule.params import SamplingParams
from rtk.serve.detokenizer import Open, TextOutput
from rtk.serve.processes import control, wire
from rtk.serve.processes.wire import TO_DETOKENIZER, TO_MAIN, TO_SCHEDULER, Codec, End, Meeting, Place, bind, connect
from rtk.serve.protocol import ModelFacts, Vitals


def values(kind):
    """Values of a type as it is annotated: what a wire can hold of it."""
    origin, of = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = {field.name: values(field.type) for field in msgspec.structs.fields(kind)}
        return st.builds(kind, **fields)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(values, of))
    if origin is tuple and of[1:] == (...,):
        return st.lists(values(of[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, of))
    if isinstance(kind, type) and (hasattr(kind, "_fields") or hasattr(kind, "__dataclass_fields__")):
        return st.builds(kind, **{name: values(hint) for name, hint in typing.get_type_hints(kind).items()})
    simple = {
        int: st.integers(-(2**63), 2**64 - 1),
        float: st.floats(allow_nan=False),
        typing.Any: st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(allow_nan=False), st.text()),
    }
    if origin is not None and origin is not typing.Literal:  # mappings
        return st.dictionaries(values(of[0]), values(of[1]), max_size=2)
    return simple[kind] if kind in simple else st.from_type(kind)


MEMBERS = [
    *((TO_SCHEDULER, kind) for kind in typing.get_args(Inbound)),
    *((TO_DETOKENIZER, kind) for kind in (*typing.get_args(Outbound), Open, End)),
    *((TO_MAIN, kind) for kind in (*typing.get_args(Outbound), TextOutput, End)),
]


@pytest.mark.parametrize(("codec", "kind"), MEMBERS, ids=lambda one: getattr(one, "__name__", ""))
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_message_comes_out_as_it_went_in(codec, kind, data):
    messages = data.draw(st.lists(values(kind), min_size=1, max_size=2))
    assert codec.decode(codec.encode(messages)) == messages


ORDERS = [*typing.get_args(control.ToChild), *typing.get_args(control.FromChild)]


@pytest.mark.parametrize("kind", ORDERS, ids=lambda kind: kind.__name__)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_so_does_what_processes_tell_of_themselves(kind, data):
    message = data.draw(values(kind))
    codec = control.decode_to_child if kind in typing.get_args(control.ToChild) else control.decode_from_child
    assert codec(control.encode(message)) == message


def test_types_within_messages_are_kept():
    namespace = Namespace(adapter=AdapterRef("a", 2), salt="s")
    request = NewRequest(
        rid="1:a", tokens=b"\0\1\2\3", params=SamplingParams(logit_bias=((5, 1.0),)), namespace=namespace
    )
    (back,) = TO_SCHEDULER.decode(TO_SCHEDULER.encode([request]))
    assert (type(back), type(back.namespace), type(back.namespace.adapter)) == (NewRequest, Namespace, AdapterRef)
    assert (type(back.tokens), type(back.params.logit_bias[0])) == (bytes, tuple)
    assert {back.namespace: "hashable as before"}[namespace]
    facts = ModelFacts(served_name="m", vocab_size=1, context_length=2)
    ready = control.Ready(control.EngineFacts(model=facts, grammar_backends=("a",)))
    assert control.decode_from_child(control.encode(ready)).engine.model == facts
    pong = control.decode_from_child(control.encode(control.Pong(Vitals(1.5, {"p": {"faults": 1, "instead": "x"}}))))
    assert pong.vitals.plugins["p"]["faults"] == 1


# --- the places where processes meet ----------------------------------------------------------------------------


@pytest.fixture
def context():
    with zmq.Context() as one:
        yield one


ASKED = Codec(Stats)
SAID = [Stats(id=1, values={"a": 1, "b": 0.5})]


def test_a_folder_is_its_users_own_and_goes_with_the_meeting(context, tmp_path, monkeypatch):
    monkeypatch.setattr(wire.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(wire, "LONGEST", 200)
    meeting = Meeting()
    folder = Path(meeting.place.folder)
    assert folder.parent == tmp_path
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    meeting.close()
    meeting.close()
    assert list(tmp_path.iterdir()) == []


def test_messages_pass_through_unix_sockets(context):
    meeting = Meeting()
    try:
        source, address = bind(context, meeting.place, "main")
        out = connect(context, meeting.place, address)
        out.send(ASKED.encode(SAID))
        assert ASKED.decode(source.recv()) == SAID
        source.close(0)
        out.close(0)
    finally:
        meeting.close()


def test_over_tcp_nobody_is_heard_without_the_key(context):
    meeting = Meeting(unix=False)
    assert meeting.place.folder is None
    source, address = bind(context, meeting.place, "main")
    events = source.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
    events.rcvtimeo = source.rcvtimeo = 10_000
    stranger, guesser = context.socket(zmq.PUSH), connect(context, Place(public=zmq.curve_keypair()[0]), address)
    stranger.connect(address)
    for one in (stranger, guesser):
        one.linger = 0
        one.send(b"from nobody", zmq.NOBLOCK)
    assert recv_monitor_message(events)["event"] in (
        zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
        zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
    )
    out = connect(context, meeting.place, address)
    out.send(ASKED.encode(SAID))
    assert ASKED.decode(source.recv()) == SAID
    assert not source.poll(0)
    for one in (out, stranger, guesser):
        one.close(0)
    source.disable_monitor()
    events.close(0)
    source.close(0)
    meeting.close()


def test_what_killed_servers_left_is_removed_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(wire.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(wire, "LONGEST", 200)
    living = Meeting()
    names = {name: tmp_path / f"{wire.PREFIX}{name}" for name in ("killed", "old", "new", "file")}
    for name in ("killed", "old", "new"):
        names[name].mkdir()
    names["file"].write_text("")
    (names["killed"] / wire.LOCK).write_text("")
    (names["killed"] / "main1").write_text("")
    before = time.time() - wire.ABANDONED_S - 1
    os.utime(names["old"], (before, before))
    other = Meeting()
    there = {path.name for path in tmp_path.iterdir()}
    assert there == {names["new"].name, names["file"].name} | {Path(m.place.folder).name for m in (living, other)}
    living.close()
    other.close()


def test_where_no_path_is_short_enough_tcp_is_used(monkeypatch, tmp_path):
    monkeypatch.setattr(wire.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(wire, "LONGEST", 3)
    meeting = Meeting()
    assert meeting.place.folder is None and len(meeting.place.secret) == 40
    meeting.close()
    assert list(tmp_path.iterdir()) == []


def test_so_it_is_where_nothing_can_be_written(monkeypatch, tmp_path):
    monkeypatch.setattr(wire.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(wire, "_parents", lambda: [str(tmp_path)])
    monkeypatch.setattr(wire, "LONGEST", 200)
    monkeypatch.setattr(wire, "LOCK", "no/lock")
    meeting = Meeting()
    assert meeting.place.folder is None
    meeting.close()
    assert list(tmp_path.iterdir()) == []

    monkeypatch.undo()
    monkeypatch.setattr(wire.tempfile, "gettempdir", Mock(side_effect=FileNotFoundError("no usable directory")))
    meeting = Meeting()
    assert meeting.place.folder is None
    meeting.close()
