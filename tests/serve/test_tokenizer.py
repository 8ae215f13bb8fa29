"""Reading a model's tokenizer, and chat templates as transformers renders them."""

import json
import subprocess
import sys
import threading
import time

import pytest
from tiny_tokenizer import BOS, CHATML, IM_END, byte_level, ids_of, sentence_piece

from rtk.errors import ModelError, RequestError
from rtk.serve.tokenizer import Tokenizer

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": 'A "quoted" <é> word'},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "More?"},
]

TEMPLATES = {
    "chatml": CHATML,
    "bos and eos": (
        "{{ bos_token }}{% for m in messages %}{{ m.role | upper }}: {{ m['content'].strip() }}{{ eos_token }}"
        "{% endfor %}"
    ),
    "white space": (
        "{% for m in messages %}\n    {% if m.role == 'user' %}\n[Q] {{ m.content }}\n    {% elif loop.last %}\n"
        "[last]\n    {% else %}\n[A] {{ m.content }}\n    {% endif %}\n{% endfor %}\n"
        "{{- '\n' if add_generation_prompt }}"
    ),
    "loop controls": "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.content }}|{% endfor %}",
    "namespace": (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + m.content | length %}{% endfor %}"
        "{{ ns.n }}"
    ),
    "generation": (
        "{% for m in messages %}{% generation %}{% set x = m.content %}{{ x }}{% endgeneration %};{% endfor %}"
    ),
    "tojson": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}",
    "a variable of its own": "{{ 'think' if enable_thinking is defined and enable_thinking else 'plain' }}",
}


def write(folder, tokenizer, config, template=None):
    tokenizer._backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_render_as_in_transformers(name):
    from transformers import PreTrainedTokenizerFast

    tokenizer = byte_level(template=TEMPLATES[name])
    other = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._backend, bos_token="<bos>", eos_token="<|im_end|>", chat_template=TEMPLATES[name]
    )
    for options in ({"add_generation_prompt": True}, {"add_generation_prompt": False}, {"enable_thinking": True}):
        expected = other.apply_chat_template(CHAT, tokenize=False, **{"add_generation_prompt": True, **options})
        assert tokenizer.chat(CHAT, **options) == expected


@pytest.mark.parametrize("bos", [None, True, False])
@pytest.mark.parametrize("kind", [byte_level, sentence_piece])
def test_texts_encode_as_in_transformers(kind, bos, tmp_path):
    from transformers import PreTrainedTokenizerFast

    config = {"bos_token": kind().named["bos_token"], "eos_token": kind().named["eos_token"]}
    config |= {} if bos is None else {"add_bos_token": bos}
    write(tmp_path, kind(), config | {"tokenizer_class": "PreTrainedTokenizerFast"})
    ours, other = Tokenizer.load(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for text in ("hello é🧊", " x", f"a{config['eos_token']}b", "x" * 3000):
        assert ours.encode(text, add_special_tokens=True) == other.encode(text)
        assert ours.encode(text, add_special_tokens=False) == other.encode(text, add_special_tokens=False)
        ids = other.encode(text)
        assert ours.decode(ids) == other.decode(ids, skip_special_tokens=True)
    assert ours.size == len(other)


def test_truncation_and_padding_that_a_file_asks_for_are_off(tmp_path):
    tokenizer = byte_level()
    tokenizer._backend.enable_truncation(4)
    tokenizer._backend.enable_padding(length=64)
    write(tmp_path, tokenizer, {})
    assert len(Tokenizer.load(tmp_path).encode("x" * 100, add_special_tokens=True)) == 100


@pytest.mark.parametrize("written", ["<bos>", {"content": "<bos>", "special": True}])
def test_named_tokens(written, tmp_path):
    tokenizer = Tokenizer.load(write(tmp_path, byte_level(), {"bos_token": written, "pad_token": None}))
    assert tokenizer.named == {"bos_token": "<bos>"}
    assert (tokenizer.token_id("bos_token"), tokenizer.token_id("pad_token")) == (BOS, None)
    assert tokenizer.silent == {BOS, 1, IM_END}
    assert tokenizer.size == 259


@pytest.mark.parametrize(
    ("file", "config", "expected"),
    [
        (None, {}, None),
        (None, {"chat_template": "one"}, "one"),
        (None, {"chat_template": 5}, None),
        (None, {"chat_template": [{"template": "x"}, 5]}, None),
        ("file", {"chat_template": "one"}, "file"),
        (None, {"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]}, "d"),
    ],
)
def test_where_the_chat_template_comes_from(file, config, expected, tmp_path):
    tokenizer = Tokenizer.load(write(tmp_path, byte_level(), config, file))
    assert tokenizer.has_chat_template == (expected is not None)
    if expected is None:
        with pytest.raises(RequestError, match="no chat template; send the whole prompt") as refused:
            tokenizer.chat(CHAT)
        assert refused.value.code == "no_chat_template"
    else:
        assert tokenizer.chat(CHAT) == expected


def test_a_template_that_refuses_says_why():
    tokenizer = byte_level(template="{{ raise_exception('roles must alternate') }}")
    with pytest.raises(RequestError, match="refuses them: roles must alternate") as refused:
        tokenizer.chat(CHAT)
    assert refused.value.field == "messages"


@pytest.mark.parametrize("template", ["{{ messages[9].content }}", "{{ messages + 1 }}", "{{ 1 / 0 }}"])
def test_a_template_that_fails_is_a_refusal(template):
    with pytest.raises(RequestError, match="the model's chat template"):
        byte_level(template=template).chat(CHAT)


def test_a_broken_template_is_named():
    with pytest.raises(RequestError, match="cannot be used"):
        byte_level(template="{% if %}").chat(CHAT)


def test_a_template_cannot_reach_the_inside():
    with pytest.raises(RequestError, match="the model's chat template"):
        byte_level(template="{{ messages.__class__.__mro__[1].__subclasses__() }}").chat(CHAT)


def test_options_cannot_replace_the_messages():
    tokenizer = byte_level(template="{{ messages | length }}{{ self_ }}")
    options = {"messages": [], "self": 1, "self_": "!"}
    assert tokenizer.chat(CHAT, **options) == "4!"


def test_folders_that_cannot_be_read(tmp_path):
    with pytest.raises(ModelError, match=r"has no tokenizer\.json.*save_pretrained"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be read"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "WordLevel", "vocab": {}, "unk_token": "x"}}')
    with pytest.raises(ModelError, match="it has no tokens"):
        Tokenizer.load(tmp_path)
    write(tmp_path, byte_level(), [])
    with pytest.raises(ModelError, match="must hold a JSON object, and holds a list"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelError, match="is no JSON"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match=r"chat_template\.jinja is no UTF-8 text: invalid start byte at 0"):
        Tokenizer.load(tmp_path)


def test_other_threads_run_while_a_long_text_is_encoded():
    tokenizer, text = byte_level(), "hello world, how are you? " * 20_000
    thread = threading.Thread(target=tokenizer.encode, args=(text,), kwargs={"add_special_tokens": True})
    rounds = 0
    thread.start()
    while thread.is_alive():
        rounds += 1
        time.sleep(0)
    assert rounds > 1000  # a handful where encoding holds the interpreter


def test_neither_torch_nor_transformers_is_needed():
    code = (
        "import sys, rtk.serve.http.app, rtk.serve.tokenizer\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_ids_of_pieces_are_what_texts_encode_to():
    tokenizer = byte_level()
    assert tokenizer.encode("é", add_special_tokens=False) == ids_of(tokenizer, b"\xc3", b"\xa9")
