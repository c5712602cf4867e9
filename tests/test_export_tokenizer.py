"""The exported tokenizer against the one that training used: the same ids, with only the files of the folder.

Where two ways to cut a word have exactly the same score, sentencepiece decides by the rounding of its float32 sums.
"""

import io
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from transformers import AutoTokenizer

from xltrain.data.subwords import train_sentencepiece
from xltrain.data.tokenizer import (
    SentencePieceTokenizer,
    Tokenizer,
    train_characters,
)
from xltrain.data.words import ByteTokenizer
from xltrain.interop.spiece import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, SentencePieceModel
from xltrain.interop.tokenizer import reasons_against, special_ids, tokenizer_files

TIE = 1e-3  # float32 sums of a few hundred scores of about 10 are right to this

ACCENTED = [
    "Ein Bär läuft über die Straße, süß und größer als zuvor.",
    "L'élève naïf a déjà reçu la leçon où l'œuvre s'achève.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Tiếng Việt có nhiều dấu: ệ ở ữ ẫ.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
]
CHINESE = [
    "滾滾長江東逝水，浪花淘盡英雄。是非成敗轉頭空，青山依舊在，幾度夕陽紅。",
    "天下大勢，分久必合，合久必分：周末七國分爭，并入于秦。",
    "　　及秦滅之後，楚、漢分爭，又并入于漢。",
]
SPACES = [
    "",
    " ",
    "a  b   c",
    "  in front and behind  ",
    "tab\there",
    "no\u00a0break",
    "wide\u3000space",
    "zero\u200bwidth",
]
ODD = [
    "the <unk> of <unk> , <unk>.",
    "<unk>",
    "x<unk>y",
    "one <eop> two<eop>three <eop>",
    "<eop>front",
    "``quoted'' \"text\"",
    "ﬁve ligatures ① ２ ™ ½",
    "never seen: ꙮ龘\U0001f600!",
    "1000 00 0 0000000 11111",
]
DECOMPOSED = [
    "А\u0301лгебра, Ж\u0301",
    "１\u0302 ﬁ\u0301",
    "cafe\u0301",
    "Tie\u0302\u0301ng Vie\u0323\u0302t",
    "\u1112\u1161\u11ab\u1100\u1173\u11af",
    "n\u0303 u\u0308\u0304",
]


@cache
def sources() -> tuple[str, ...]:
    """Some thousands of lines of English, digits and indented text: Python's own library."""
    files = [
        path for path in sorted(Path(json.__file__).parent.parent.glob("[a-p]*.py")) if path.stat().st_size < 60_000
    ]
    lines = [line for path in files[:60] for line in path.read_text(encoding="utf-8").splitlines()]
    return tuple(lines[:9000:2])


@cache
def trained(model_type: str, normalization: str) -> SentencePieceTokenizer:
    return train_sentencepiece(
        [line for line in sources() if line.strip()] + (ACCENTED + CHINESE) * 20,
        vocab_size=1500,
        model_type=model_type,
        character_coverage=0.9995,
        normalization=normalization,
        user_defined_symbols=["<eop>", ".", "(", ")", '"', "-", "–", "£", "€", "½"],
        max_sentences=5000,
    )


def loaded(tokenizer: Tokenizer, folder: Path) -> Any:
    """What AutoTokenizer makes of the exported files."""
    assert reasons_against(tokenizer) == []
    for name, data in tokenizer_files(tokenizer).items():
        (folder / name).write_bytes(data)
    (folder / "config.json").write_text(json.dumps({"model_type": "xlnet", "vocab_size": tokenizer.vocab_size}))
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def ids(exported: Any, lines: list[str]) -> list[list[int]]:
    return exported(lines, add_special_tokens=False)["input_ids"]


def score(model: SentencePieceModel, tokens: list[int]) -> float:
    lowest = min(piece.score for piece in model.pieces if piece.kind == NORMAL)
    return sum(model.pieces[number].score if number else lowest - 10 for number in tokens)


@pytest.mark.parametrize(
    ("model_type", "normalization"),
    [("unigram", "nmt_nfkc"), ("unigram", "nfkc_cf"), ("unigram", "identity"), ("bpe", "nmt_nfkc")],
)
def test_text_is_cut_as_in_training(model_type: str, normalization: str, tmp_path: Path):
    tokenizer = trained(model_type, normalization)
    exported = loaded(tokenizer, tmp_path)
    lines = [*sources(), *ACCENTED, *CHINESE, *SPACES, *ODD, *DECOMPOSED]
    ours, theirs = tokenizer.encode(lines), ids(exported, lines)
    differing = [number for number, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other]
    assert len(lines) > 4000
    # A line that is nothing but <unk> is the one text that transformers has to take for the symbol.
    assert [lines[number] for number in differing if number >= len(sources())] == ["<unk>"]
    ties = [number for number in differing if number < len(sources())]
    model = SentencePieceModel.read(tokenizer.model)
    assert all(abs(score(model, ours[number]) - score(model, theirs[number])) < TIE for number in ties)
    assert len(ties) < len(lines) / 100


