"""Text of new tokens: whole characters, stop strings, and one answer for all who ask."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizer import BOS, IM_END, byte_level, ids_of, sentence_piece

from rtk.cache.key import pack
from rtk.schedule.messages import Finish, NewRequest, Output, Verdict
from rtk.schedule.params import SamplingParams
from rtk.serve.detokenizer import Detokenizer, Open, TextOutput, opening
from rtk.serve.text import BROKEN, IncrementalDecoder, StopChecker, StopScanner, TextAssembler

X15 = (b"\xc3", b"\xa9\xe6", b"\xbc\xa2", b"\xf0\x9f", b"\xa7", b"\x8a")


def decode_bytes(table):
    """A byte-level decoder over `table`, as the tokenizers library decodes."""
    return lambda ids: b"".join(table[i] for i in ids).decode(errors="replace")


def deltas(decoder, ids):
    return [*map(decoder.push, ids), decoder.finish()]


def opened(prompt=(5,), **params):
    return opening(NewRequest(rid="r", tokens=pack(prompt), params=SamplingParams(**params)))


# --- the fake above decodes like the library --------------------------------------------------------------------


@given(st.lists(st.binary(min_size=1, max_size=3), min_size=1, max_size=8))
@settings(max_examples=50, deadline=None)
def test_byte_level_tokenizers_decode_as_python_does(pieces):
    tokenizer = byte_level(*pieces)
    assert tokenizer.decode(ids_of(tokenizer, *pieces)) == b"".join(pieces).decode(errors="replace")


# --- whole characters -------------------------------------------------------------------------------------------


def test_x15_characters_in_pieces():
    tokenizer = byte_level(*X15)
    decoder = tokenizer.decoder(pack(ids_of(tokenizer, "x")))
    assert deltas(decoder, ids_of(tokenizer, *X15)) == ["", "é", "漢", "", "", "🧊", ""]


def test_x15_a_text_that_ends_inside_a_character_ends_with_one_mark():
    tokenizer = byte_level(*X15)
    decoder = tokenizer.decoder(pack(ids_of(tokenizer, "x")))
    assert deltas(decoder, ids_of(tokenizer, *X15[:4])) == ["", "é", "漢", "", BROKEN]


def test_x16_a_character_begun_by_the_prompt_belongs_to_the_text():
    tokenizer = byte_level()
    prompt = ids_of(tokenizer, "H", "i", " ", b"\xf0", b"\x9f")
    decoder = tokenizer.decoder(pack(prompt))
    assert deltas(decoder, ids_of(tokenizer, b"\xa7", b"\x8a", "!")) == ["", "🧊", "!", ""]


@pytest.mark.parametrize("prompt", ["Hi �", "�", "Hi"])
def test_a_prompts_own_text_never_comes_back(prompt):
    tokenizer = byte_level()
    decoder = tokenizer.decoder(pack(ids_of(tokenizer, *(bytes([b]) for b in prompt.encode()))))
    assert deltas(decoder, ids_of(tokenizer, "!", "?")) == ["!", "?", ""]


def test_a_prompts_broken_character_that_stays_broken_is_not_the_texts():
    tokenizer = byte_level()
    decoder = tokenizer.decoder(pack(ids_of(tokenizer, "H", b"\xf0", b"\x9f")))
    assert deltas(decoder, ids_of(tokenizer, "!")) == ["!", ""]


def test_special_tokens_have_no_text_and_may_come_between_the_bytes_of_a_character():
    tokenizer = byte_level()
    decoder = tokenizer.decoder(pack([BOS]))
    ids = [IM_END, *ids_of(tokenizer, b"\xc3"), BOS, *ids_of(tokenizer, b"\xa9")]
    assert deltas(decoder, ids) == ["", "", "", "é", ""]


def test_invalid_bytes_are_given_up_as_soon_as_the_next_token_decides_them():
    tokenizer = byte_level()
    decoder = tokenizer.decoder(pack(ids_of(tokenizer, "x")))
    assert deltas(decoder, ids_of(tokenizer, b"\xff", b"\xff", "a")) == ["", BROKEN, BROKEN + "a", ""]


@given(prompt=st.text(max_size=10), new=st.binary(max_size=60), data=st.data())
@settings(max_examples=300, deadline=None)
def test_any_bytes_cut_into_any_tokens_give_the_text_of_all_of_them(prompt, new, data):
    table = cut(data, prompt.encode()) + cut(data, new)
    split = len(cut_lengths(table, len(prompt.encode())))
    decoder = IncrementalDecoder(decode_bytes(table), range(split)[-16:])
    pieces = deltas(decoder, range(split, len(table)))
    assert "".join(pieces) == new.decode(errors="replace")


@given(
    text=st.text(st.characters(codec="utf-8", exclude_characters=BROKEN), max_size=12),
    at=st.integers(0, 40),
    data=st.data(),
)
@settings(max_examples=300, deadline=None)
def test_a_prompt_may_end_anywhere(text, at, data):
    """The completion begins after the last whole character of the prompt. (A U+FFFD across the border is lost.)"""
    raw = text.encode()
    head, tail = raw[:at], raw[at:]
    table = cut(data, head) + cut(data, tail)
    split = len(cut_lengths(table, len(head)))
    decoder = IncrementalDecoder(decode_bytes(table), range(split)[-16:])
    whole = head.decode(errors="ignore")
    assert "".join(deltas(decoder, range(split, len(table)))) == (text[len(whole) :] if tail else "")


def cut(data, raw):
    """`raw` in pieces of one to four bytes."""
    pieces = []
    while raw:
        size = data.draw(st.integers(1, 4))
        pieces.append(raw[:size])
        raw = raw[size:]
    return pieces


def cut_lengths(table, size):
    """The pieces of `table` that make up its first `size` bytes."""
    pieces = []
    while sum(map(len, pieces)) < size:
        pieces.append(table[len(pieces)])
    return pieces


def test_no_delta_before_the_end_has_a_broken_character_where_the_bytes_are_valid():
    raw = "aé漢🧊".encode() * 20
    decoder = IncrementalDecoder(decode_bytes([bytes([b]) for b in raw]))
    assert BROKEN not in "".join(deltas(decoder, range(len(raw))))


@pytest.mark.parametrize("piece", [b"a", b"\x80", b"\xa9\xc3", b"\xff"])
def test_the_cost_of_a_token_does_not_grow_with_the_text(piece):
    longest = 0

    def decode(ids):
        nonlocal longest
        longest = max(longest, len(ids))
        return (piece * len(ids)).decode(errors="replace")

    decoder = IncrementalDecoder(decode)
    text = "".join(deltas(decoder, range(2000)))
    assert longest <= 24
    assert text == (piece * 2000).decode(errors="replace")


# --- sentence pieces --------------------------------------------------------------------------------------------


def spm(tokenizer, *pieces):
    return [tokenizer._backend.token_to_id(piece) for piece in pieces]


def test_words_keep_their_spaces_behind_a_prompt_and_lose_the_first_without_one():
    tokenizer = sentence_piece("▁the", "▁cat", "s")
    ids = spm(tokenizer, "▁the", "▁cat", "s")
    assert "".join(deltas(tokenizer.decoder(pack(spm(tokenizer, "▁", "a"))), ids)) == " the cats"
    assert "".join(deltas(tokenizer.decoder(pack(spm(tokenizer, "<s>"))), ids)) == "the cats"
    assert "".join(deltas(tokenizer.decoder(b""), spm(tokenizer, "▁", "▁the"))) == " the"


def test_byte_fallback_gives_whole_characters():
    tokenizer = sentence_piece()
    ids = spm(tokenizer, *(f"<0x{b:02X}>" for b in "é🧊é".encode()))
    decoder = tokenizer.decoder(pack(spm(tokenizer, "a")))
    assert deltas(decoder, ids) == ["", "é", "", "", "", "🧊", "", "é", ""]


def test_byte_fallback_cut_inside_a_character_gives_one_mark():
    tokenizer = sentence_piece()
    ids = spm(tokenizer, *(f"<0x{b:02X}>" for b in "é🧊".encode()))
    assert deltas(tokenizer.decoder(b""), ids[:-1])[-1] == BROKEN
    assert "".join(deltas(tokenizer.decoder(b""), ids[:-1])) == "é" + BROKEN


def test_a_broken_character_of_byte_fallback_takes_no_whole_one_with_it():
    tokenizer = sentence_piece()
    ids = spm(tokenizer, "<0xC3>", "<0xA9>", "<0xF0>", "a")
    assert deltas(tokenizer.decoder(pack(spm(tokenizer, "b"))), ids) == ["", "é", "", BROKEN + "a", ""]


@given(text=st.text(alphabet="ab é漢🧊", min_size=1, max_size=20), at=st.integers(0, 60))
@settings(max_examples=300, deadline=None)
def test_byte_fallback_prompts_may_end_anywhere(text, at):
    tokenizer = SPM
    ids = spm(tokenizer, *(f"<0x{b:02X}>" for b in text.encode()))
    whole = text.encode()[:at].decode(errors="ignore")
    new = deltas(tokenizer.decoder(pack([3, *ids[:at]])), ids[at:])  # behind one byte that is a character
    assert "".join(new) == (text[len(whole) :] if ids[at:] else "")


SPM = sentence_piece()


# --- stop strings -----------------------------------------------------------------------------------------------


def scan(stops, pieces, minimum=0):
    scanner = StopScanner(stops, minimum)
    shown = [scanner.push(piece) for piece in pieces]
    return shown, scanner.matched, "" if scanner.matched else scanner.finish()


def test_x17_nothing_of_a_stop_string_is_shown():
    shown, matched, _ = scan(["\n\nUser:"], ["Hello", "\n", "\nUs", "er", ": hi"])
    assert (shown, matched) == (["Hello", "", "", "", ""], "\n\nUser:")


def test_x17_at_one_place_the_stop_string_named_first_wins():
    assert scan(["ab", "abc"], ["xabc"]) == (["x"], "ab", "")
    assert scan(["abc", "ab"], ["xabc"]) == (["x"], "abc", "")


def test_a_beginning_is_held_back_wherever_the_text_repeats_it():
    assert scan(["aab"], ["aaa", "b!"]) == (["a", ""], "aab", "")
    assert scan(["aabc"], ["aaa", "bc"]) == (["a", ""], "aabc", "")


def test_the_match_that_begins_first_wins():
    assert scan(["cd", "bcde"], ["abcdef"]) == (["a"], "bcde", "")


def test_what_turns_out_to_be_no_stop_string_is_shown():
    assert scan(["aab"], ["a", "a", "a", "c"]) == (["", "", "a", "aac"], None, "")
    assert scan(["aab"], ["xaa"]) == (["x"], None, "aa")


def test_a_stop_string_counts_when_a_late_enough_token_completes_it():
    assert scan(["ab"], ["a", "b", "a", "b"], minimum=2)[:2] == (["", "ab", "", ""], "ab")
    assert scan(["ab"], ["a", "b"], minimum=1)[:2] == (["", ""], "ab")
    assert scan(["b", "abcd"], ["ab", "c", "d"], minimum=1) == (["", "", ""], "abcd", "")


def test_a_match_that_an_early_token_completed_never_counts():
    assert scan(["bc", "abcx"], ["abc", "", "d"], minimum=1) == (["", "", "abcd"], None, "")


@given(
    raw=st.text(alphabet="abé", max_size=20),
    stops=st.lists(st.text(alphabet="abé", min_size=1, max_size=4), max_size=3),
    minimum=st.integers(0, 5),
    data=st.data(),
)
@settings(max_examples=400, deadline=None)
def test_scheduler_and_client_side_agree_however_tokens_and_messages_are_cut(raw, stops, minimum, data):
    table = cut(data, raw.encode())
    ids = range(len(table))
    end, matched = scheduler_side(table, stops, minimum)
    finish = Finish(reason="stop" if matched else "length", matched=matched)
    text = "".join(client_side(table, stops, minimum, [ids[:end]], finish))
    assert "".join(client_side(table, stops, minimum, groups(data, ids[:end]), finish)) == text
    assert text == expected(table, stops, minimum)


def scheduler_side(table, stops, minimum):
    checker = StopChecker(IncrementalDecoder(decode_bytes(table)), StopScanner(stops, minimum))
    for i in range(len(table)):
        if (matched := checker.push(i)) is not None:
            return i + 1, matched
    return len(table), None


def client_side(table, stops, minimum, messages, finish):
    assembler = TextAssembler(IncrementalDecoder(decode_bytes(table)), StopScanner(stops, minimum))
    return [assembler.push(m, finish if i == len(messages) - 1 else None) for i, m in enumerate(messages)]


def groups(data, ids):
    """`ids` in messages of any size, none among them."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=5)))
    return [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


def expected(table, stops, minimum):
    """The rule, said plainly: after which token is there a match that this token completed?"""
    raw, shown = b"", ""
    for i, piece in enumerate(table):
        raw += piece
        text = raw.decode(errors="ignore")
        found = [
            (at, order)
            for order, stop in enumerate(stops)
            for at in range(len(text))
            if text.startswith(stop, at) and at + len(stop) > len(shown)
        ]
        if i >= minimum and found:
            return text[: min(found)[0]]
        shown = text
    return shown


# --- the client's side ------------------------------------------------------------------------------------------


def test_the_token_that_ended_a_text_has_none():
    tokenizer = byte_level()
    a, b = ids_of(tokenizer, "a", "b")
    assembler = tokenizer.assembler(opened(stop_token_ids=(b,)))
    assert assembler.push([a, b], Finish(reason="stop", matched=b)) == "a"


def test_text_held_back_comes_out_when_a_stop_token_or_the_length_ends_it():
    tokenizer = byte_level()
    a, b = ids_of(tokenizer, "a", "b")
    for finish in (Finish(reason="length"), Finish(reason="abort"), Finish(reason="stop", matched=IM_END)):
        assembler = tokenizer.assembler(opened(stop=("abc",)))
        assert assembler.push([a]) + assembler.push([b], finish) == "ab"


def test_x15_with_a_stop_string():
    tokenizer = byte_level(*X15)
    ids = ids_of(tokenizer, *X15)
    match_stop = tokenizer.match_stop(SamplingParams(stop=("漢",)), pack([5]))
    assert [match_stop(token) for token in ids[:3]] == [None, None, "漢"]
    assembler = tokenizer.assembler(opened(stop=("漢",)))
    assert assembler.push(ids[:3], Finish(reason="stop", matched="漢")) == "é"


def test_a_detokenizer_puts_text_to_outputs_and_passes_the_rest_on():
    tokenizer = byte_level()
    detokenizer = Detokenizer(tokenizer.assembler)
    detokenizer.process([opened()])
    a, b = ids_of(tokenizer, "a", "b")
    verdict = Verdict(rid="r", accepted=True)
    last = Finish(reason="length")
    messages = [verdict, Output(rid="r", tokens=(a,), cached_tokens=3), Output(rid="r", tokens=(b,), finish=last)]
    assert detokenizer.process(messages) == [
        verdict,
        TextOutput(rid="r", text="a", tokens=(a,), cached_tokens=3),
        TextOutput(rid="r", text="b", tokens=(b,), finish=last),
    ]
    assert len(detokenizer) == 0
    assert detokenizer.process(messages[1:]) == []


def test_a_refused_request_is_closed():
    detokenizer = Detokenizer(byte_level().assembler)
    detokenizer.process([opened()])
    detokenizer.process([Verdict(rid="r", accepted=False)])
    assert len(detokenizer) == 0


def test_an_output_that_cannot_be_decoded_ends_its_own_request_only(caplog):
    class Broken:
        def push(self, tokens, finish):
            raise OverflowError("no such token")

    tokenizer = byte_level()
    detokenizer = Detokenizer(lambda new: Broken() if new.rid == "bad" else tokenizer.assembler(new))
    for rid in ("bad", "good"):
        detokenizer.process([Open(rid=rid, context=pack([5]))])
    (token,) = ids_of(tokenizer, "a")
    bad, good = detokenizer.process([Output(rid=rid, tokens=(token,)) for rid in ("bad", "good")])
    assert bad.finish.reason == "error"
    assert good.text == "a"
    assert "no such token" in caplog.text
    assert len(detokenizer) == 1


def test_long_stop_strings_cost_little():
    scanner = StopScanner(["a" * 1023 + "b"] * 16)
    start = time.perf_counter()
    for _ in range(2000):
        scanner.push("a")
    assert time.perf_counter() - start < 2
