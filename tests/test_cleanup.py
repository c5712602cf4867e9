"""XLNet's clean-up of text: what it does, and that it goes wherever its vocabulary goes."""

import json
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from xltrain.data.cleanup import CleanUp
from xltrain.data.kinds import load_tokenizer
from xltrain.data.prepare import corpus_sources, fingerprints, marks_of, prepare
from xltrain.data.subwords import train_sentencepiece
from xltrain.data.tokenizer import SentencePieceTokenizer
from xltrain.errors import UsageError
from xltrain.interop.tokenizer import reasons_against, tokenizer_files

ALL = {"quotes": True, "strip_accents": True, "lower": True, "split_digit_commas": True}
WORDS = corpora.vocabulary(200)
LINES = [
    "In 1999, he paid 1,000, then 25,000,000, and 7,",
    "``Où est l'œuvre,'' dit-elle; ``là-bas.''",
    "Příliš žluťoučký KŮŇ úpěl ďábelské ódy, 12, 13,",
    "A10,B 3,4 ５, '' `` ''' ²,",
    "Plain words, and Plain Words 100, 200, 300,",
    "ÀÉÎÕÜ àéîõü ﬁn ½",
]
TRAINING = [*LINES * 30, *(f"{word.capitalize()} {word}, 1{number}, ``{word}''" for number, word in enumerate(WORDS))]


def original_text(text: str, *, lower: bool, keep_accents: bool) -> str:
    """``preprocess_text`` of zihangdai/xlnet, prepro_utils.py, as it is told in prose; white space aside."""
    outputs = text.replace("``", '"').replace("''", '"')
    if not keep_accents:
        outputs = unicodedata.normalize("NFKD", outputs)
        outputs = "".join([c for c in outputs if not unicodedata.combining(c)])
    return outputs.lower() if lower else outputs


def original_ids(model: sentencepiece.SentencePieceProcessor, text: str) -> list[int]:
    """``encode_ids`` of the same: pieces, those with a digit before a comma cut again, then ids."""
    pieces: list[str] = []
    for piece in model.encode(text, out_type=str):
        if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
            again = model.encode(piece[:-1].replace("▁", ""), out_type=str)
            if piece[0] != "▁" and again[0][0] == "▁":
                if len(again[0]) == 1:
                    again = again[1:]
                else:
                    again[0] = again[0][1:]
            pieces += [*again, piece[-1]]
        else:
            pieces.append(piece)
    return [model.piece_to_id(piece) for piece in pieces]


def trained(cleanup: CleanUp, *, model_type: str = "unigram", lines: list[str] = TRAINING) -> SentencePieceTokenizer:
    return train_sentencepiece(
        [line + "\n" for line in lines],
        vocab_size=250,
        model_type=model_type,
        character_coverage=1.0,
        normalization="nmt_nfkc",
        user_defined_symbols=["<eop>"],
        max_sentences=1000,
        cleanup=cleanup,
    )


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_ids_are_those_of_xlnets_own_preparation(model_type: str):
    everything = CleanUp(quotes=True, accents=True, lower=True, digit_commas=True)
    tokenizer = trained(everything, model_type=model_type)
    raw = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    found = tokenizer.encode([line + "\n" for line in LINES])
    assert found == [original_ids(raw, original_text(line, lower=True, keep_accents=False)) for line in LINES]
    pieces = {tokenizer.piece(number) for ids in found for number in ids}
    assert any(re.search(r"\d,$", tokenizer.piece(number)) for number in range(tokenizer.vocab_size))
    assert found != raw.encode([original_text(line, lower=True, keep_accents=False) for line in LINES])
    assert not [piece for piece in pieces if piece != piece.lower() or "``" in piece or "é" in piece]


@given(st.text(st.sampled_from("`'a É\u0301ﬁß½한语Σİ\"")), st.booleans(), st.booleans())
def test_each_part_does_what_the_original_does(text: str, lower: bool, accents: bool):
    cleanup = CleanUp(quotes=True, accents=accents, lower=lower)
    assert cleanup(text) == original_text(text, lower=lower, keep_accents=not accents)
    assert CleanUp()(text) == text
    assert CleanUp(lower=True)(text) == text.lower()


