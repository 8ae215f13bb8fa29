"""What all backends here do with a spec: read it, judge it, and write the grammar that their library then compiles."""

import importlib.util
import json
from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rtk.plugin.grammar import SPEC_KINDS, GrammarBackend, Judgement, Matcher, Spec, Vocabulary
from rtk.plugin.info import Options
from rtk_grammar import ebnf, regex, tags
from rtk_grammar.expr import Expr, RefusedError, Rules, Text, alt, pruned, token
from rtk_grammar.schema import Reasons, Writer, parsed
from rtk_grammar.strings import writable
from rtk_grammar.table import TABLE, Table
from rtk_grammar.tokens import TokenMatcher

KEPT = 64
"""Specs of which the grammar is kept: one that was judged is compiled next."""


class Written(NamedTuple):
    """A spec as a grammar, and the judgement of it; without rules where that is a refusal."""

    judgement: Judgement
    rules: Rules


class Writing(GrammarBackend):
    """Judges by a table, writes grammars, and has a library compile them."""

    spec_kinds = frozenset(SPEC_KINDS)
    library: ClassVar[str]
    """What is imported."""
    install: ClassVar[str]
    """What brings it."""
    table: ClassVar[Table] = TABLE
    free_by_rules: ClassVar[bool] = False
    """See `tags.write`."""

    def __init__(self, options: Options) -> None:
        if importlib.util.find_spec(self.library) is None:
            raise ModuleNotFoundError(f"{self.library} is not installed; run: pip install {self.install!r}")
        self._written = lru_cache(KEPT)(self._write)

    def judge(self, spec: Spec) -> Judgement:
        return self._written(spec).judgement

    def compile(self, spec: Spec, vocabulary: Vocabulary) -> Matcher:
        written = self._written(spec)
        if not written.rules:
            raise ValueError("; ".join(reason.problem for reason in written.judgement.reasons))
        return self.compiled(written.rules, vocabulary)

    @abstractmethod
    def compiled(self, rules: Rules, vocabulary: Vocabulary) -> TokenMatcher:
        """Have the library compile a grammar. Raises `ValueError` with one line."""

    def fill_batch(self, matchers: Sequence[Matcher], mask: NDArray[np.int32], rows: Sequence[int]) -> None:
        for matcher, row in zip(matchers, rows, strict=True):
            assert isinstance(matcher, TokenMatcher)
            matcher.fill(mask, row)

    def fits(self, rules: Rules) -> str:
        """Why the library cannot take a grammar; empty where it can."""
        return ""

    def _write(self, spec: Spec) -> Written:
        reasons = Reasons(self.table)
        rules: Rules = {}
        try:
            rules = pruned(_rules(spec, reasons, self.free_by_rules))
            if not reasons.refused:
                if "root" not in rules:
                    reasons.refuse("nothing that it allows ever comes to an end", "")
                elif problem := self.fits(rules):
                    reasons.refuse(problem, "")
        except RefusedError as error:
            reasons.refuse(f"{spec.kind}: {error}", "")
        except RecursionError:
            reasons.refuse(f"{spec.kind}: nested too deeply", "")
        return Written(reasons.judgement(), {} if reasons.refused else rules)


def _rules(spec: Spec, reasons: Reasons, by_rules: bool) -> Rules:
    if spec.kind == "json_schema":
        writer = Writer(reasons, spec.whitespace)
        root = writer.write(parsed(spec.text))
        return {"root": root, **writer.rules}
    if spec.kind == "structural_tag":
        return tags.write(spec.text, spec.whitespace, reasons, by_rules)
    if spec.kind == "ebnf":
        return ebnf.parse(spec.text)
    return {"root": token(_choice(spec.text) if spec.kind == "choice" else regex.parse(spec.text))}


def _choice(text: str) -> Expr:
    try:
        texts = json.loads(text)
    except (ValueError, RecursionError):
        raise RefusedError("not JSON") from None
    if not isinstance(texts, list) or not texts or not all(isinstance(one, str) and writable(one) for one in texts):
        raise RefusedError("no array of texts, of one at least")
    return alt(*(Text(one) for one in texts))
