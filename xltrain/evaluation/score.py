"""Log-probabilities of texts, each on its own, whatever else is scored beside it.

Causal models predict every token from those before it, permutation models too, from their query stream; seq2seq models
see the whole context as a source. Masked models know no probability of a text: for them it is the pseudo-log-likelihood
(Salazar et al. 2020), the sum over tokens of what the model says of each when it alone is hidden.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from xltrain.data.tokenizer import find_piece, never_target
from xltrain.errors import UsageError
from xltrain.evaluation.loading import Loaded
from xltrain.evaluation.reading import absolute
from xltrain.evaluation.room import empty_cache
from xltrain.evaluation.texts import Given
from xltrain.model.cache import Cache
from xltrain.objectives.left_to_right import in_order
from xltrain.objectives.plan import IGNORE
from xltrain.training.build import autocast

BLOCK = 64
"""Texts are sorted by length within blocks of so many batches."""


@dataclass(frozen=True)
class Scorer:
    """Scores texts, ``batch_size`` at once; how many does not change a result.

    Texts longer than a segment are read segment by segment from their beginning, with memory.

    advanced: told how many texts are done since the last time; parts of them count.
    """

    loaded: Loaded
    seq_len: int
    mem_len: int
    batch_size: int
    advanced: Callable[[float], None] = lambda texts: None

    @classmethod
    def of(
        cls,
        loaded: Loaded,
        *,
        mem_len: int | None = None,
        batch_size: int | None = None,
        advanced: Callable[[float], None] = lambda texts: None,
    ) -> "Scorer":
        """For a trained model, with the run's own sizes by default.

        Raises:
            UsageError: for memory that the model cannot have.
        """
        segments = loaded.config.segments
        if mem_len and absolute(loaded.config):
            positions = loaded.config.model.positions
            raise UsageError(f"--mem-len: {positions} positions allow no memory; leave it out")
        if mem_len == 0 and loaded.config.model.same_length:
            raise UsageError("--mem-len: this run's same_length needs a memory above 0; leave it out")
        return cls(
            loaded=loaded,
            seq_len=segments.seq_len,
            mem_len=segments.mem_len if mem_len is None else mem_len,
            batch_size=batch_size or loaded.config.evaluation.batch_size,
            advanced=advanced,
        )

    def score(self, texts: Iterable[Given]) -> Iterator[np.ndarray]:
        """Log-probability in nats of every token of every text, in their order.

        What a model does not predict has NaN: the first token of a text without any context (but for masked models,
        which see the text after it), and for permutation and masked models control symbols such as <eod>.
        """
        waiting = iter(texts)
        while block := list(islice(waiting, BLOCK * self.batch_size)):
            found: dict[int, np.ndarray] = {}
            by_length = sorted(range(len(block)), key=lambda place: len(block[place].context) + len(block[place].text))
            for first in range(0, len(block), self.batch_size):
                places = by_length[first : first + self.batch_size]
                found |= zip(places, self._batch([block[place] for place in places]), strict=True)
            yield from (found[place] for place in range(len(block)))

    @torch.no_grad()
    def _batch(self, texts: Sequence[Given]) -> list[np.ndarray]:
        if self.loaded.config.objective.name == "masked":
            return [self._hidden_in_turn(text) for text in texts]
        rows = [text.context + text.text for text in texts]
        longest = max(map(len, rows))
        device = self.loaded.place.device
        log_probs = torch.full((len(rows), longest + 1), torch.nan, dtype=torch.float64)  # by place in the text
        query = self.loaded.config.objective.name == "permutation"
        padded = torch.tensor([row + [0] * (longest + 1 - len(row)) for row in rows])  # (B, longest + 1)
        document = self._documents(padded)  # (B, longest + 1), or None
        length = torch.tensor([[len(row)] for row in rows])  # (B, 1)
        asked = torch.tensor([[len(text.context)] for text in texts])  # (B, 1)
        read = longest - (not query)  # nothing is predicted from a last token
        seq_len = max(1, longest) if self.loaded.config.two_columns else self.seq_len  # a pair is one segment
        memory = self._memory(len(rows), read, seq_len)
        for start in range(0, read, seq_len):
            places = torch.arange(start, min(start + seq_len, read))  # (T,)
            predicted = places + (not query)  # where the tokens stand that are predicted from these places
            wanted = (predicted >= asked) & (predicted < length) & ~self._never_asked[padded[:, predicted]]  # (B, T)
            if document is not None:  # nothing is known before a document's first token
                wanted &= document[:, predicted] == document[:, (predicted - 1).clamp(min=0)]
            tokens = padded[:, places]  # (B, T)
            with self._context():
                nll, memory = self.loaded.model(
                    tokens.to(device),
                    in_order(places < length, source=self._source(asked, start)).to(device),
                    padded[:, predicted].where(wanted, IGNORE).to(device),
                    memory,
                    stream="query" if query else "content",
                    document=None if document is None else document[:, places].to(device),
                    segment_ids=self._parts(places, asked, device),
                )
            log_probs[:, predicted] = torch.where(wanted, -nll.double().cpu(), log_probs[:, predicted])
            self.advanced(len(rows) * len(places) / read)
        if read < 1:  # texts of one token, of which nothing is predicted
            self.advanced(len(rows))
        if query:  # as for other models: nothing says anything about a first token
            log_probs[:, 0] = torch.nan
        return [
            log_probs[row, len(text.context) : len(text.context) + len(text.text)].numpy()
            for row, text in enumerate(texts)
        ]

    def _hidden_in_turn(self, given: Given) -> np.ndarray:
        """Pseudo-log-likelihood of a text's tokens: each segment is read once for every token, with that one hidden."""
        row, device = given.context + given.text, self.loaded.place.device
        mask = find_piece(self.loaded.tokenizer, "<mask>")
        assert mask is not None
        found = np.full(len(row), np.nan)
        memory = self._memory(1, len(row), self.seq_len)
        documents = self._documents(torch.tensor([row]))  # (1, tokens) or None
        asked = [place for place in range(len(given.context), len(row)) if not self._never_asked[row[place]]]
        if not asked:
            self.advanced(1)
        for start in range(0, len(row), self.seq_len):
            tokens = torch.tensor([row[start : start + self.seq_len]], device=device)  # (1, T)
            count = tokens.shape[1]
            document = None if documents is None else documents[:, start : start + count].to(device)  # (1, T)
            hidden = [place - start for place in asked if start <= place < start + count]
            for first in range(0, len(hidden), self.batch_size):
                predict = torch.tensor(hidden[first : first + self.batch_size], device=device)[:, None]  # (B, 1)
                shown = tokens.expand(len(predict), -1).scatter(1, predict, mask)  # (B, T)
                targets = tokens.expand(len(predict), -1).gather(1, predict)  # (B, 1)
                nll = self._apart(shown, targets, memory, predict, document)
                found[start + predict.flatten().cpu().numpy()] = -nll.flatten().double().cpu().numpy()
                self.advanced(len(predict) / len(asked))
            if start + count < len(row):
                with self._context():
                    _, memory = self.loaded.model.hidden(tokens, torch.zeros_like(tokens), memory, document=document)
        return found[len(given.context) :]

    def _apart(
        self, tokens: Tensor, targets: Tensor, memory: Cache, predict: Tensor, document: Tensor | None
    ) -> Tensor:
        """(B, 1) losses of one hidden token in each row; all rows have the one row's memory and documents (1, T)."""
        rows = memory.selected(torch.zeros(tokens.shape[0], dtype=torch.int64, device=tokens.device))
        with self._context():
            nll, _ = self.loaded.model(
                tokens,
                torch.zeros_like(tokens),
                targets,
                rows,
                predict=predict,
                document=None if document is None else document.expand_as(tokens),
            )
        return nll

    def _memory(self, rows: int, longest: int, seq_len: int) -> Cache:
        """An empty memory that holds what texts of this length need."""
        needed, config = self.mem_len, self.loaded.config
        # Else its length is also how far a token sees, or how many zeros.
        if not config.model.same_length and config.segments.initial_memory == "absent":
            needed = min(needed, max(0, longest - 1) // seq_len * seq_len)
        with self._context():
            return empty_cache(self.loaded.model, rows=rows, mem_len=needed)

    def _documents(self, tokens: Tensor) -> Tensor | None:
        """Number of every token's document, where documents are kept apart; an <eod> belongs to what it ends."""
        eod = self.loaded.tokenizer.eod
        if self.loaded.config.segments.cross_documents or eod is None:
            return None
        ends = (tokens == eod).long()
        return ends.cumsum(dim=1) - ends

    @cached_property
    def _never_asked(self) -> Tensor:
        """(V,) bool: ids that training never asks this model for."""
        asks_for_all = self.loaded.config.objective.name in ("causal", "seq2seq")
        never = never_target(self.loaded.tokenizer)
        return torch.zeros(len(never), dtype=torch.bool) if asks_for_all else torch.from_numpy(never)

    def _context(self) -> AbstractContextManager[object]:
        return autocast(self.loaded.config.training.precision, self.loaded.place.device)

    def _source(self, asked: Tensor, start: int) -> Tensor | None:
        """(B,) how much of a segment that begins at ``start`` belongs to a source."""
        if self.loaded.config.objective.name != "seq2seq":
            return None
        return (asked[:, 0] - start).clamp(min=0)

    def _parts(self, places: Tensor, asked: Tensor, device: torch.device) -> Tensor | None:
        """(B, T) the parts of pairs, for runs that know them."""
        if not self.loaded.config.two_columns:
            return None
        return (places >= asked).long().to(device)
