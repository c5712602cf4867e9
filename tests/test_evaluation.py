"""Perplexity: the same numbers whatever the batch, every target once, and figures that mean what they say."""

import itertools
import math
from collections import Counter, defaultdict
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from xltrain.config.schema import Config
from xltrain.data.corpus import Counts
from xltrain.data.store import Split, split_in_memory
from xltrain.data.streams import NO_TOKEN
from xltrain.data.tokenizer import CharTokenizer, train_characters
from xltrain.evaluation.per_token import Recorder
from xltrain.evaluation.perplexity import Interrupted, Protocol, Result, evaluate, report, standard_error
from xltrain.model.transformer import LanguageModel
from xltrain.objectives.left_to_right import LeftToRight
from xltrain.objectives.plan import IGNORE, Objective
from xltrain.training.build import build_model, build_objective

CPU = torch.device("cpu")
TOKENIZER = CharTokenizer("".join(chr(ord("a") + number) for number in range(26)))
V = TOKENIZER.vocab_size
T = 16


@dataclass(frozen=True)
class Trained:
    """A model whose weights are large enough that context matters, and what it was configured with."""

    config: Config
    model: LanguageModel

    def score(self, split: Split, mode: str = "stream", *, model: nn.Module | None = None, **more: Any) -> Result:
        given = {"seq_len": T, "mem_len": T, "batch_size": 4, "stride": 1} | more
        extra = {key: given.pop(key) for key in ("unigram", "should_stop", "record") if key in given}
        objective = given.pop("objective", None)
        next_token = self.config.objective.name in ("causal", "seq2seq")
        protocol = Protocol(mode=mode, next_token=next_token, **given)
        return evaluate(
            model or self.model,
            objective or build_objective(self.config, tokenizer=TOKENIZER, seq_len=protocol.seq_len, device=CPU),
            split,
            protocol,
            new_memory=lambda rows: self.model.empty_cache(rows=rows, mem_len=protocol.mem_len),
            seed=self.config.run.seed,
            device=CPU,
            context=nullcontext,
            **extra,
        )


def trained(objective: str = "causal", vocab_size: int = V, **sections: dict[str, Any]) -> Trained:
    model = {"init": {"std": 0.25}, "dropout": 0.3, "attention_dropout": 0.3} | sections.pop("model", {})
    config = corpora.config_for(Path("a.txt"), Path(), objective={"name": objective}, model=model, **sections)
    return Trained(config, build_model(config, vocab_size=vocab_size, device=CPU))


def text_of(*lengths: int, seed: int = 0) -> Split:
    return corpora.split_of(lengths, name="validation", vocab_size=V, seed=seed)


