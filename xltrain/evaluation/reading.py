"""Reading rows of tokens from left to right: what comes next, and what is remembered for going on.

A model with memory reads a text once and then token by token. One that cannot have any, because its positions are
absolute or because it tells the parts of a pair apart, reads its last ``seq_len`` tokens again for every token.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from xltrain.config.schema import Config
from xltrain.errors import UsageError
from xltrain.evaluation.loading import Loaded
from xltrain.evaluation.room import empty_cache
from xltrain.model.cache import Cache
from xltrain.model.memory import Memory
from xltrain.model.transformer import LanguageModel, Remembered
from xltrain.objectives.left_to_right import in_order
from xltrain.training.build import autocast


@dataclass(frozen=True)
class Window:
    """What a model without memory goes on from.

    tokens: (B, W) the last tokens of every row, and padding.
    length: (B,) how many of them are text.
    source: (B,) how many of these, from the first on, see one another.
    """

    tokens: Tensor
    length: Tensor
    source: Tensor

    def selected(self, rows: Tensor) -> "Window":
        """The rows of these numbers (B',); one may be taken several times."""
        return Window(self.tokens[rows], self.length[rows], self.source[rows])


State = Cache | Window


@dataclass(frozen=True)
class Reader:
    """Reads from left to right, from the content stream or, where there is one, from the query stream.

    query: predict from a query row at the place after the last token.
    seq_len: tokens read at once.
    mem_len: positions that are remembered; None: nothing is, and the last ``seq_len`` tokens are read again.
    source: tokens given to :meth:`read` see one another, as the source of a seq2seq model does.
    parts: the model tells a source (part 0) from what follows it (part 1).
    context: in which forwards run (autocast).
    """

    model: LanguageModel
    seq_len: int
    mem_len: int | None
    query: bool
    source: bool
    parts: bool
    context: Callable[[], AbstractContextManager[object]]

    @classmethod
    def of(cls, loaded: Loaded, *, mem_len: int | None = None) -> "Reader":
        """For a trained model; by default it sees as far back as the last token of a segment did in training."""
        config = loaded.config
        parts = config.two_columns and config.model.segment_embeddings
        remembers = not absolute(config) and not parts
        return cls(
            model=loaded.model,
            seq_len=config.segments.seq_len,
            mem_len=(longest_reach(config) if mem_len is None else mem_len) if remembers else None,
            query=config.objective.name == "permutation",
            source=config.objective.name == "seq2seq",
            parts=parts,
            context=lambda: autocast(config.training.precision, loaded.place.device),
        )

    @torch.no_grad()
    def read(
        self, rows: Sequence[Sequence[int]], *, advanced: Callable[[float], None] = lambda tokens: None
    ) -> tuple[Tensor, State]:
        """Read B texts of one token or more from their beginnings.

        Segments are cut from a text's end, so that they do not depend on the other rows. Shorter rows are padded in
        front, where nobody sees it; where memory begins with zeros that are seen, texts of different lengths are read
        one at a time, for nothing may stand between a text and its zeros. ``advanced`` is told how many tokens have
        been read since the last time.

        Returns:
            (B, V) log-probabilities of the next token, and the state to go on from.
        """
        device = next(self.model.parameters()).device
        if self.mem_len is None:
            window = self._window([list(row)[-self.room :] for row in rows], device)
            return self._again(window), window
        width = max(map(len, rows))
        if self.model.zeros_at_first and min(map(len, rows)) < width:
            apart = [self.read([row], advanced=advanced) for row in rows]
            states = [state for _, state in apart if isinstance(state, Cache)]
            return torch.cat([log_probs for log_probs, _ in apart]), Cache.joined(states)  # (B, V)
        tokens = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows], device=device)  # (B, W)
        length = torch.tensor([len(row) for row in rows], device=device)  # (B,)
        with self.context():
            memory = empty_cache(self.model, rows=len(rows), mem_len=self.mem_len)
        last = torch.empty(0)
        for stop in range(width - (width - 1) // self.seq_len * self.seq_len, width + 1, self.seq_len):
            start = max(0, stop - self.seq_len)
            text = torch.arange(start, stop, device=device) >= width - length[:, None]  # (B, T)
            last, memory = self._advance(tokens[:, start:stop], text, memory, source=self.source)
            read = (length - (width - stop)).clamp(min=0, max=self.mem_len)  # (B,)
            memory = replace(memory, length=read)  # padding is not remembered
            advanced(sum(max(0, stop - max(start, width - len(row))) for row in rows))
        return self._log_probs(last), memory

    @torch.no_grad()
    def after_zeros(self, rows: Sequence[Sequence[int]], *, zeros: int) -> Tensor:
        """Read B texts of one length after ``zeros`` that are seen, and remember all of them.

        Zeros leave as text comes, as in training; then memory grows with the text. One that were as long from the
        beginning would show more zeros than the model has ever met.

        Returns:
            (B, V) log-probabilities of the next token.
        """
        tokens = torch.tensor(rows, device=next(self.model.parameters()).device)  # (B, W)
        width, last = tokens.shape[1], torch.empty(0)
        count = min(self.seq_len, zeros) or width
        memory = self.model.empty_memory(rows=len(rows), mem_len=zeros)
        for stop in range(width - (width - 1) // count * count, width + 1, count):
            part = tokens[:, max(0, stop - count) : stop]  # (B, T)
            last, after = self._advance(part, torch.ones_like(part, dtype=torch.bool), memory, source=self.source)
            new, kept = part.shape[1], max(zeros, stop)
            memory = Memory(
                states=torch.cat([memory.states, after.states[:, :, -new:]], dim=2)[:, :, -kept:],  # (L, B, M', D)
                length=torch.full_like(memory.length, stop),
                document=torch.cat([memory.document, after.document[:, -new:]], dim=1)[:, -kept:],  # (B, M')
            )
        return self._log_probs(last)

    @torch.no_grad()
    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one more token (B,) in every row; returns as :meth:`read`."""
        if isinstance(state, Window):
            state = self._appended(state, tokens)
            return self._again(state), state
        text = torch.ones_like(tokens, dtype=torch.bool)[:, None]  # (B, 1)
        last, memory = self._advance(tokens[:, None], text, state, source=False)
        return self._log_probs(last), memory

    def _advance(self, tokens: Tensor, text: Tensor, memory: Remembered, *, source: bool) -> tuple[Tensor, Remembered]:
        """Hidden state (B, D) from which the token after the last is predicted, and the memory with (B, T) tokens."""
        count = tokens.shape[1]
        order = in_order(text, source=torch.full_like(tokens[:, 0], count) if source else None)  # (B, T)
        place = count - 1
        if self.query:  # a place for the query row to stand at; its token is seen by nobody and not remembered
            tokens = torch.cat([tokens, torch.zeros_like(tokens[:, :1])], dim=1)  # (B, T+1)
            order = torch.cat([order, torch.full_like(order[:, :1], count)], dim=1)  # (B, T+1)
            place = count
        with self.context():
            hidden, memory = self.model.hidden(
                tokens,
                order,
                memory,
                stream="query" if self.query else "content",
                predict=torch.full_like(tokens[:, :1], place),  # (B, 1)
                remember=count,
            )
        return hidden[:, 0], memory

    @property
    def room(self) -> int:
        """Tokens of a window, where nothing is remembered; one place of a segment is the query row's."""
        return self.seq_len - self.query

    def _window(self, rows: list[list[int]], device: torch.device) -> Window:
        width = max(map(len, rows))
        length = torch.tensor([len(row) for row in rows], device=device)  # (B,)
        return Window(
            tokens=torch.tensor([row + [0] * (width - len(row)) for row in rows], device=device),  # (B, W)
            length=length,
            source=length if self.source else torch.zeros_like(length),
        )

    def _again(self, window: Window) -> Tensor:
        """(B, V) log-probabilities of the token after a window, reading all of it."""
        tokens, place = window.tokens, window.length - 1
        if self.query:
            tokens, place = torch.cat([tokens, torch.zeros_like(tokens[:, :1])], dim=1), window.length  # (B, W+1)
        places = torch.arange(tokens.shape[1], device=tokens.device)  # (W,)
        with self.context():
            hidden, _ = self.model.hidden(
                tokens,
                in_order(places <= place[:, None], source=window.source),
                self.model.empty_memory(rows=tokens.shape[0], mem_len=0),
                stream="query" if self.query else "content",
                predict=place[:, None],  # (B, 1)
                segment_ids=(places >= window.source[:, None]).long() if self.parts else None,
            )
        return self._log_probs(hidden[:, 0])

    def _appended(self, window: Window, tokens: Tensor) -> Window:
        """The window with one more token (B,) per row, and without the first where it would grow too long."""
        grown = torch.cat([window.tokens, torch.zeros_like(tokens)[:, None]], dim=1)  # (B, W+1)
        grown = grown.scatter(1, window.length[:, None], tokens[:, None])
        full = window.length == self.room  # (B,)
        grown = torch.where(full[:, None], grown.roll(-1, dims=1), grown)
        return Window(
            tokens=grown[:, : self.room],
            length=(window.length + 1).clamp(max=self.room),
            source=(window.source - full.long()).clamp(min=0),
        )

    def _log_probs(self, hidden: Tensor) -> Tensor:
        """(B, D) -> (B, V)"""
        with self.context():
            return self.model.softmax.log_probs(hidden)


def absolute(config: Config) -> bool:
    """Whether places are counted from a segment's beginning, so that nothing can be remembered."""
    return config.model.positions in ("sinusoid", "learned")


def longest_reach(config: Config) -> int:
    """How many positions before it the last token of a segment sees in training, in every layer.

    Where memory begins with zeros that are seen, there are never more of them than in training.
    """
    segments = config.segments
    if config.model.same_length or segments.initial_memory == "zeros":
        return segments.mem_len
    return segments.mem_len + segments.seq_len - 1


def refuse_unordered(config: Config, *, what: str) -> None:
    """Raise a :class:`UsageError` for a model that cannot read from left to right."""
    if config.objective.name == "masked":
        raise UsageError(
            f"{what} needs a model that predicts from what comes before; this run's objective is masked, whose "
            "predictions see both sides: use a causal, permutation or seq2seq run"
        )
