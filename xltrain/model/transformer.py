"""The one stack that serves every objective: Transformer-XL and XLNet are two settings of it.

Shapes: B rows, T segment length, M memory length, K = M + T, P predicted positions, N heads, H head size, D model size,
V vocabulary, L layers.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from xltrain.model.block import Layer
from xltrain.model.cache import Cache, Distances, Slots
from xltrain.model.dropout import Dropout
from xltrain.model.embedding import AdaptiveEmbedding
from xltrain.model.memory import Memory
from xltrain.model.norm import make_norm
from xltrain.model.positions import distances, sinusoid
from xltrain.model.scratch import Scratch
from xltrain.model.softmax import AdaptiveSoftmax, Room, Softmax
from xltrain.model.visibility import View, Visibility

Stream = Literal["content", "query"]
Remembered = TypeVar("Remembered", Memory, Cache)


class LanguageModel(nn.Module):
    """Embedding, L layers with memory, softmax.

    Args:
        vocab_size: V.
        query_stream: whether there is a second stream that knows a position but not its token (XLNet, section 2.4).
        two_sided: whether a row can see keys after it; a causal model needs only half of the distances.
        tie_position_bias: one u, v (and s) for all layers.
        cutoffs, div_val, tie_projections: bins of an adaptive embedding and softmax, ids sorted by frequency.
        backend: attention backend, see :mod:`xltrain.model.backends`.
        recompute: while training, keep only the inputs of layers and run each again for its backward.
        Other arguments: as the keys of the same names in the model section of a configuration.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        num_layers: int,
        d_model: int,
        num_heads: int,
        head_dim: int,
        d_inner: int,
        activation: str = "gelu",
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        tie_position_bias: bool = False,
        clamp_len: int = 0,
        same_length: bool = False,
        positions: str = "relative",
        max_positions: int = 0,
        initial_memory: str = "absent",
        norm: str = "layer_norm",
        norm_position: str = "post",
        norm_eps: float = 1e-12,
        final_norm: bool = False,
        bias: bool = True,
        attention_bias: bool = False,
        attention_scale: str = "sqrt",
        scale_embeddings: bool = False,
        tie_embeddings: bool = True,
        cutoffs: Sequence[int] = (),
        div_val: int = 1,
        tie_projections: Sequence[bool] = (),
        segment_embeddings: bool = False,
        query_stream: bool = False,
        two_sided: bool = False,
        backend: str = "math",
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.d_model, self.num_layers, self.two_sided = d_model, num_layers, two_sided
        self.num_heads, self.head_dim = num_heads, head_dim
        self.recompute = recompute
        self.clamp_len, self.same_length, self.positions = clamp_len, same_length, positions
        self.zeros_at_first = initial_memory == "zeros"
        self.scale = d_model**0.5 if scale_embeddings else 1.0
        self.embedding: nn.Embedding | AdaptiveEmbedding
        self.softmax: Softmax | AdaptiveSoftmax
        if cutoffs:
            self.embedding = AdaptiveEmbedding(vocab_size=vocab_size, d_model=d_model, cutoffs=cutoffs, div_val=div_val)
            self.softmax = AdaptiveSoftmax(
                vocab_size=vocab_size,
                d_model=d_model,
                cutoffs=cutoffs,
                div_val=div_val,
                embedding=self.embedding,
                tie_embeddings=tie_embeddings,
                tie_projections=tie_projections,
            )
        else:
            self.embedding = nn.Embedding(vocab_size, d_model)
            self.softmax = Softmax(
                vocab_size=vocab_size, d_model=d_model, tied_to=self.embedding if tie_embeddings else None
            )
        if query_stream:
            self.mask_embedding = nn.Parameter(torch.empty(d_model))  # (D,)
        sets = 1 if tie_position_bias else num_layers
        if positions == "relative":
            self.bias_u = nn.Parameter(torch.empty(sets, num_heads, head_dim))  # (L or 1, N, H)
            self.bias_v = nn.Parameter(torch.empty(sets, num_heads, head_dim))
        elif positions == "learned":
            self.position_embedding = nn.Parameter(torch.empty(max_positions, d_model))  # (T, D)
        if segment_embeddings:
            self.bias_s = nn.Parameter(torch.empty(sets, num_heads, head_dim))
            self.segment = nn.Parameter(torch.empty(num_layers, 2, num_heads, head_dim))  # (L, 2, N, H)
        self.layers = nn.ModuleList(
            Layer(
                d_model=d_model,
                num_heads=num_heads,
                head_dim=head_dim,
                d_inner=d_inner,
                activation=activation,
                dropout=dropout,
                attention_dropout=attention_dropout,
                norm=norm,
                norm_position=norm_position,
                norm_eps=norm_eps,
                bias=bias,
                attention_bias=attention_bias,
                relative=positions == "relative",
                scaled=attention_scale == "sqrt",
                backend=backend,
            )
            for _ in range(num_layers)
        )
        self.final_norm = make_norm(norm, d_model, eps=norm_eps, bias=bias) if final_norm else nn.Identity()
        self.dropout = Dropout(dropout)

    def empty_memory(self, *, rows: int, mem_len: int) -> Memory:
        """A memory that holds nothing yet, on the device of the weights."""
        weight = next(self.parameters())
        return Memory.empty(
            num_layers=self.num_layers,
            rows=rows,
            mem_len=mem_len,
            d_model=self.d_model,
            dtype=weight.dtype,
            device=weight.device,
        )

    def empty_cache(self, *, rows: int, mem_len: int) -> Cache:
        """As :meth:`empty_memory`, but of projected keys and values; weights must not change while it is used.

        To be called where forwards run: under autocast it holds what projections give there.
        """
        weight = next(self.parameters())
        kind = weight.device.type
        return Cache.empty(
            num_layers=self.num_layers,
            rows=rows,
            mem_len=mem_len,
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            dtype=torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype,
            device=weight.device,
            distances=Distances(
                lambda seq_len: self._table(seq_len, mem_len).to(weight.dtype), two_sided=self.two_sided
            ),
        )

    def forward(
        self,
        tokens: Tensor,
        order: Tensor,
        targets: Tensor,
        memory: Remembered,
        *,
        stream: Stream = "content",
        predict: Tensor | None = None,
        fresh: Tensor | None = None,
        document: Tensor | None = None,
        segment_ids: Tensor | None = None,
        place: Tensor | None = None,
        backward: Tensor | None = None,
        remember: int | None = None,
        room: Room | None = None,
    ) -> tuple[Tensor, Remembered]:
        """Loss of every target, and the memory after this segment.

        Args:
            tokens: (B, T) input of the content stream.
            order: (B, T) place of every position in the factorization order; see :mod:`xltrain.model.visibility`.
            targets: (B, P) what stands at (or, for a causal model, after) each predicted position; -1: not scored.
            memory: of the segments before this one; a :class:`Cache` where weights are frozen.
            stream: which stream's rows are predicted from.
            predict: (B, P) predicted positions; None: all T.
            fresh: (B,) bool, rows that start anew and must not see their memory.
            document: (B, T) document of every position, to keep documents apart; None: text sees what precedes it.
            segment_ids: (B, T) part of every position, where segments have parts.
            place: (B, T) what absolute positions count, where that is not the place in the segment.
            backward: (B,) 1 for rows of reversed text, 0 for others; None: all forward.
            remember: how many leading positions enter memory; None: all T.
            room: from ``softmax.room``, so that an adaptive softmax need not ask the device.

        Returns:
            nll (B, P) in nats, and the new memory, of the same kind.

        Raises:
            ValueError: for a cache while gradients are recorded.
        """
        hidden, memory = self.hidden(
            tokens,
            order,
            memory,
            stream=stream,
            predict=predict,
            fresh=fresh,
            document=document,
            segment_ids=segment_ids,
            place=place,
            backward=backward,
            remember=remember,
        )
        return self.softmax(hidden, targets, room), memory

    def hidden(
        self,
        tokens: Tensor,
        order: Tensor,
        memory: Remembered,
        *,
        stream: Stream = "content",
        predict: Tensor | None = None,
        fresh: Tensor | None = None,
        document: Tensor | None = None,
        segment_ids: Tensor | None = None,
        place: Tensor | None = None,
        backward: Tensor | None = None,
        remember: int | None = None,
    ) -> tuple[Tensor, Remembered]:
        """Last hidden states (B, P, D) of the predicted positions, and the new memory; arguments as in ``forward``."""
        seq_len = tokens.shape[1]
        slots = None
        if stream == "query":
            every_place = torch.arange(seq_len, device=tokens.device).expand_as(tokens)  # (B, T)
            slots = every_place if predict is None else predict  # (B, P)
        if fresh is not None:
            memory = memory.restarted(fresh)
            if self.zeros_at_first and isinstance(memory, Cache) and fresh.any():
                memory = memory.cleared()
        rows = self.embedding(tokens)  # (B, T, D)
        rows = rows * self.scale if self.scale != 1.0 else rows
        added = self._absolute(seq_len, place)  # (T, D) or (B, T, D), or None
        rows = self.dropout(rows if added is None else rows + added)
        if slots is not None:
            query = self.mask_embedding.to(rows.dtype).expand(*slots.shape, -1)  # (B, P, D)
            if added is not None:
                query = query + _select(added.expand_as(rows), slots)
            query = self.dropout(query)
            rows = torch.cat([rows, query], dim=1)  # (B, T+P, D)
        every, last, selected = self._views(order, memory, seq_len, slots, predict, document, segment_ids, backward)
        written = document if document is not None else torch.zeros_like(tokens)
        written = written if remember is None else written[:, :remember]
        if isinstance(memory, Cache):
            if torch.is_grad_enabled():
                raise ValueError("cached keys and values have no gradient: call the model under torch.inference_mode()")
            memory = memory.with_room(seq_len)
            slots_of = [memory.slots(index, seq_len) for index in range(self.num_layers)]
            rows, _ = self._through(rows, seq_len, slots_of, None, every, last, selected)
            after = memory.advanced(written)
        else:
            table = self.dropout(self._table(seq_len, memory.mem_len)).to(rows.dtype)  # (J, D)
            states = memory.visible_states()  # (L, B, M, D)
            rows, inputs = self._through(rows, seq_len, states, table, every, last, selected)
            after = memory.advanced([layer[:, : written.shape[1]] for layer in inputs], written)
        return self.dropout(self.final_norm(rows)), after

    def _through(
        self,
        rows: Tensor,
        seq_len: int,
        remembered: Sequence[Slots] | Tensor,
        table: Tensor | None,
        every: View,
        last: View,
        selected: Tensor | None,
    ) -> tuple[Tensor, list[Tensor]]:
        """All layers: their last rows (B, P, D), and the content (B, T, D) that each was given."""
        inputs = []
        for index, layer in enumerate(self.layers):
            content = rows[:, :seq_len]  # (B, T, D)
            inputs.append(content)
            view = every
            if index == self.num_layers - 1:  # only what is predicted from is needed of the last layer
                view, rows = last, _select(rows, selected)  # (B, P, D)
            run = partial(layer, **self._biases(index))
            if self.recompute and self.training:
                run = partial(checkpoint, run, use_reentrant=False)
            rows = run(rows, content, remembered[index], table, view)
        return rows, inputs

    def _wide(self) -> tuple[torch.dtype, torch.device]:
        """The dtype for positions and masks, fp32 at least, and the device."""
        weight = next(self.parameters())
        return torch.promote_types(weight.dtype, torch.float32), weight.device

    def _table(self, seq_len: int, mem_len: int) -> Tensor:
        dtype, device = self._wide()
        found = distances(
            seq_len=seq_len,
            mem_len=mem_len,
            two_sided=self.two_sided,
            clamp_len=self.clamp_len,
            device=device,
        )
        return sinusoid(found, d_model=self.d_model, dtype=dtype)

    def _absolute(self, seq_len: int, place: Tensor | None) -> Tensor | None:
        """(T, D), or (B, T, D) where ``place`` (B, T) is given: what is added to embeddings by their place."""
        if self.positions not in ("learned", "sinusoid"):
            return None
        dtype, device = self._wide()
        found = (
            self.position_embedding[:seq_len]
            if self.positions == "learned"
            else sinusoid(torch.arange(seq_len, device=device), d_model=self.d_model, dtype=dtype)
        )  # (T, D)
        return found if place is None else found[place]  # (B, T, D)

    def _biases(self, index: int) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        if self.positions == "relative":
            shared = index % self.bias_u.shape[0]
            found |= {"u": self.bias_u[shared], "v": self.bias_v[shared]}
        if hasattr(self, "segment"):
            found |= {"s": self.bias_s[index % self.bias_s.shape[0]], "segment": self.segment[index]}
        return found

    def _views(
        self,
        order: Tensor,
        memory: Memory | Cache,
        seq_len: int,
        slots: Tensor | None,
        predict: Tensor | None,
        document: Tensor | None,
        segment_ids: Tensor | None,
        backward: Tensor | None,
    ) -> tuple[View, View, Tensor | None]:
        """What rows see in every layer but the last, what they see in the last, and which rows the last computes."""
        visibility = Visibility.of_segment(
            order=order,
            memory_valid=torch.ones_like(memory.valid()) if self.zeros_at_first else memory.valid(),
            document=document,
            memory_document=memory.document if document is not None else None,
            slots=slots,
            window=max(memory.mem_len, 1) if self.same_length else 0,
        )
        segments = None
        if segment_ids is not None and hasattr(self, "segment"):
            of_rows = (
                segment_ids if slots is None else torch.cat([segment_ids, segment_ids.gather(1, slots)], dim=1)
            )  # (B, R)
            of_memory = segment_ids.new_zeros(order.shape[0], memory.mem_len)  # memory counts as part 0
            segments = of_rows, torch.cat([of_memory, segment_ids], dim=1)  # (B, R), (B, K)
        dtype, _ = self._wide()
        scratch = memory.scratch if isinstance(memory, Cache) else Scratch()

        def view(rule: Visibility, *, num_content: int, in_order: bool, parts: tuple[Tensor, Tensor] | None) -> View:
            return View.of(
                rule,
                seq_len=seq_len,
                num_content=num_content,
                in_order=in_order,
                dtype=dtype,
                segments=parts,
                backward=backward,
                scratch=scratch,
            )

        every = view(visibility, num_content=seq_len, in_order=predict is None or slots is None, parts=segments)
        selected = predict
        if slots is not None:
            selected = seq_len + torch.arange(slots.shape[1], device=slots.device).expand_as(slots)  # (B, P)
        if selected is None:
            return every, every, None
        parts = None if segments is None else (segments[0].gather(1, selected), segments[1])  # (B, P), (B, K)
        last = view(visibility.of_rows(selected), num_content=0, in_order=predict is None, parts=parts)
        return every, last, selected


def _select(rows: Tensor, index: Tensor | None) -> Tensor:
    """Rows (B, R, D) at ``index`` (B, P) -> (B, P, D); all of them for None."""
    if index is None:
        return rows
    return rows.gather(1, index[:, :, None].expand(-1, -1, rows.shape[-1]))