def test_special_pieces_have_the_ids_of_xlnet(spiece: Path, tmp_path: Path):
    exported = loaded(SentencePieceTokenizer(spiece.read_bytes()), tmp_path)
    roles = ("unk", "bos", "eos", "cls", "sep", "pad", "mask")
    assert [getattr(exported, f"{role}_token_id") for role in roles] == [0, 1, 2, 3, 4, 5, 6]
    assert exported.convert_tokens_to_ids(["<eod>", "<eop>"]) == [7, 8]
    assert sorted(exported.all_special_ids) == [0, 1, 2, 3, 4, 5, 6, 7]  # <eop> is text, as in training
    assert len(exported) == 500


def test_a_text_ends_as_xlnet_has_it(tmp_path: Path):
    exported = loaded(trained("unigram", "nmt_nfkc"), tmp_path)
    plain = ids(exported, ["one", "two"])
    assert exported("one")["input_ids"] == [*plain[0], 4, 3]
    assert list(exported("one")) == ["input_ids", "attention_mask"]
    both = exported("one", "two", return_token_type_ids=True)
    assert both["input_ids"] == [*plain[0], 4, *plain[1], 4, 3]
    assert both["token_type_ids"] == [0] * (len(plain[0]) + 1) + [1] * (len(plain[1]) + 1) + [2]
    padded = exported(["one", "one two three"], padding=True)["input_ids"]
    assert padded[0][0] == 5
    assert padded[0][-1] == 3


def test_a_mask_in_text_is_the_mask_unless_it_is_asked_to_be_spelled(tmp_path: Path):
    tokenizer = trained("unigram", "nmt_nfkc")
    exported = loaded(tokenizer, tmp_path)
    line = "of the <mask> and"
    assert ids(exported, [line])[0].count(6) == 1
    assert (
        exported(line, add_special_tokens=False, split_special_tokens=True)["input_ids"] == tokenizer.encode([line])[0]
    )


def test_decoding_gives_the_text_back(tmp_path: Path):
    exported = loaded(trained("unigram", "nmt_nfkc"), tmp_path)
    for line in [*ACCENTED, *CHINESE[:2], "one <eop> two."]:
        assert exported.decode(ids(exported, [line])[0]) == line.replace("，", ",").replace("：", ":")
    assert exported.decode([0, 7]) == "<unk><eod>"


def test_saving_and_loading_again_changes_nothing(tmp_path: Path):
    exported = loaded(trained("unigram", "nmt_nfkc"), tmp_path)
    exported.save_pretrained(tmp_path / "again")
    (tmp_path / "again/config.json").write_text((tmp_path / "config.json").read_text())
    again = AutoTokenizer.from_pretrained(tmp_path / "again", local_files_only=True)
    lines = [*sources()[:300], *ACCENTED, *CHINESE, *SPACES, *ODD, "a <mask> b"]
    assert again(lines)["input_ids"] == exported(lines)["input_ids"]


def test_vowel_marks_keep_the_order_in_which_they_were_typed(tmp_path: Path):
    lines = [
        "\u0627\u0644\u0644\u0651\u064e\u0647",
        "\u05e9\u05c1\u05bc\u05b8\u05dc\u05d5\u05b9\u05dd",
        "plain letters",
    ]
    tokenizer = train_sentencepiece(
        lines * 50,
        vocab_size=33,
        model_type="unigram",
        character_coverage=1.0,
        normalization="nmt_nfkc",
        user_defined_symbols=["<eop>"],
        max_sentences=1000,
    )
    assert ids(loaded(tokenizer, tmp_path), lines) == tokenizer.encode(lines)


def test_characters(tmp_path: Path):
    text = "First line, with  two spaces;\nsecond: é漢\r\n\ttab <unk> <eop>\n"
    tokenizer = train_characters(text.splitlines(keepends=True), vocab_size=None)
    exported = loaded(tokenizer, tmp_path)
    assert ids(exported, [text, "\n", "q漢", ""]) == tokenizer.encode([text, "\n", "q漢", ""])
    assert exported.decode(tokenizer.encode([text])[0]) == text
    assert exported.decode([0, 10]) == "<unk>" + tokenizer.piece(10)
    assert [exported.cls_token_id, exported.sep_token_id, exported.pad_token_id, exported.mask_token_id] == [3, 4, 5, 6]
    assert exported("a <mask>b", add_special_tokens=False)["input_ids"][2:] == [6, tokenizer.encode(["b"])[0][0]]
    assert special_ids(tokenizer)["<eod>"] == 7
    assert len(exported) == tokenizer.vocab_size


