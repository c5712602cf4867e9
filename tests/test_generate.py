"""Generation: the same as recomputing everything for every token, whatever is generated beside it, however long."""

import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import pytest
import sentencepiece
import torch
from loaded import T, V, loaded, next_log_probs

from xltrain.data.tokenizer import CONTROLS, SPECIALS, CharTokenizer, SentencePieceTokenizer
from xltrain.data.words import ByteTokenizer, WordTokenizer
from xltrain.evaluation.generate import Ends, line_end
from xltrain.evaluation.loading import Loaded
from xltrain.evaluation.reading import Reader
from xltrain.evaluation.sampling import Sampling
from xltrain.evaluation.spelling import Speller
from xltrain.model.memory import Memory

Cli = Callable[..., Any]

ALL = torch.ones(V, dtype=torch.bool)


def prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [draw.integers(9, V, length).tolist() for length in lengths]


def greedy(reader: Reader, rows: list[list[int]], count: int) -> tuple[list[list[int]], list[torch.Tensor]]:
    """Texts with ``count`` tokens more, and the distributions that these came from."""
    log_probs, state = reader.read(rows)
    found, seen = [list(row) for row in rows], [log_probs]
    for _ in range(count):
        tokens = log_probs.argmax(dim=-1)
        for row, token in zip(found, tokens.tolist(), strict=True):
            row.append(token)
        log_probs, state = reader.step(tokens, state)
        seen.append(log_probs)
    return found, seen


# --- equal to full recomputation


@pytest.mark.parametrize("objective", ["causal", "permutation", "seq2seq"])
def test_every_token_is_what_a_forward_over_all_before_it_says(objective: str):
    model = loaded(objective)
    rows = prompts(1, 5, 12)  # a source of a seq2seq model is one segment
    found, seen = greedy(Reader.of(model, mem_len=100), rows, 40)
    for row, prompt in enumerate(rows):
        text = list(prompt)
        for step in range(41):
            source = len(prompt) if objective == "seq2seq" else 0
            expected = next_log_probs(model, text, source=source)
            np.testing.assert_allclose(seen[step][row], expected, atol=1e-4)
            text.append(int(np.argmax(expected)))
        assert found[row] == text[:-1]


def test_a_prompt_of_several_segments_is_read_as_a_whole():
    model = loaded()
    for prompt in prompts(T, T + 1, 3 * T, 50):
        log_probs, _ = Reader.of(model, mem_len=60).read([prompt])
        np.testing.assert_allclose(log_probs[0], next_log_probs(model, prompt), atol=1e-4)


@pytest.mark.parametrize("objective", ["causal", "permutation", "seq2seq"])
def test_zeros_that_a_memory_begins_with_are_as_many_for_every_row(objective: str):
    model = loaded(objective, segments={"initial_memory": "zeros", "mem_len": 12})
    reader, rows = Reader.of(model), prompts(1, 5, T + 3, 3 * T, 5)
    assert reader.mem_len == 12  # with one zero more than in training, a first token would see what it never saw
    together, seen = greedy(reader, rows, 20)
    for row, prompt in enumerate(rows):
        [text], alone = greedy(reader, [prompt], 20)
        assert together[row] == text
        for one, other in zip(seen, alone, strict=True):
            np.testing.assert_allclose(one[row], other[0], atol=1e-5)


def test_with_zeros_a_prompt_of_one_segment_is_read_as_in_training():
    model = loaded(segments={"initial_memory": "zeros", "mem_len": 12})
    for prompt in prompts(1, 5, T):
        tokens = torch.tensor([prompt])
        with torch.no_grad():
            memory = model.model.empty_memory(rows=1, mem_len=12)
            hidden, _ = model.model.hidden(tokens, torch.arange(len(prompt))[None], memory)
            expected = model.model.softmax.log_probs(hidden)[0, -1]
        log_probs, _ = Reader.of(model).read([prompt])
        np.testing.assert_allclose(log_probs[0], expected, atol=1e-5)