class Watched(nn.Module):
    """Passes everything on to a model and keeps the loss of every target that counts, by document."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model, self.layers = model, model.layers
        self.losses: dict[int, list[float]] = defaultdict(list)
        self.targets: list[int] = []
        self.was_training: set[bool] = set()

    def forward(self, **inputs: Any) -> tuple[Tensor, Any]:
        losses, memory = self.model(**inputs)
        self.was_training.add(self.model.training)
        document, targets = inputs["document"], inputs["targets"]
        for row in range(targets.shape[0]):
            for place in (targets[row] != IGNORE).nonzero().flatten().tolist():
                number = 0 if document is None else int(document[row, place])
                self.losses[number].append(float(losses[row, place]))
                self.targets.append(int(targets[row, place]))
        return losses, memory


def recorded(found: Trained, split: Split, **more: Any) -> dict[int, list[float]]:
    recorder = Watched(found.model)
    found.score(split, model=recorder, **more)
    return recorder.losses


# --- the batch size does not matter


@pytest.mark.parametrize("mem_len", [0, 5, 16, 40])
@pytest.mark.parametrize("apart", [False, True])
def test_stream_loss_does_not_depend_on_the_number_of_rows(mem_len: int, apart: bool):
    found = trained(segments={"cross_documents": not apart})
    split = text_of(100, 7, 220, 1, 93, 200)
    alone = found.score(split, mem_len=mem_len, batch_size=1)
    assert alone.targets == (621 - 6 if apart else 620)
    for rows in (3, 8, 100):
        together = found.score(split, mem_len=mem_len, batch_size=rows)
        assert together.targets == alone.targets
        assert together.nll == pytest.approx(alone.nll, rel=1e-6)


def test_memory_matters_in_these_tests():
    split, found = text_of(600), trained()
    losses = [found.score(split, mem_len=mem_len).loss for mem_len in (0, 5, 16, 40)]
    assert min(abs(one - other) for one, other in itertools.pairwise(losses)) > 1e-3


def test_the_window_of_same_length_is_the_same_in_every_batch():
    found = trained(model={"same_length": True})
    split = text_of(400)
    results = [found.score(split, mem_len=20, batch_size=rows).nll for rows in (1, 5)]
    assert results[1] == pytest.approx(results[0], rel=1e-6)


@pytest.mark.parametrize("mode", ["stream", "document"])
@pytest.mark.parametrize(("objective", "mem_len"), [("permutation", 0), ("permutation", 40), ("masked", 16)])
def test_sampled_targets_and_their_loss_do_not_depend_on_the_number_of_rows(mode: str, objective: str, mem_len: int):
    found = trained(objective)
    split = text_of(100, 7, 220, 1, 93, 200)
    alone = found.score(split, mode, mem_len=mem_len, batch_size=1)
    assert 90 < alone.targets < 125
    for rows in (3, 8):
        together = found.score(split, mode, mem_len=mem_len, batch_size=rows)
        assert together.targets == alone.targets
        assert together.nll == pytest.approx(alone.nll, rel=1e-6)


@pytest.mark.parametrize("mode", ["stream", "document"])
def test_segments_that_overlap_do_not_depend_on_the_number_of_rows_either(mode: str):
    found = trained("permutation", segments={"reuse_len": 6})
    split = text_of(100, 7, 220, 1, 93, 200)
    alone = found.score(split, mode, mem_len=20, advance=6, batch_size=1)
    assert alone.targets > found.score(split, mode, mem_len=20).targets
    for rows in (3, 8):
        together = found.score(split, mode, mem_len=20, advance=6, batch_size=rows)
        assert together.targets == alone.targets
        assert together.nll == pytest.approx(alone.nll, rel=1e-6)


def test_a_smaller_last_batch_is_complete():
    found = trained()
    split = text_of(53 * T)
    for mem_len in (0, T):
        alone = found.score(split, mem_len=mem_len, batch_size=1)
        four = found.score(split, mem_len=mem_len, batch_size=4)
        assert (four.targets, alone.targets) == (53 * T - 1, 53 * T - 1)
        assert four.nll == pytest.approx(alone.nll, rel=1e-6)
    windows = found.score(split, "sliding", mem_len=0, stride=T, batch_size=4)
    assert windows.nll == pytest.approx(found.score(split, mem_len=0).nll, rel=1e-6)


# --- every target once


@pytest.mark.parametrize("seq_len", [64, 50, 16, 999, 1000, 1500])
def test_a_thousand_tokens_have_999_targets_for_every_segment_length(seq_len: int):
    result = trained().score(text_of(1000), seq_len=seq_len, mem_len=8)
    assert result.targets == 999
    assert result.loss == result.nll / 999


def test_the_total_is_the_sum_over_all_tokens_of_one_that_is_read_by_hand():
    found, seq_len, mem_len = trained(), 8, 12
    split = text_of(10 * (seq_len + mem_len))
    tokens = torch.from_numpy(split.tokens)[None]
    following = torch.cat([tokens[:, 1:], torch.tensor([[IGNORE]])], dim=1)
    memory, by_hand = found.model.empty_memory(rows=1, mem_len=mem_len), []
    found.model.eval()
    with torch.no_grad():
        for start in range(0, split.num_tokens, seq_len):
            part = slice(start, start + seq_len)
            order = torch.arange(tokens[:, part].shape[1])[None]
            losses, memory = found.model(tokens[:, part], order, following[:, part], memory)
            by_hand += losses[0].tolist()
    result = found.score(split, seq_len=seq_len, mem_len=mem_len, batch_size=3)
    assert result.targets == split.num_tokens - 1
    assert result.nll == pytest.approx(sum(by_hand[:-1]), rel=1e-6)


def test_documents_on_their_own_score_all_but_their_first_token():
    split = text_of(40, 1, 17, 64)
    assert trained().score(split, "document").targets == 122 - 4
    assert trained().score(split, "stream").targets == 122 - 1


def test_a_sliding_window_of_one_gives_every_target_the_whole_window():
    found, window = trained(), 10
    split = text_of(40)
    tokens = torch.from_numpy(split.tokens)
    expected = []
    found.model.eval()
    with torch.no_grad():
        for target in range(1, 40):
            begin = max(0, target - window)
            part = tokens[begin:target][None]
            targets = torch.full_like(part, IGNORE)
            targets[0, -1] = tokens[target]
            memory = found.model.empty_memory(rows=1, mem_len=0)
            expected.append(float(found.model(part, torch.arange(part.shape[1])[None], targets, memory)[0].sum()))
    result = found.score(split, "sliding", seq_len=window, mem_len=0, stride=1, batch_size=7)
    assert (result.targets, result.nll) == (39, pytest.approx(sum(expected), rel=1e-6))


def by_position(found: Trained, split: Split, objective: Objective | None = None, **more: Any) -> dict[int, float]:
    """The loss of every target by its place in the text."""
    recorder = Recorder()
    found.score(split, record=recorder, objective=objective, **more)
    positions, losses = recorder.in_order()
    assert len(set(positions.tolist())) == len(positions), "each place once"
    return dict(zip(positions.tolist(), losses.tolist(), strict=True))


@pytest.mark.parametrize("mode", ["stream", "document", "sliding"])
def test_losses_are_recorded_at_their_places_and_add_up(mode: str):
    found, split = trained(), text_of(40, 1, 17, 64)
    mem_len = 0 if mode == "sliding" else T
    for rows in (1, 3):
        losses = by_position(found, split, mode=mode, mem_len=mem_len, batch_size=rows)
        starts = {0} if mode != "document" else {0, 40, 41, 58}
        assert set(losses) == set(range(122)) - starts
        total = found.score(split, mode, mem_len=mem_len, batch_size=rows).nll
        assert math.fsum(losses.values()) == pytest.approx(total, rel=1e-12)


def test_a_segment_scores_what_reading_token_by_token_scores():
    """Where memory holds the whole text, how it is cut into segments is not seen."""
    split = text_of(60)
    for found, objective in ((trained(), None), (trained("permutation"), LeftToRight())):
        losses = by_position(found, split, objective, mem_len=64)
        token_by_token = by_position(found, split, objective, mem_len=64, seq_len=1, batch_size=1)
        assert losses.keys() == token_by_token.keys()
        for place, loss in losses.items():
            assert loss == pytest.approx(token_by_token[place], abs=2e-5)


def test_left_to_right_does_not_see_what_comes_after():
    found, split = trained("permutation"), text_of(100)
    other = replace(split, tokens=np.concatenate([split.tokens[:50], (split.tokens[50:] + 1) % V]))
    before, after = (by_position(found, text, LeftToRight(), mem_len=T, batch_size=1) for text in (split, other))
    assert list(before) == list(range(100))
    for place in range(50):
        assert before[place] == pytest.approx(after[place], abs=1e-6)
    assert abs(before[60] - after[60]) > 1e-4


def test_a_first_segment_has_the_same_losses_with_an_empty_memory_as_with_none():
    for settings in ({}, {"same_length": True}):
        found, split = trained(model=settings), text_of(T, seed=5)
        without = by_position(trained(), split, mem_len=0)
        assert by_position(found, split, mem_len=64) == pytest.approx(without, abs=1e-6)


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


def test_rows_are_as_many_as_it_pays_to_warm():
    protocol = Protocol("stream", seq_len=10, mem_len=40, batch_size=8)
    assert protocol.warm_up(num_layers=3) == 12
    assert [protocol.rows(tokens, num_layers=3) for tokens in (5, 100, 240, 360, 10_000)] == [1, 1, 2, 3, 8]
    assert replace(protocol, mem_len=0).rows(45, num_layers=3) == 5


# --- documents


def test_kept_apart_a_document_does_not_see_another():
    one, other = text_of(45, 70, seed=1), text_of(45, 70, seed=2)
    changed = replace(one, tokens=np.concatenate([other.tokens[:45], one.tokens[45:]]))
    for apart in (True, False):
        found = trained(segments={"cross_documents": not apart})
        before, after = (recorded(found, split, batch_size=2) for split in (one, changed))
        if apart:
            assert len(before[1]) == 69
            assert before[1] == pytest.approx(after[1], abs=1e-7)
            assert before[0] != pytest.approx(after[0], abs=1e-2)
        else:
            tail = [losses[0][-60:] for losses in (before, after)]
            assert max(abs(first - second) for first, second in zip(*tail, strict=True)) > 1e-3


def test_kept_apart_the_stream_gives_each_document_what_it_gets_on_its_own_where_segments_align():
    found = trained(segments={"cross_documents": False})
    split = text_of(2 * T, 3 * T, T)
    assert found.score(split).nll == pytest.approx(found.score(split, "document").nll, rel=1e-6)


def test_a_document_on_its_own_has_the_same_loss_wherever_it_stands():
    found = trained()
    last = text_of(37, seed=9)
    rest = text_of(*[5 + number % 40 for number in range(200)], seed=8)
    file = Split(
        "validation",
        np.concatenate([rest.tokens, last.tokens]),
        np.concatenate([rest.ends, rest.ends[-1] + last.ends]),
        rest.counts,
    )
    alone = recorded(found, last, mode="document")[0]
    within = recorded(trained(segments={"cross_documents": False}), file, mode="document", batch_size=3)[200]
    assert within == pytest.approx(alone, abs=1e-6)
    parts = found.score(last, "document").nll + found.score(rest, "document").nll
    assert found.score(file, "document").nll == pytest.approx(parts, rel=1e-6)
    assert found.score(file, "stream").nll != pytest.approx(parts, rel=1e-4)


@pytest.mark.parametrize("objective", ["masked", "permutation"])
def test_every_document_is_asked_for_places_of_its_own(objective: str):
    found, split = trained(objective), text_of(*[40] * 60)
    asked: list[dict[int, set[int]]] = []
    for rows in (1, 7):
        places: dict[int, set[int]] = defaultdict(set)

        def record(at: np.ndarray, losses: np.ndarray, places: dict[int, set[int]] = places) -> None:
            for place in at.tolist():
                places[place // 40].add(place % 40)

        found.score(split, "document", batch_size=rows, record=record)
        asked.append(places)
    assert asked[0] == asked[1]  # whatever is read beside them
    assert len({tuple(sorted(each)) for each in asked[0].values()}) > 50
    often = Counter(place for each in asked[0].values() for place in each)
    assert max(often.values()) < 30


# --- the model is as it was


def test_dropout_is_off_and_comes_back_and_two_evaluations_are_the_same_to_the_last_digit():
    found, split = trained(), text_of(300)
    recorder = Watched(found.model)
    found.model.train()
    recorder.train()
    state = torch.get_rng_state()
    first = found.score(split, model=recorder)
    assert recorder.was_training == {False}
    assert recorder.training
    assert found.model.training
    assert torch.equal(torch.get_rng_state(), state)
    found.model.eval()
    assert found.score(split).nll == first.nll
    assert not found.model.training
    assert all(parameter.grad is None for parameter in found.model.parameters())


def test_an_evaluation_that_is_stopped_leaves_the_model_training():
    found = trained()
    found.model.train()
    answers = iter([False, False, True])
    with pytest.raises(Interrupted):
        found.score(text_of(300), should_stop=lambda: next(answers))
    assert found.model.training


# --- what the figures mean


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


def test_the_end_of_a_text_is_no_target():
    assert NO_TOKEN == IGNORE
    found, split = trained(), text_of(3 * T)
    recorder = Watched(found.model)
    found.score(split, model=recorder, batch_size=1)
    assert recorder.targets == split.tokens[1:].tolist()