def test_bytes(tmp_path: Path):
    text = "Two  lines:\n\té漢\U0001f600 <unk> <eop>\r\n\x00\xad\x7f"
    tokenizer = ByteTokenizer()
    exported = loaded(tokenizer, tmp_path)
    assert ids(exported, [text, "", "\n"]) == tokenizer.encode([text, "", "\n"])
    assert exported.decode(tokenizer.encode([text])[0]) == text
    assert exported.decode(range(9 + 0x20, 9 + 0x7F)) == "".join(map(chr, range(0x20, 0x7F)))
    assert [exported.cls_token_id, exported.sep_token_id, exported.pad_token_id, exported.mask_token_id] == [3, 4, 5, 6]
    assert len(exported) == 265


def test_it_loads_without_protobuf_and_tiktoken(tmp_path: Path):
    tokenizer = trained("unigram", "nmt_nfkc")
    loaded(tokenizer, tmp_path)
    program = (
        "import sys\n"
        "for name in ('google.protobuf', 'tiktoken', 'sentencepiece'): sys.modules[name] = None\n"
        "from transformers import AutoTokenizer, XLNetTokenizer\n"
        "for kind in (AutoTokenizer, XLNetTokenizer):\n"
        f"    found = kind.from_pretrained({str(tmp_path)!r}, local_files_only=True)\n"
        "    specials = [found.cls_token_id, found.sep_token_id, found.pad_token_id, found.mask_token_id]\n"
        "    others = found.convert_tokens_to_ids(['<eod>', '<eop>'])\n"
        "    print(*specials, *others, *found('and of the', add_special_tokens=False).input_ids)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    expected = " ".join(map(str, [3, 4, 5, 6, 7, 8, *tokenizer.encode(["and of the"])[0]]))
    assert done.stdout.splitlines() == [expected, expected]


def test_a_model_file_is_read_as_sentencepiece_reads_it():
    tokenizer = trained("unigram", "nmt_nfkc")
    model = SentencePieceModel.read(tokenizer.model)
    processor = tokenizer.processor
    numbers = range(processor.get_piece_size())
    assert [piece.text for piece in model.pieces] == [processor.id_to_piece(number) for number in numbers]
    assert [piece.score for piece in model.pieces] == [processor.get_score(number) for number in numbers]
    assert [piece.kind == CONTROL for piece in model.pieces] == [processor.is_control(number) for number in numbers]
    assert [piece.kind == UNKNOWN for piece in model.pieces] == [processor.is_unknown(number) for number in numbers]
    assert sum(piece.kind == USER_DEFINED for piece in model.pieces) == 10
    assert (model.algorithm, model.rule, len(model.charsmap) > 100_000) == ("unigram", "nmt_nfkc", True)
    assert (model.adds_space_in_front, model.collapses_spaces, model.marks_spaces) == (True, True, True)
    assert SentencePieceModel.read(trained("bpe", "nmt_nfkc").model).algorithm == "bpe"
    assert SentencePieceModel.read(trained("unigram", "identity").model).charsmap == b""


def foreign(**options: Any) -> SentencePieceTokenizer:
    """A model as another program would train it."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sources()[:2000]), model_writer=written, vocab_size=600, minloglevel=2, **options
    )
    return SentencePieceTokenizer(written.getvalue())


def test_a_model_without_some_of_the_special_pieces(tmp_path: Path):
    tokenizer = foreign(add_dummy_prefix=False, remove_extra_whitespaces=False, character_coverage=1.0)
    exported = loaded(tokenizer, tmp_path)
    assert special_ids(tokenizer) == {"<unk>": 0, "<s>": 1, "</s>": 2}
    assert exported(["one", "one two"], padding=True, add_special_tokens=False)["input_ids"][0][0] == 2
    lines = [*sources()[:500], *SPACES[2:5]]
    assert ids(exported, lines) == tokenizer.encode(lines)
    assert exported("one")["input_ids"] == tokenizer.encode(["one"])[0]
    assert exported.mask_token is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model_type": "word", "hard_vocab_limit": False}, "is of type word, not unigram or bpe"),
        ({"model_type": "char", "hard_vocab_limit": False}, "is of type char, not unigram or bpe"),
        ({"byte_fallback": True}, "spells unknown characters in bytes (byte_fallback)"),
        ({"treat_whitespace_as_suffix": True}, "marks spaces at the end of words (treat_whitespace_as_suffix)"),
    ],
)
def test_what_cannot_be_expressed_is_named(options: dict[str, Any], reason: str):
    found = reasons_against(foreign(**options))
    assert found == [f"the sentencepiece model {reason}: the export does not know how to say that"]