@pytest.mark.parametrize("objective", ["causal", "permutation"])
def test_with_full_memory_a_token_sees_as_much_as_a_window_of_that_length(objective: str):
    memory, model = 20, loaded(objective)
    [prompt] = prompts(6)
    [text], seen = greedy(Reader.of(model, mem_len=memory), [prompt], 60)
    for step in (0, 10, 30, 59):
        expected = windowed_log_probs(model, text[: 6 + step], window=memory + 1)
        np.testing.assert_allclose(seen[step][0], expected, atol=1e-4)
    whole = next_log_probs(model, text[: 6 + 59])
    assert not np.allclose(seen[59][0], whole, atol=1e-3)


def windowed_log_probs(model: Loaded, before: list[int], *, window: int) -> list[float]:
    """From one forward over all but the last token, in which every row of every layer sees its last ``window`` keys."""
    core, tokens = model.model, torch.tensor([before])
    query = model.config.objective.name == "permutation"
    with torch.no_grad():
        core.same_length = True  # with which the length of (here: empty) memory is how many keys a row sees
        memory = core.empty_memory(rows=1, mem_len=window)
        hidden, memory = core.hidden(tokens[:, :-1], torch.arange(len(before) - 1)[None], memory)
        core.same_length = False
        kept = Memory(memory.states[:, :, 1:], memory.length.clamp(max=window - 1), memory.document[:, 1:])
        last = torch.cat([tokens[:, -1:], torch.zeros(1, 1, dtype=torch.int64)], dim=1) if query else tokens[:, -1:]
        stream = "query" if query else "content"
        place = torch.tensor([[last.shape[1] - 1]])
        hidden, _ = core.hidden(last, torch.arange(last.shape[1])[None], kept, stream=stream, predict=place)
        return core.softmax.log_probs(hidden)[0, 0].tolist()


@pytest.mark.parametrize("objective", ["causal", "permutation", "seq2seq"])
@pytest.mark.parametrize("positions", ["learned", "sinusoid"])
def test_with_absolute_positions_the_last_segment_is_read_again(objective: str, positions: str):
    model = loaded(objective, segments={"mem_len": 0}, model={"positions": positions})
    reader, rows = Reader.of(model), prompts(2, 5)
    found, seen = greedy(reader, rows, 30)
    room = T - 1 if objective == "permutation" else T
    for row, prompt in enumerate(rows):
        for step in (0, 5, T, 29):
            before = found[row][: len(prompt) + step]
            lost = max(0, len(before) - room)
            source = max(0, len(prompt) - lost) if objective == "seq2seq" else 0
            expected = next_log_probs(model, before[lost:], source=source)
            np.testing.assert_allclose(seen[step][row], expected, atol=1e-4)


def test_parts_of_a_pair_are_told_apart_while_generating():
    sections = {"segments": {"mem_len": 0, "cross_documents": False}, "corpus": {"document_separator": "two_columns"}}
    model = loaded("seq2seq", model={"segment_embeddings": True}, **sections)
    torch.nn.init.normal_(model.model.segment)
    [prompt] = prompts(5)
    [text], seen = greedy(Reader.of(model), [prompt], 6)
    for step in range(7):
        before = torch.tensor([text[: 5 + step]])
        places = torch.arange(before.shape[1])[None]
        with torch.no_grad():
            hidden, _ = model.model.hidden(
                before,
                (places - 4).clamp(min=0),
                model.model.empty_memory(rows=1, mem_len=0),
                segment_ids=(places >= 5).long(),
                predict=places[:, -1:],
            )
            expected = model.model.softmax.log_probs(hidden)[0, 0]
        np.testing.assert_allclose(seen[step][0], expected, atol=1e-4)


def test_rows_that_are_read_together_do_not_change_one_another():
    for objective in ("causal", "permutation", "seq2seq"):
        reader = Reader.of(loaded(objective), mem_len=24)
        rows = prompts(3, 50, T, T + 1, 1)
        together, _ = greedy(reader, rows, 30)
        assert together == [greedy(reader, [row], 30)[0][0] for row in rows]


# --- time and space