def config_for(folder: Path, keys: dict[str, Any], **sections: Any) -> Any:
    train = folder / "t.txt"
    train.write_text("\n".join(TRAINING), encoding="utf-8")
    tokenizer = {"vocab_size": 250, "character_coverage": 1.0} | keys
    return corpora.config_for(train, folder, tokenizer=tokenizer, **sections)


def test_it_is_part_of_the_store_its_name_and_its_vocabulary(tmp_path: Path):
    plain, cleaned = config_for(tmp_path, {}), config_for(tmp_path, ALL)
    names = [fingerprints(config, marks_of(corpus_sources(config)))["fingerprint"] for config in (plain, cleaned)]
    assert names[0] != names[1]
    store = prepare(cleaned).store
    tokenizer = load_tokenizer(store.folder)
    assert isinstance(tokenizer, SentencePieceTokenizer)
    assert tokenizer.cleanup == CleanUp(quotes=True, accents=True, lower=True, digit_commas=True)
    expected = [number for ids in tokenizer.encode(TRAINING) for number in ids]
    assert store.split("train").tokens.tolist() == [*expected, 7]
    assert not (prepare(plain).store.folder / "cleanup.json").exists()
    (store.folder / "cleanup.json").write_text('{"quotes": 1}', encoding="utf-8")
    with pytest.raises(UsageError, match=r"cleanup\.json: damaged"):
        load_tokenizer(store.folder)


def test_a_model_given_by_path_is_used_with_it(tmp_path: Path):
    model = tmp_path / "spiece.model"
    model.write_bytes(trained(CleanUp()).model)
    given = {"path": str(model), "vocab_size": None}
    configs = [config_for(tmp_path, given), config_for(tmp_path, given | {"lower": True})]
    names = {fingerprints(config, marks_of(corpus_sources(config)))["fingerprint"] for config in configs}
    assert len(names) == 2
    tokenizer = prepare(configs[1]).store.tokenizer()
    assert tokenizer.encode(["PLAIN"]) == tokenizer.encode(["plain"])


def test_it_goes_into_checkpoints_evaluation_and_is_off_by_default(tmp_path: Path, cli: Callable[..., Any]):
    keys = {"vocab_size": 250, "character_coverage": 1.0, "quotes": True, "strip_accents": True, "lower": True}
    train, upper = tmp_path / "t.txt", tmp_path / "upper.txt"
    train.write_text("\n".join(TRAINING), encoding="utf-8")
    upper.write_text("\n".join(TRAINING).upper().replace("''", '"'), encoding="utf-8")
    config = corpora.config_file(
        tmp_path, train, tokenizer=keys, objective={"name": "causal"}, training={"max_steps": 1}
    )
    assert cli("pretrain", config).status == 0
    found = []
    for path in (train, upper):
        outcome = cli("eval-ppl", tmp_path / "run", "--data", path, "--json")
        assert outcome.status == 0, outcome.err
        found.append(json.loads(outcome.out)["nll"])
    assert found[0] == found[1]


EXPORTED = [
    *LINES,
    "",
    "  ``a'' <unk> <UNK> <eop> É",
    "한국어 ỆỞỮẪ e\u0323\u0301 ǅ İstanbul",
    "a\u0345\u094d\u0e39 ʰ",
]


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
@pytest.mark.parametrize(
    "cleanup",
    [CleanUp(quotes=True), CleanUp(accents=True), CleanUp(lower=True), CleanUp(quotes=True, accents=True, lower=True)],
)
def test_an_export_cleans_text_as_training_did(tmp_path: Path, model_type: str, cleanup: CleanUp):
    tokenizer = trained(cleanup, model_type=model_type)
    assert reasons_against(tokenizer) == []
    for name, data in tokenizer_files(tokenizer).items():
        (tmp_path / name).write_bytes(data)
    exported = AutoTokenizer.from_pretrained(tmp_path)
    for text in EXPORTED:
        assert exported(text, add_special_tokens=False)["input_ids"] == tokenizer.encode([text])[0], text


def test_what_an_export_cannot_do_is_refused_with_its_reason():
    assert reasons_against(trained(CleanUp(digit_commas=True))) == [
        "tokenizer.split_digit_commas changes pieces after they are found, which the export cannot"
    ]
    greek = trained(CleanUp(lower=True), lines=[*TRAINING, "ΟΔΟΣ ΣΟΦΟΣ"])
    assert reasons_against(greek) == [
        "tokenizer.lower makes two letters of the Greek capital sigma, and the export only one"
    ]
