"""What perplexity and the figures beside it mean, on losses that are known."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import pytest
import torch
from evaluated import T, V, by_position, text_of, trained
from torch import Tensor, nn

from xltrain.data.corpus import Counts
from xltrain.data.store import Split, split_in_memory
from xltrain.data.tokenizer import train_characters
from xltrain.data.words import train_words
from xltrain.evaluation.perplexity import Protocol, Result, report, standard_error
from xltrain.objectives.plan import IGNORE


class Costly(nn.Module):
    """Every target costs 10 nats, but for those of a segment with only one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList()

    def forward(self, targets: Tensor, memory: Any, **inputs: Any) -> tuple[Tensor, Any]:
        counted = targets != IGNORE
        return torch.where(counted, 10.0 if counted.sum() > 1 else 2.0, 0.0), memory


def test_a_mean_is_over_targets_not_over_batches():
    result = trained().score(text_of(11), model=Costly(), seq_len=9, mem_len=0, batch_size=1)
    assert (result.targets, result.nll) == (10, 92.0)
    assert result.loss == pytest.approx(9.2)  # the mean of the two batches' means would be 6


def test_the_standard_error_is_that_of_a_ratio_of_block_sums():
    assert standard_error(np.array([3.0]), np.array([2.0])) is None
    assert standard_error(np.array([2.0, 4.0, 0.0]), np.array([2.0, 4.0, 0.0])) == 0.0
    # Blocks of equal size: the standard deviation of their means over the root of their number.
    draw = np.random.default_rng(1)
    means = draw.normal(2.0, 0.3, size=50)
    expected = means.std(ddof=1) / math.sqrt(50)
    assert standard_error(means * 40, np.full(50, 40.0)) == pytest.approx(expected, rel=1e-12)
    # It does not depend on how a text is cut into batches.
    found, split = trained(), text_of(900)
    errors = [found.score(split, batch_size=rows).standard_error for rows in (1, 3)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-5)
    losses = np.array(list(by_position(found, split).values()))
    assert 0.3 < errors[0] / (losses.std() / math.sqrt(len(losses))) < 3  # these tokens are independent


@pytest.mark.parametrize("objective", ["causal", "permutation", "masked", "seq2seq"])
def test_a_uniform_model_has_the_vocabulary_size_as_its_perplexity(objective: str):
    found = trained(objective)
    with torch.no_grad():
        found.model.embedding.weight.zero_()
    result = found.score(text_of(500))
    assert math.exp(result.loss) == pytest.approx(V, rel=1e-6)


def test_the_unigram_loss_is_that_of_the_same_targets():
    found, split = trained(), text_of(200)
    counts = np.arange(V, dtype=np.int64) * 3
    result = found.score(split, unigram=counts)
    share = (counts + 1) / (counts.sum() + V)
    expected = -np.log(share[split.tokens[1:]])
    assert result.unigram_loss == pytest.approx(expected.mean(), rel=1e-12)
    masked = trained("permutation").score(split, unigram=np.zeros(V, dtype=np.int64))
    assert masked.unigram_loss == pytest.approx(math.log(V), rel=1e-12)


def chinese(folder: Path, lines: int, end: str) -> Split:
    """A text of seven characters, 21 bytes, again and again."""
    path = folder / "zh.txt"
    path.write_bytes(("我們學習語言。" + end).encode("utf-8") * lines)
    counts = Counts()
    documents = list(corpora.read_documents([path], separator="blank_line", counts=counts))
    tokenizer = train_characters([line for document in documents for line in document.lines], vocab_size=None)
    return split_in_memory("validation", documents, counts, tokenizer)


def figures(result: Result, split: Split, *, whole: bool = True) -> dict[str, Any]:
    return report(result, split, Protocol("stream", T, T, 4), whole=whole)


@pytest.mark.parametrize(("end", "characters", "size"), [("", 7_000, 21_000), ("\n", 8_000, 22_000)])
def test_bits_per_character_and_per_byte_are_told_apart(tmp_path: Path, end: str, characters: int, size: int):
    split = chinese(tmp_path, 1_000, end)
    assert (split.counts["characters"], split.counts["bytes"]) == (characters, size)
    result = trained(vocab_size=17).score(split)
    assert result.targets == characters  # every character but the first, and the end of the document
    found = figures(result, split)
    assert found["bits_per_char"] == pytest.approx(result.nll / 0.69314718056 / characters, rel=1e-9)
    assert found["bits_per_byte"] * size == pytest.approx(found["bits_per_char"] * characters, rel=1e-12)
    if not end:
        assert found["bits_per_char"] == pytest.approx(3 * found["bits_per_byte"], rel=1e-12)


def test_figures_per_word_are_the_total_over_the_words_of_the_raw_text(tmp_path: Path):
    split = replace(text_of(100), counts=text_of(100).counts | {"words": 20})
    result = Result(nll=200.0, targets=99, seconds=2.0, tokens=100, unigram_nll=0.0)
    found = figures(result, split)
    assert found["ppl"] == pytest.approx(math.exp(200 / 99))
    assert found["ppl_word"] == pytest.approx(math.exp(10.0))
    assert found["tokens_per_second"] == 50.0


def test_where_only_some_tokens_are_targets_figures_of_the_whole_text_are_left_out():
    result = Result(nll=200.0, targets=9, seconds=1.0, tokens=100, unigram_nll=0.0)
    found = figures(result, text_of(100), whole=False)
    assert {found[key] for key in ("ppl_word", "bits_per_char", "bits_per_byte")} == {None}
    assert found["ppl"] == pytest.approx(math.exp(200 / 9))


def test_a_perplexity_that_no_number_can_hold_is_left_out():
    result = Result(nll=2000.0, targets=500, seconds=1.0, tokens=100, unigram_nll=0.0)
    found = figures(result, text_of(100))
    assert found["ppl_word"] is None  # 2,000 nats for one word
    assert found["ppl"] == pytest.approx(math.exp(4.0))


def test_published_perplexities_per_word_count_the_ends_of_lines_and_published_bits_are_per_symbol(tmp_path: Path):
    path = tmp_path / "words.txt"
    path.write_text("a b <unk> c\nb d\n" * 50)
    counts = Counts()
    documents = list(corpora.read_documents([path], separator="file", counts=counts))
    lines = [line for document in documents for line in document.lines]
    for eos, ends in ((True, 100), (False, 0)):
        tokenizer = train_words(lines, vocab_size=None, eos=eos, lower=False)
        split = split_in_memory("validation", iter(documents), counts, tokenizer)
        result = trained(vocab_size=tokenizer.vocab_size).score(split)
        found = figures(result, split)
        assert (found["words"], found["lines"]) == (300, 100)
        assert found["targets"] == 300 + ends - 1  # all but the first
        assert found["ppl"] == pytest.approx(math.exp(found["nll"] / (found["words"] + ends - 1)))
        assert found["bits_per_target"] == pytest.approx(found["nll"] / 0.69314718056 / (300 + ends - 1))