def test_the_time_of_a_token_does_not_grow_with_what_was_generated():
    reader = Reader.of(loaded(), mem_len=64)
    log_probs, state = reader.read(prompts(64))
    seconds: list[float] = []
    for _ in range(1200):
        begin = time.perf_counter()
        log_probs, state = reader.step(log_probs.argmax(dim=-1), state)
        seconds.append(time.perf_counter() - begin)
    early, late = (float(np.median(part)) for part in (seconds[100:400], seconds[900:]))
    assert late < 1.5 * early


def test_the_space_of_a_memory_does_not_grow_with_what_was_generated():
    reader = Reader.of(loaded(), mem_len=20)
    log_probs, state = reader.read(prompts(6))
    sizes = set()
    for _ in range(200):
        log_probs, state = reader.step(log_probs.argmax(dim=-1), state)
        sizes.add(state.buffer.size)
    assert max(sizes) <= 2 * 20


def test_by_default_a_token_sees_as_far_as_training_did():
    assert Reader.of(loaded(segments={"seq_len": 16, "mem_len": 8})).mem_len == 16 + 8 - 1
    assert Reader.of(loaded(model={"same_length": True}, segments={"seq_len": 16, "mem_len": 8})).mem_len == 8
    assert Reader.of(loaded(segments={"mem_len": 0}, model={"positions": "learned"})).mem_len is None


# --- sampling


def some_log_probs(rows: int = 4, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, V)) * 2).log_softmax(dim=-1)


def test_tokens_are_drawn_with_their_probabilities():
    [log_probs] = some_log_probs(1)
    count = 20_000
    samples = torch.arange(count)
    tokens = Sampling(seed=3).choose(log_probs.expand(count, -1), ALL, samples=samples, step=0)
    share = torch.bincount(tokens, minlength=V) / count
    assert torch.allclose(share, log_probs.exp().float(), atol=0.012)


def test_a_draw_depends_on_the_seed_the_sample_and_the_step_only():
    log_probs = some_log_probs(1).expand(300, -1)
    samples = torch.arange(300)
    all_together = Sampling(seed=1).choose(log_probs, ALL, samples=samples, step=5)
    backwards = Sampling(seed=1).choose(log_probs, ALL, samples=samples.flip(0), step=5)
    assert torch.equal(all_together, backwards.flip(0))
    for other in (
        Sampling(seed=2).choose(log_probs, ALL, samples=samples, step=5),
        Sampling(seed=1).choose(log_probs, ALL, samples=samples, step=6),
    ):
        assert not torch.equal(all_together, other)


def test_temperature_and_limits_let_in_what_they_say():
    scores = torch.tensor([[0.5, 0.2, 0.2, 0.06, 0.04]]).double().log()

    def of(**settings: Any) -> list[float]:
        return Sampling(**settings).distribution(scores)[0].tolist()

    assert of() == pytest.approx([0.5, 0.2, 0.2, 0.06, 0.04])
    assert of(temperature=0.5) == pytest.approx([x * x / 0.3352 for x in (0.5, 0.2, 0.2, 0.06, 0.04)])
    assert of(top_k=1) == [1.0, 0, 0, 0, 0]
    assert of(top_k=3) == pytest.approx([5 / 9, 2 / 9, 2 / 9, 0, 0])
    assert of(top_p=0.49) == [1.0, 0, 0, 0, 0]
    assert of(top_p=0.51) == pytest.approx([5 / 7, 2 / 7, 0, 0, 0])  # of two alike the first
    assert of(top_p=0.0001) == [1.0, 0, 0, 0, 0]
    assert of(top_k=3, top_p=0.8) == pytest.approx([5 / 9, 2 / 9, 2 / 9, 0, 0])  # shares of what top_k lets in


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e308])
def test_a_temperature_at_the_edge_of_what_a_float_holds(temperature: float):
    scores = torch.tensor([[-5.0, -0.4, -torch.inf, -1.4]]).double()
    likely = [0, 1, 0, 0] if temperature < 1 else [1 / 3, 1 / 3, 0, 1 / 3]
    assert Sampling(temperature=temperature).distribution(scores)[0].tolist() == pytest.approx(likely)
    allowed = torch.tensor([True, True, False, True])
    tokens = Sampling(temperature=temperature).choose(scores.expand(50, -1), allowed, samples=torch.arange(50), step=0)
    assert set(tokens.tolist()) == ({1} if temperature < 1 else {0, 1, 3})


