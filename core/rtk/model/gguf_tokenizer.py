"""The tokenizer inside a GGUF file, rebuilt for the `tokenizers` library.

Two families occur in Llama models. `gpt2` is byte-level BPE: vocabulary, merges in order, and the name of the rule that
splits text into words first (`tokenizer.ggml.pre`). `llama` is SentencePiece's BPE: pieces with scores, no merges, and
bytes for whatever has no piece. An unknown family or rule is refused: a near miss would shift tokens without a sign.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from rtk.model.gguf import GgufFile, short

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
_BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]
_SPACE = "\u2581"

#: Pieces longer than this are not words: a bound on the work of splitting each piece everywhere.
_MAX_PIECE = 512

#: Control tokens that end a turn in every model that has them: Llama 3's files name one of the three its chats use.
#: `<|endoftext|>` is not here: it separates documents, and a file whose turns end with it says so itself.
_TURN_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<EOT>")

#: The word patterns that GPT-2 and Llama 3 were published with.
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
#: The splits of each `tokenizer.ggml.pre`, applied one after the other to every piece that the one before left.
#: "default" is not GPT-2's rule: files that carry it were written, and are read elsewhere, with these four.
_WORD_RULES: dict[str, tuple[str, ...]] = {
    "smollm": (r"\p{N}", _GPT2_WORDS),
    "llama-bpe": (_LLAMA3_WORDS,),
    "gpt-2": (_GPT2_WORDS,),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
#: The rule under which a word that is a token is that token, whatever the merges say, and a text begins with BOS.
_LLAMA3 = "llama-bpe"


@dataclass(frozen=True)
class Vocabulary:
    """Tokens in order of id with their types, and the ids that have a part to play (None: there is no such token)."""

    tokens: list[str]
    types: list[int]
    bos: int | None
    unknown: int | None
    padding: int | None
    #: The declared end of text first, then every other token that ends a turn; at least one.
    ends: list[int]

    def of_type(self, *types: int) -> list[str]:
        return [token for token, kind in zip(self.tokens, self.types, strict=True) if kind in types]

    def text(self, token_id: int | None) -> str | None:
        return None if token_id is None else self.tokens[token_id]


@dataclass(frozen=True)
class ImportedTokenizer:
    """A tokenizer ready to be saved: `backend` for tokenizer.json, `config` for tokenizer_config.json."""

    vocabulary: Vocabulary
    backend: Tokenizer
    config: dict[str, Any]


def read_tokenizer(gguf: GgufFile) -> ImportedTokenizer:
    """Rebuild the tokenizer.

    Raises:
        ModelError: a tokenizer or splitting rule that rtk does not know, or tables that contradict each other.
    """
    vocabulary = _read_vocabulary(gguf)
    family = gguf.get("tokenizer.ggml.model", str)
    if family == "gpt2":
        backend, adds_bos = _byte_level(gguf, vocabulary)
    elif family == "llama":
        backend, adds_bos = _sentence_piece(gguf, vocabulary), True
    else:
        raise gguf.error(f"tokenizer {short(family)} cannot be imported; rtk imports 'gpt2' and 'llama'")
    # found in a text before it is split; only special ones are left out of a decoded text
    specials, plain = vocabulary.of_type(_CONTROL, _UNKNOWN), vocabulary.of_type(_USER_DEFINED)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    backend.add_tokens([AddedToken(token, normalized=False) for token in plain])
    backend.post_processor = _frame(gguf, vocabulary, adds_bos=adds_bos)
    return ImportedTokenizer(vocabulary, backend, _config(gguf, vocabulary))


# vocabulary


def _read_vocabulary(gguf: GgufFile) -> Vocabulary:
    tokens = gguf.get("tokenizer.ggml.tokens", list)
    types = _per_token(gguf, "tokenizer.ggml.token_type", len(tokens))
    if not all(isinstance(token, str) for token in tokens):
        raise gguf.error("'tokenizer.ggml.tokens' holds something else than strings")
    if len(set(tokens)) < len(tokens):
        raise gguf.error("'tokenizer.ggml.tokens' holds a token twice")
    ends = [_special(gguf, name, len(tokens)) for name in ("eos", "eot", "eom")]
    if ends[0] is None:
        raise gguf.error("names no end token ('tokenizer.ggml.eos_token_id')")
    turn_ends = [i for i, token in enumerate(tokens) if types[i] == _CONTROL and token in _TURN_ENDS]
    return Vocabulary(
        tokens,
        types,
        bos=_special(gguf, "bos", len(tokens)),
        unknown=_special(gguf, "unknown", len(tokens)),
        padding=_special(gguf, "padding", len(tokens)),
        ends=list(dict.fromkeys([end for end in ends if end is not None] + turn_ends)),
    )


def _per_token(gguf: GgufFile, key: str, count: int) -> list[Any]:
    """A numeric array with one entry a token."""
    values = gguf.get(key, np.ndarray)
    if len(values) != count:
        raise gguf.error(f"{key!r} has {len(values)} entries for {count} tokens")
    return list(values.tolist())


def _special(gguf: GgufFile, name: str, count: int) -> int | None:
    token_id: int | None = gguf.get(f"tokenizer.ggml.{name}_token_id", int, None)
    if token_id is not None and not 0 <= token_id < count:
        raise gguf.error(f"'tokenizer.ggml.{name}_token_id' is {token_id}, there are {count} tokens")
    return token_id


# byte-level BPE


def _byte_level(gguf: GgufFile, vocabulary: Vocabulary) -> tuple[Tokenizer, bool]:
    """Answers the tokenizer, and whether its texts begin with BOS unless the file says otherwise."""
    rule = gguf.get("tokenizer.ggml.pre", str)
    if rule not in _WORD_RULES:
        known = ", ".join(sorted(_WORD_RULES))
        raise gguf.error(f"pre-tokenizer {short(rule)} cannot be imported; rtk imports {known}")
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    backend = Tokenizer(BPE(vocab=ids, merges=_read_merges(gguf, ids), ignore_merges=rule == _LLAMA3))
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _WORD_RULES[rule]]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    return backend, rule == _LLAMA3


def _read_merges(gguf: GgufFile, ids: dict[str, int]) -> list[tuple[str, str]]:
    """Each line is two tokens with a space between; they and their concatenation must be tokens."""
    merges = []
    for line in gguf.get("tokenizer.ggml.merges", list):
        left, _, right = line.partition(" ") if isinstance(line, str) else ("", "", "")
        if not (left in ids and right in ids and left + right in ids):
            raise gguf.error(f"merge {short(line)} in 'tokenizer.ggml.merges' does not join two tokens into a third")
        merges.append((left, right))
    return merges


# SentencePiece BPE


def _sentence_piece(gguf: GgufFile, vocabulary: Vocabulary) -> Tokenizer:
    if vocabulary.of_type(_BYTE) != _BYTE_PIECES:
        raise gguf.error("tokenizer 'llama' needs the 256 byte tokens <0x00> to <0xFF>, in order")
    if gguf.get("tokenizer.ggml.remove_extra_whitespaces", bool, False):
        raise gguf.error("its tokenizer removes extra whitespace, which rtk does not import")
    spaced = gguf.get("tokenizer.ggml.add_space_prefix", bool, True)
    backend = Tokenizer(
        BPE(
            vocab={token: i for i, token in enumerate(vocabulary.tokens)},
            merges=_merges_from_scores(gguf, vocabulary),
            unk_token=vocabulary.text(vocabulary.unknown),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = [normalizers.Prepend(_SPACE)] if spaced else []
    strip = [decoders.Strip(" ", 1, 0)] if spaced else []
    backend.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


def _merges_from_scores(gguf: GgufFile, vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """SentencePiece joins the neighbours whose union scores best: every way to make a piece, best piece first.

    Ways to make the same piece keep the order of their parts' ids; SentencePiece takes the leftmost in the text, which
    differs only where two ways overlap on one symbol (in a run of one letter).
    """
    scores = _per_token(gguf, "tokenizer.ggml.scores", len(vocabulary.tokens))
    kinds = (_NORMAL, _USER_DEFINED)
    ids = {token: i for i, token in enumerate(vocabulary.tokens) if vocabulary.types[i] in kinds}
    if longest := [token for token in ids if len(token) > _MAX_PIECE]:
        raise gguf.error(f"token {short(longest[0])} has {len(longest[0])} characters, the limit is {_MAX_PIECE}")
    ways = []
    for piece, token_id in ids.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                ways.append((-scores[token_id], token_id, ids[left], ids[right], left, right))
    return [(left, right) for *_, left, right in sorted(ways)]


# framing and configuration


def _frame(gguf: GgufFile, vocabulary: Vocabulary, *, adds_bos: bool) -> processors.TemplateProcessing:
    """Put BOS before and EOS after a text, where the file asks for them or its family does so by default."""
    before = after = ""
    specials = []
    if gguf.get("tokenizer.ggml.add_bos_token", bool, adds_bos):
        if vocabulary.bos is None:
            raise gguf.error("begins texts with a token that it does not name ('tokenizer.ggml.bos_token_id')")
        before = vocabulary.tokens[vocabulary.bos]
        specials.append((before, vocabulary.bos))
    if gguf.get("tokenizer.ggml.add_eos_token", bool, False):
        after = vocabulary.tokens[vocabulary.ends[0]]
        specials.append((after, vocabulary.ends[0]))
    single = [part for part in (before, "$A", after) if part]
    pair = [*single, *(part.replace("$A", "$B") + ":1" for part in single)]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=specials)


def _config(gguf: GgufFile, vocabulary: Vocabulary) -> dict[str, Any]:
    named = {
        "bos_token": vocabulary.text(vocabulary.bos),
        "eos_token": vocabulary.tokens[vocabulary.ends[0]],
        "unk_token": vocabulary.text(vocabulary.unknown),
        "pad_token": vocabulary.text(vocabulary.padding),
        "chat_template": _chat_template(gguf),
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{key: value for key, value in named.items() if value is not None},
    }


def _chat_template(gguf: GgufFile) -> str | list[dict[str, str]] | None:
    """The one template, or all of them by name where the file has several (for tool use, say)."""
    key = "tokenizer.chat_template"
    default: str | None = gguf.get(key, str, None)
    named = {name.removeprefix(f"{key}."): name for name in gguf.metadata if name.startswith(f"{key}.")}
    if not named or default is None:
        return default
    templates = {"default": default} | {short_name: gguf.get(name, str) for short_name, name in named.items()}
    return [{"name": name, "template": template} for name, template in templates.items()]
