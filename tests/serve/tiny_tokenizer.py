"""Small tokenizers of the two kinds that matter, with whatever pieces a test needs."""

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from rtk.serve.tokenizer import Tokenizer

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

SPECIAL = ("<bos>", "<|im_start|>", "<|im_end|>")
BOS, IM_START, IM_END = 0, 1, 2


def _byte_names():
    """How byte-level vocabularies write each byte: printable ones as they are, the others from U+0100 up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    names = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in names]
    return names | {byte: chr(0x100 + i) for i, byte in enumerate(others)}


_NAMES = _byte_names()


def piece_name(piece):
    return "".join(_NAMES[byte] for byte in piece)


def byte_level(*pieces, bos=False, template=CHATML):
    """Special tokens, then the 256 bytes in order, then `pieces`, which only tests produce: there are no merges."""
    vocab = {token: i for i, token in enumerate(SPECIAL)}
    for piece in [*(bytes([byte]) for byte in range(256)), *pieces]:
        vocab.setdefault(piece_name(piece), len(vocab))
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    if bos:
        backend.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    return Tokenizer(backend, {"bos_token": "<bos>", "eos_token": "<|im_end|>"}, template)


def ids_of(tokenizer, *pieces):
    """The ids of pieces of a byte-level tokenizer, given as bytes or text."""
    names = [piece_name(piece.encode() if isinstance(piece, str) else piece) for piece in pieces]
    vocab = tokenizer._backend.get_vocab()
    return [vocab[name] for name in names]


def sentence_piece(*words):
    """Words begin with a space, which the decoder takes off the first; bytes stand in for what is not in there."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for piece in [*(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyz", *words]:
        vocab.setdefault(piece, len(vocab))
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return Tokenizer(backend, {"bos_token": "<s>", "eos_token": "</s>"})
