"""A ``tokenizer.json`` becomes a tokenizer that cuts every text alike, or a step of it that has no equal is named."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import corpora
import pytest
import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers
from transformers import XLNetTokenizer

from xltrain.data.cleanup import CleanUp
from xltrain.data.subwords import train_sentencepiece
from xltrain.data.tokenizer import SentencePieceTokenizer, Tokenizer, train_characters
from xltrain.data.words import ByteTokenizer, WordTokenizer
from xltrain.errors import UsageError
from xltrain.interop.spiece import SentencePieceModel
from xltrain.interop.tokenizer import tokenizer_files
from xltrain.interop.tokenizer_import import from_tokenizer_json, read_folder_tokenizer

PLACE = Path("tokenizer.json")
LINES = [
    "",
    " ",
    "  two  in front, two   between and behind  ",
    "Ｆｕｌｌ width ①",
    "caf\u00e9 cafe\u0301 Tie\u0302\u0301ng <eop> <mask> a<eop>b",
    "``quoted'' THE Text",
    "x ▁ y",
    "日本語、カタカナ",
]


@cache
def trained(normalization: str, cleanup: CleanUp, algorithm: str = "unigram") -> SentencePieceTokenizer:
    words = corpora.vocabulary()
    text = [" ".join([*words[start:], "café naïf ①", "The Ｆｕｌｌ", "a  b"]) for start in range(0, 300, 7)]
    return train_sentencepiece(
        text,
        vocab_size=300,
        model_type=algorithm,
        character_coverage=1.0,
        normalization=normalization,
        user_defined_symbols=["<eop>", "①"],
        max_sentences=1000,
        cleanup=cleanup,
    )


def exported(tokenizer: Tokenizer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(tokenizer_files(tokenizer)["tokenizer.json"])
    return found


def lines(corpus: corpora.Corpus) -> list[str]:
    return LINES + corpus.valid.read_text(encoding="utf-8").splitlines()[:50]


@pytest.mark.parametrize("normalization", ["nmt_nfkc", "nfkc_cf", "identity"])
@pytest.mark.parametrize("cleanup", [CleanUp(), CleanUp(quotes=True, accents=True, lower=True)], ids=["as is", "clean"])
def test_pieces_that_were_exported_are_rebuilt(corpus: corpora.Corpus, normalization: str, cleanup: CleanUp):
    """Without spiece.model beside them; and exported once more, they are written as before."""
    before = trained(normalization, cleanup)
    after = from_tokenizer_json(exported(before), PLACE)
    assert isinstance(after, SentencePieceTokenizer)
    assert after.cleanup == cleanup
    assert after.encode(lines(corpus)) == before.encode(lines(corpus))
    written = exported(after)
    assert {part: written[part] for part in ("normalizer", "pre_tokenizer")} == {
        part: exported(before)[part] for part in ("normalizer", "pre_tokenizer")
    }


@pytest.mark.parametrize(
    "tokenizer",
    [
        train_characters(["abc xyz\n"], vocab_size=None),
        ByteTokenizer(),
        WordTokenizer(["<eos>", "a", "<unk>"], eos=True, lower=False),
        WordTokenizer(["<eos>", "a", "<unk>"], eos=True, lower=True),
        WordTokenizer(["<eos>", "a", "<unk>"], eos=False, lower=False),
        WordTokenizer(["a", "b"], eos=False, lower=True),
    ],
)
def test_characters_bytes_and_words_that_were_exported_come_back_and_no_others(tokenizer: Tokenizer):
    content = exported(tokenizer)
    found = from_tokenizer_json(content, PLACE)
    assert (type(found), found.files()) == (type(tokenizer), tokenizer.files())
    for part, other in (("normalizer", {"type": "NFC"}), ("pre_tokenizer", {"type": "Whitespace"})):
        with pytest.raises(UsageError, match="only where it has exported that itself and its normaliser"):
            from_tokenizer_json(content | {part: other}, PLACE)


def theirs(steps: Sequence[Any], cuts: Sequence[Any]) -> dict[str, Any]:
    """A unigram vocabulary with steps of the library ``tokenizers``."""
    model = SentencePieceModel.read(trained("identity", CleanUp()).model)
    scores = [(piece.text, piece.score) for piece in model.pieces]
    built = tokenizers.Tokenizer(tokenizers.models.Unigram(scores, unk_id=0, byte_fallback=False))
    built.normalizer = normalizers.Sequence(list(steps))
    built.pre_tokenizer = pre_tokenizers.Sequence(list(cuts))
    found: dict[str, Any] = json.loads(built.to_str())
    return found


def metaspace(scheme: str = "always", **options: Any) -> Any:
    return pre_tokenizers.Metaspace(prepend_scheme=scheme, **options)


SPACES = normalizers.Replace(Regex(" {2,}"), " ")
ENDS = normalizers.Replace(Regex(r"\A +| +\z"), "")
WORDS = pre_tokenizers.WhitespaceSplit()
QUOTES = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]


@pytest.mark.parametrize(
    ("steps", "cuts"),
    [
        ([SPACES], [WORDS, metaspace()]),
        ([SPACES, ENDS], [metaspace()]),
        ([normalizers.Strip(), SPACES], [metaspace()]),
        ([SPACES, normalizers.Strip()], [metaspace("never")]),
        ([], [metaspace("never")]),
        ([normalizers.Prepend(" ")], [metaspace("first")]),
        ([], [WORDS, metaspace()]),
        (
            [normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.Lowercase(), ENDS, SPACES],
            [metaspace()],
        ),
        ([normalizers.NFKD(), normalizers.StripAccents(), SPACES], [WORDS, metaspace()]),
        (
            [ENDS, SPACES, normalizers.Replace(" ", "▁")],
            [metaspace("always", split=False)],
        ),
        ([normalizers.Replace(" ", "▁"), normalizers.Replace(Regex(r"\A▁"), "▁▁")], [metaspace(split=False)]),
        ([normalizers.Replace(" ", "▁")], []),
    ],
)
def test_steps_of_other_programs_that_have_an_equal_are_kept(steps: list[Any], cuts: list[Any]):
    content = theirs(steps, cuts)
    found = from_tokenizer_json(content, PLACE)
    other = tokenizers.Tokenizer.from_str(json.dumps(content))
    plain = ["one two", "bada  bado", "Bada ``dodo'' B\u00e1", "never: 龘 seen", "", " "]
    plain += ["good night", "trail ", " lead", "  two  "]
    assert found.encode(plain) == [other.encode(line).ids for line in plain]


@pytest.mark.parametrize(
    ("steps", "cuts", "said"),
    [
        (
            [normalizers.NFKC(), SPACES],
            [metaspace()],
            'normaliser has a step that xltrain has not, .*: {"type": "NFKC"};',
        ),
        ([normalizers.NFD(), SPACES], [metaspace()], '"NFD"'),
        ([normalizers.NFKD(), SPACES], [metaspace()], '"NFKD"'),
        ([normalizers.StripAccents(), SPACES], [metaspace()], '"StripAccents"'),
        ([normalizers.Replace("``", '"'), SPACES], [metaspace()], '"``"'),
        ([SPACES, normalizers.Lowercase()], [metaspace()], '"Lowercase"'),
        ([normalizers.Replace("a", "b"), SPACES], [metaspace()], '"String": "a"'),
        ([normalizers.BertNormalizer(), SPACES], [metaspace()], '"BertNormalizer"'),
        ([SPACES], [pre_tokenizers.Digits(), metaspace()], 'pre-tokenizer has a step .*"Digits"'),
        ([SPACES], [metaspace(), pre_tokenizers.Punctuation()], '"Punctuation"'),
        ([SPACES], [metaspace(replacement="_")], '"Metaspace"'),
        ([SPACES], [], "does not mark spaces, as sentencepiece would; put spiece.model beside it"),
        ([], [metaspace()], "keeps spaces, but puts none before one, as sentencepiece would"),
        ([], [WORDS, metaspace("first")], r"WhitespaceSplit cuts and Metaspace \(first\) does not mark one by one"),
        ([ENDS, SPACES], [WORDS, metaspace("never")], r"Metaspace \(never\) does not mark one by one"),
        ([normalizers.Replace(" ", "▁")], [WORDS, metaspace()], "does not mark one by one"),
        ([normalizers.Strip(), SPACES], [metaspace("first")], r"Metaspace \(first\), which puts no space before"),
        ([SPACES, ENDS], [metaspace("first")], r"Metaspace \(first\), which puts no space before"),
        ([SPACES], [metaspace()], "some spaces vanish, but not those at the ends, with no Strip, as sentencepiece"),
        ([SPACES], [metaspace("never")], "not those at the ends, with no Strip"),
        ([SPACES, normalizers.Replace(" ", "▁")], [], "not those at the ends, with no Strip"),
        ([ENDS], [metaspace("never")], r"not those within, with no replacement of ' \{2,\}'"),
    ],
)
def test_steps_without_an_equal_are_named(steps: list[Any], cuts: list[Any], said: str):
    with pytest.raises(UsageError, match=said):
        from_tokenizer_json(theirs(steps, cuts), PLACE)


def test_pieces_that_spell_unknown_characters_in_bytes_are_refused():
    content = theirs([SPACES], [metaspace()])
    content["model"]["byte_fallback"] = True
    with pytest.raises(UsageError, match="holds a Unigram vocabulary"):
        from_tokenizer_json(content, PLACE)


def test_steps_before_a_model_of_sentencepiece_are_not_passed_over(spiece: Path, tmp_path: Path):
    """What lies beside ``spiece.model`` says what text went through first."""
    (tmp_path / "spiece.model").write_bytes(spiece.read_bytes())
    read: Callable[[], Any] = lambda: read_folder_tokenizer(tmp_path, given=None)  # noqa: E731
    content = theirs([normalizers.Lowercase(), SPACES], [metaspace()])
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert read().cleanup == CleanUp(lower=True)
    content = theirs([normalizers.NFC(), SPACES], [metaspace()])
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=rf'^{tmp_path}/tokenizer.json: its normaliser has a step .*"NFC"'):
        read()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("charsmap", [True, False])
def test_what_transformers_own_tokenizer_wrote_cuts_text_alike(
    spiece: Path, corpus: corpora.Corpus, tmp_path: Path, charsmap: bool, lower: bool
):
    """transformers 5 writes tokenizer.json alone, with a clean-up in it."""
    model = SentencePieceModel.read(spiece.read_bytes())
    other = XLNetTokenizer(
        vocab=[(piece.text, piece.score) for piece in model.pieces],
        unk_id=0,
        do_lower_case=lower,
        _spm_precompiled_charsmap=model.charsmap if charsmap else None,
    )
    other.save_pretrained(tmp_path)
    ours = read_folder_tokenizer(tmp_path, given=None)
    assert isinstance(ours, SentencePieceTokenizer)
    assert ours.cleanup == CleanUp(quotes=True, accents=True, lower=lower)
    read = [*corpus.valid.read_text(encoding="utf-8").splitlines()[:100], "b\u00e1 de\u0301 ``ta'' 'ti'", "dada,DADA."]
    read += ["Ｄａ  da"] if charsmap else ["Da  da"]
    assert ours.encode(read) == [other(line, add_special_tokens=False)["input_ids"] for line in read]


def test_the_way_in_which_transformers_4_wrote_spaces_is_known():
    content = theirs([*QUOTES, normalizers.NFKD(), normalizers.StripAccents(), SPACES], [WORDS, metaspace()])
    expected = from_tokenizer_json(content, PLACE)
    old = {"type": "Metaspace", "replacement": "▁", "str_rep": "▁", "add_prefix_space": True}
    cuts = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, old]}
    assert from_tokenizer_json(content | {"pre_tokenizer": cuts}, PLACE).files() == expected.files()