def test_the_byte_order_mark_of_a_file_is_no_part_of_a_prompt(finished: Any, cli: Cli, tmp_path: Path):
    source = tmp_path / "prompts.txt"
    source.write_bytes(b"\xef\xbb\xbfBada\r\nkile\r\n")
    options = ["--file", source, "--lines", "--max-tokens", 2, "--json"]
    assert [found["prompt"] for found in samples_of(cli("generate", finished[0] / "run", *options))] == ["Bada", "kile"]


@pytest.mark.parametrize("settings", [{}, {"top_k": 3}, {"top_p": 0.3}, {"temperature": 0.0}, {"temperature": 100.0}])
def test_what_is_not_allowed_is_never_chosen(settings: dict[str, Any]):
    allowed = torch.zeros(V, dtype=torch.bool)
    allowed[[2, 9, 10]] = True
    rows = some_log_probs(2000, seed=1)
    tokens = Sampling(**settings).choose(rows, allowed, samples=torch.arange(2000), step=0)
    assert set(tokens.tolist()) <= {2, 9, 10}


def test_control_pieces_are_never_allowed_but_for_the_end_of_a_document():
    for until in ("document", "never"):
        ends = Ends.of(loaded(), until=until)
        banned = {SPECIALS[token] for token in np.flatnonzero(~ends.allowed)}
        assert banned == {"<unk>", "<eop>", *CONTROLS} - {"<eod>"}
        assert ends.stops == (frozenset({SPECIALS.index("<eod>")}) if until == "document" else frozenset())
    apart = Ends.of(loaded(segments={"cross_documents": False}), until="never")
    assert not apart.allowed[SPECIALS.index("<eod>")]  # nothing was learned of what follows it
    assert not Ends.of(loaded("permutation"), until="document").allowed[SPECIALS.index("<eod>")]  # nor of it, here


# --- spelling


def spelled(tokenizer: Any, ids: list[int], **more: Any) -> list[str]:
    speller = Speller(tokenizer, **more)
    return [speller.add(token) for token in ids] + [speller.finish()]


def test_pieces_spell_what_the_tokenizer_decodes(spiece: Path):
    tokenizer = SentencePieceTokenizer(spiece.read_bytes())
    draw = np.random.default_rng(0)
    for _ in range(50):
        ids = draw.integers(8, 500, 20).tolist()
        assert "".join(spelled(tokenizer, ids)) == tokenizer.decode(ids)


def test_a_first_word_is_spaced_from_the_text_before_it(spiece: Path):
    tokenizer = SentencePieceTokenizer(spiece.read_bytes())
    ids = tokenizer.encode(["kile mo"])[0]
    assert "".join(spelled(tokenizer, ids)) == "kile mo"
    assert "".join(spelled(tokenizer, ids, before="Bada")) == " kile mo"
    assert "".join(spelled(tokenizer, ids, before="Bada ")) == "kile mo"
    words = WordTokenizer(["<eos>", "a", "b"], eos=True, lower=False)
    assert spelled(words, [1, 2, 0, 2, 0], before="a") == [" a", " b", "\n", "b", "\n", ""]


@pytest.mark.parametrize("before", ["Bada", "Bada ", "Bada\t", " ", "", "Bada\n", "Bada\n ", "Bada.\nBa  "])
def test_where_white_space_is_kept_it_is_spelled_as_often_as_it_is_there(before: str, tmp_path: Path):
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["Bada  kile\tkile", " kile Bada "] * 20), model_writer=written, vocab_size=30,
        normalization_rule_name="identity", remove_extra_whitespaces=False, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    tokenizer = SentencePieceTokenizer(written.getvalue())
    line = before.rpartition("\n")[2]
    context, [both] = tokenizer.encode([line])[0], tokenizer.encode([f"{line}  kile"])
    assert both[: len(context)] == context
    assert "".join(spelled(tokenizer, both[len(context) :], before=before)) == "  kile"


