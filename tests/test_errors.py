"""Messages stay on one line, whatever they quote; and the names that `rtk` gives away."""

import rtk
from rtk.errors import MAX_REASON, one_line


def test_a_message_is_one_printable_line():
    error = rtk.RtkError("unknown key 'a\nerror: b\x1b[31m\u2028\ud800\u202e', née 漢🧊")
    assert str(error) == r"unknown key 'a\nerror: b\x1b[31m\u2028\ud800\u202e', née 漢🧊"
    assert rtk.RequestError("x", field="messages[0].\ud800").field == r"messages[0].\ud800"


def test_a_strangers_exception_is_one_line():
    class SilentError(Exception):
        def __str__(self):
            raise ZeroDivisionError

    assert one_line(ValueError("first line:\n\n  second")) == "ValueError: first line: second"
    assert one_line(NotImplementedError()) == "NotImplementedError"
    assert one_line(SilentError()) == "SilentError: its message cannot be read"
    assert len(one_line(ValueError("word " * 1000))) <= MAX_REASON


def test_the_public_names():
    assert sorted(rtk.__all__) == rtk.__all__
    assert set(rtk.__all__) <= set(dir(rtk))
    assert [getattr(rtk, name).__name__ for name in rtk.__all__] == rtk.__all__