def test_only_whole_characters_are_spelled():
    tokenizer = ByteTokenizer()
    [ids] = tokenizer.encode(["é語!"])
    assert spelled(tokenizer, ids) == ["", "é", "", "", "語", "!", ""]
    assert spelled(tokenizer, ids[2:4]) == ["", "", "\ufffd"]
    assert spelled(tokenizer, [ids[2], ids[5]]) == ["", "\ufffd!", ""]


def test_bytes_that_sentencepiece_falls_back_to_are_joined(tmp_path: Path):
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["abc bca cab"] * 20), model_writer=written, vocab_size=290, byte_fallback=True,
        control_symbols=["<eod>"], hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    tokenizer = SentencePieceTokenizer(written.getvalue())
    [ids] = tokenizer.encode(["ab 語"])
    assert "".join(spelled(tokenizer, ids)) == "ab 語"
    assert spelled(tokenizer, ids)[-4:] == ["", "", "語", ""]


def test_the_end_of_a_document_is_written_where_generation_goes_on():
    tokenizer = CharTokenizer("ab")
    eod = SPECIALS.index("<eod>")
    assert spelled(tokenizer, [9, eod, 10], end=(eod, "\n\n")) == ["a", "\n\n", "b", ""]
    assert spelled(tokenizer, [9, eod, 10]) == ["a", "", "b", ""]


# --- the command


def samples_of(outcome: Any) -> list[dict[str, Any]]:
    assert outcome.status == 0, outcome.err
    assert outcome.out.count("\n") == 1
    return json.loads(outcome.out)["samples"]


def test_the_same_seed_gives_the_same_text_in_batches_of_every_size(finished: Any, cli: Cli, tmp_path: Path):
    file = tmp_path / "prompts.txt"
    file.write_text("Bada kile mo.\n\nNuru ta la mo dire. Kile ta.\n")
    options = ["--file", file, "--lines", "--num-samples", 3, "--max-tokens", 25, "--json"]
    run = finished[0] / "run"
    first = samples_of(cli("generate", run, *options))
    assert [sample["sample"] for sample in first] == list(range(9))
    assert len({sample["text"] for sample in first}) == 9
    for size in (1, 4, 9):
        again = samples_of(cli("generate", run, *options, "--batch-size", size))
        assert [sample["text"] for sample in again] == [sample["text"] for sample in first]
        assert [one["log_prob"] for one in again] == pytest.approx([two["log_prob"] for two in first], rel=1e-5)
    other = samples_of(cli("generate", run, *options, "--seed", 1))
    assert all(one["text"] != two["text"] for one, two in zip(first, other, strict=True))


def test_text_is_streamed_after_its_prompt(finished: Any, cli: Cli):
    run = finished[0] / "run"
    outcome = cli("generate", run, "Bada", "--max-tokens", 20)
    [sample] = samples_of(cli("generate", run, "Bada", "--max-tokens", 20, "--json"))
    assert outcome.out == f"Bada{sample['text']}\n"
    assert "tokens/s" in outcome.err
    assert "generating" not in outcome.err
    several = cli("generate", run, "Bada", "--max-tokens", 5, "--num-samples", 2)
    assert [line for line in several.out.splitlines() if line.startswith("---")] == ["--- sample 0", "--- sample 1"]


def test_samples_of_several_prompts_are_told_apart(finished: Any, cli: Cli, tmp_path: Path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Bada\nkile\n")
    options = ["--file", prompts, "--lines", "--max-tokens", 3, "--num-samples", 2]
    out = cli("generate", finished[0] / "run", *options).out
    places = [(prompt, copy) for prompt in (0, 1) for copy in (0, 1)]
    heads = [line for line in out.splitlines() if line.startswith("---")]
    assert heads == [f"--- prompt {prompt}, sample {copy}" for prompt, copy in places]
    samples = samples_of(cli("generate", finished[0] / "run", *options, "--json"))
    assert [(sample["prompt_number"], sample["sample_of_prompt"]) for sample in samples] == places
    assert [sample["prompt"] for sample in samples] == ["Bada", "Bada", "kile", "kile"]
    assert [sample["sample"] for sample in samples] == [0, 1, 2, 3]


def test_what_was_generated_scores_what_it_said(finished: Any, cli: Cli, tmp_path: Path):
    run = finished[0] / "run"
    [sample] = samples_of(cli("generate", run, "Bada kile", "--max-tokens", 12, "--json", "--temperature", 0))
    line = tmp_path / "line.jsonl"
    line.write_text(json.dumps({"context": "Bada kile", "text": sample["text"]}))
    [scored] = [json.loads(line) for line in cli("score", run, line).out.splitlines()]
    assert scored["tokens"] == 12
    assert scored["log_prob"] == pytest.approx(sample["log_prob"], abs=1e-3)


def test_a_text_can_end_with_a_line_or_with_the_document(corpus: corpora.Corpus, cli: Cli, tmp_path: Path):
    lines = tmp_path / "lines.txt"
    lines.write_text("ab\nba\n\n" * 300)
    config = corpora.config_file(
        tmp_path,
        lines,
        tokenizer={"kind": "char", "vocab_size": None},
        objective={"name": "causal"},
        training={"max_steps": 1},
    )
    assert cli("pretrain", config).status == 0
    run, options = tmp_path / "run", ["--json", "--num-samples", 20, "--max-tokens", 60]
    ends = {
        until: samples_of(cli("generate", run, *options, "--until", until)) for until in ("document", "line", "never")
    }
    assert all("\n" not in sample["text"] for sample in ends["line"])
    for sample in (*ends["line"], *ends["document"]):
        assert sample["ended"] or sample["tokens"] == 60
        assert len(sample["text"]) == sample["tokens"] - sample["ended"]
    lengths = {until: sum(sample["tokens"] for sample in found) for until, found in ends.items()}
    assert lengths["line"] < lengths["document"] < lengths["never"]
    for short, long in zip(ends["document"], ends["never"], strict=True):
        assert long["tokens"] == 60
        assert long["text"].startswith(short["text"] + ("\n\n" if short["ended"] else ""))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["a", "--file", "x"], "a prompt and --file exclude each other"),
        (["--file", "nowhere.txt"], "--file: nowhere.txt cannot be read (No such file or directory)"),
        (["--lines"], "--lines needs prompts from a file"),
        (["--top-p", "0"], "--top-p: 0.0 is not allowed"),
        (["--temperature", "inf"], "--temperature: inf is not allowed"),
        (["--seed", 2**63], "--seed: must be less than or equal to 9223372036854775807"),
        (["\udcff"], "the prompt is not UTF-8 text"),
        (["--until", "noon"], "--until: 'noon' is not allowed; choose document, line, never"),
        (["--until", "line"], "--until line: this run's vocabulary (sentencepiece) has no token for the end of a line"),
        (["--mem-len", "0"], "--mem-len: 0 would leave every token without those before it"),
        (["--no-start"], "prompt 1 has no token, and nothing stands before it; give a prompt, or --start"),
    ],
)
def test_an_option_of_generate_that_cannot_be(finished: Any, cli: Cli, options: list[str], said: str):
    assert cli("generate", finished[0] / "run", *options).sentence().startswith(said)


def test_a_masked_model_does_not_generate(corpus: corpora.Corpus, cli: Cli, tmp_path: Path):
    config = corpora.config_file(tmp_path, corpus.train, objective={"name": "masked"}, training={"max_steps": 1})
    assert cli("pretrain", config).status == 0
    said = cli("generate", tmp_path / "run", "Bada").sentence()
    assert said.startswith("generate needs a model that predicts from what comes before")


def test_lines_end_with_what_their_vocabulary_has_for_it(spiece: Path):
    assert line_end(ByteTokenizer()) == len(SPECIALS) + 10
    assert line_end(CharTokenizer("\nab")) == 9
    assert line_end(WordTokenizer(["<eos>", "a"], eos=True, lower=False)) == 0
    assert line_end(WordTokenizer(["a"], eos=False, lower=False)) is None
    assert line_end(SentencePieceTokenizer(spiece.read_bytes())) is None
