"""An exported xltrain model in transformers: a thin wrapper around the stack that trained it.

Shapes: B rows, S tokens given, T tokens of a segment, M memory length, D model size, V vocabulary, L layers.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import GenerationMixin, PreTrainedModel
from transformers.utils import ModelOutput

from xltrain.interop.remote.configuration_xltrain import XltrainConfig
from xltrain.model.memory import Memory
from xltrain.model.softmax import Softmax
from xltrain.model.transformer import LanguageModel
from xltrain.model.visibility import HIDDEN

Mems = tuple[Tensor, Tensor, Tensor, Tensor]
"""States (L, B, M, D), valid length (B,), documents (B, M) of a memory, and the document (B,) that comes next."""


@dataclass
class XltrainOutput(ModelOutput):
    """What a forward gives.

    loss: mean over the labels, in nats, where labels were given.
    logits: (B, S, V); log-probabilities where the softmax is adaptive.
    mems: memory to pass on with the tokens that follow.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    mems: Mems | None = None


class XltrainModel(PreTrainedModel):
    """The stack, and how a text is fed to it segment by segment."""

    config_class = XltrainConfig
    base_model_prefix = "stack"

    def __init__(self, config: XltrainConfig) -> None:
        super().__init__(config)
        self._no_split_modules = ["Layer"]  # where a model that is spread over devices may not be cut
        self.stack = LanguageModel(**config.stack, backend="sdpa")
        first: dict[int, str] = {}
        shared = {}
        for name, parameter in self.named_parameters(remove_duplicate=False):
            if id(parameter) in first:
                shared[name] = first[id(parameter)]
            first.setdefault(id(parameter), name)
        self._tied_weights_keys = shared
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Weights come from a checkpoint."""

    def tie_weights(self, *args: Any, **kwargs: Any) -> None:
        """Make one parameter again of what the stack shares, after both were loaded."""
        for name, source in self._tied_weights_keys.items():
            owner, _, leaf = name.rpartition(".")
            parameter = self.get_parameter(source)
            module = self.get_submodule(owner)
            if isinstance(module, nn.ParameterList):
                module[int(leaf)] = parameter
            else:
                setattr(module, leaf, parameter)
        missing = kwargs.get("missing_keys")
        if missing is not None:
            missing.difference_update(self._tied_weights_keys)

    def get_input_embeddings(self) -> nn.Module:
        return self.stack.embedding

    def read(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        mems: Mems | None,
    ) -> tuple[Tensor, Mems]:
        """Last hidden states (B, S, D) and the memory after the text.

        Args:
            input_ids: (B, S).
            attention_mask: 1 for text and 0 for padding, (B, S) or longer, of which the last S count. Padding stands
                on the left: memory holds what was read last.
            token_type_ids: (B, S) 0 for source and 1 for target (seq2seq only); None: all target.
            mems: of the text before.
        """
        rows, total = input_ids.shape
        real = torch.ones_like(input_ids, dtype=torch.bool)  # (B, S)
        if attention_mask is not None:
            real = attention_mask[:, -total:].bool()
        if mems is None:
            memory = self.stack.empty_memory(rows=rows, mem_len=self.config.mem_len)
            document = torch.zeros(rows, dtype=torch.int64, device=input_ids.device)
        else:
            memory, document = Memory(*mems[:3]), mems[3]
        padding = torch.zeros_like(real[:, 0], dtype=torch.int64)  # (B,) in front of each row
        if attention_mask is not None and not self._overlooks_padding(mems):
            padding = (real.cumsum(dim=1) == 0).sum(dim=1)
        found, memories, documents, places = [], [], [], []
        for count in padding.unique().tolist():
            at = (padding == count).nonzero().squeeze(1)  # (b,)
            types = None if token_type_ids is None else token_type_ids[at, count:]
            of_rows = Memory(memory.states[:, at], memory.length[at], memory.document[at])
            hidden, after, number = self._text(input_ids[at, count:], real[at, count:], types, of_rows, document[at])
            found.append(functional.pad(hidden, (0, 0, count, 0)))  # (b, S, D)
            memories.append(after)
            documents.append(number)
            places.append(at)
        if len(found) == 1:
            hidden, memory, document = found[0], memories[0], documents[0]
        else:
            back = torch.cat(places).argsort()  # (B,)
            joined = Memory.joined(memories)
            memory = Memory(joined.states[:, back], joined.length[back], joined.document[back])
            hidden, document = torch.cat(found)[back], torch.cat(documents)[back]  # (B, S, D), (B,)
        return hidden, (memory.states, memory.length, memory.document, document)

    def _overlooks_padding(self, mems: Mems | None) -> bool:
        """Whether it is enough that nobody sees the padding before a text.

        It is not where something else is seen before the text, which padding would move away: memory, or the zeros that
        it begins with; and where places are counted from a segment's beginning. Then rows with as much padding are read
        by themselves, without it.
        """
        before = self.config.mem_len > 0 and (mems is not None or self.stack.zeros_at_first)
        return not before and not self._counts_places

    @property
    def _counts_places(self) -> bool:
        """Whether positions are counted from a segment's beginning; there is no memory then, and no longer segment."""
        return self.stack.positions in ("learned", "sinusoid")

    @property
    def _room(self) -> int:
        """Tokens of a segment; where places are counted, one of them is the last query's."""
        return max(1, self.config.seq_len - int(self._counts_places and self.config.objective == "permutation"))

    def _text(
        self, tokens: Tensor, real: Tensor, types: Tensor | None, memory: Memory, document: Tensor
    ) -> tuple[Tensor, Memory, Tensor]:
        """Segment by segment: last hidden states (B, S, D), memory, and the document that comes next."""
        rows, total = tokens.shape
        # A source is read whole, since its words see each other; without memory nothing could be carried over.
        whole = self.config.objective == "seq2seq" and not self.config.mem_len and not self._counts_places
        seq_len = total if whole else self._room
        found = [memory.states.new_zeros(rows, 0, self.stack.d_model)]  # of a row that is nothing but padding
        for start in range(0, total, seq_len or 1):
            part = slice(start, start + seq_len)
            of_part = None if types is None else types[:, part]
            hidden, memory, document = self._segment(tokens[:, part], real[:, part], of_part, memory, document)
            found.append(hidden)
        return torch.cat(found[1:] or found, dim=1), memory, document

    def _segment(
        self, tokens: Tensor, real: Tensor, types: Tensor | None, memory: Memory, document: Tensor
    ) -> tuple[Tensor, Memory, Tensor]:
        seq_len = tokens.shape[1]
        objective = self.config.objective
        place = torch.arange(seq_len, device=tokens.device).expand_as(tokens)  # (B, T)
        if objective == "masked":
            place = torch.zeros_like(place)
        elif types is not None and objective == "seq2seq":
            place = torch.where(types == 0, 0, 1 + place)
        order = torch.where(real, place, HIDDEN)  # (B, T)
        numbers = document[:, None].expand_as(tokens)  # (B, T)
        if self.config.end_of_document is not None:
            ends = (tokens == self.config.end_of_document) & real  # (B, T)
            numbers = document[:, None] + ends.cumsum(dim=1) - ends.long()  # an end belongs to what it ends
            document = document + ends.sum(dim=1)
        options: dict[str, Any] = {}
        if self.config.parts:
            options = {"segment_ids": torch.ones_like(tokens) if types is None else types}
        if objective == "permutation":
            # A query stands at the place after each token; the last of these needs one more position, which holds no
            # token that anything could see.
            slots = torch.arange(1, seq_len + 1, device=tokens.device).expand_as(tokens)  # (B, T)
            tokens = functional.pad(tokens, (0, 1))  # (B, T+1)
            order = torch.cat([order, torch.full_like(order[:, :1], seq_len)], dim=1)  # (B, T+1)
            numbers = torch.cat([numbers, document[:, None]], dim=1)  # (B, T+1)
            options = {"stream": "query", "predict": slots, "remember": seq_len}
        apart = self.config.end_of_document is not None
        hidden, after = self.stack.hidden(tokens, order, memory, document=numbers if apart else None, **options)
        length = (memory.length + real.sum(dim=1)).clamp(max=memory.mem_len)  # padding is not remembered
        return hidden, Memory(after.states, length, after.document), document

    def logits(self, hidden: Tensor) -> Tensor:
        """(B, S, D) -> (B, S, V)"""
        head = self.stack.softmax
        return head.logits(hidden) if isinstance(head, Softmax) else head.log_probs(hidden)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        mems: Mems | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> XltrainOutput | tuple[Any, ...]:
        """Logits of a text, read in segments; see :meth:`read` and :class:`XltrainOutput`.

        Args:
            labels: (B, S) as transformers has them for this kind of model; -100: not scored.
            use_cache: return ``mems``.
            logits_to_keep: give the last so many logits only; 0: all.
        """
        hidden, after = self.read(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids, mems=mems)
        logits = self.logits(hidden[:, -logits_to_keep:] if logits_to_keep else hidden)  # (B, S, V)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        wanted = self.config.use_cache if use_cache is None else use_cache
        keep = wanted and self.config.mem_len > 0 and _ends_with_text(attention_mask)
        found = XltrainOutput(loss=loss, logits=logits, mems=after if keep else None)
        return found.to_tuple() if return_dict is False else found


def _ends_with_text(attention_mask: Tensor | None) -> bool:
    """Whether no row is padded on the right, so that its memory can be read on from."""
    return attention_mask is None or bool(attention_mask[:, -1].all())


class XltrainForCausalLM(XltrainModel, GenerationMixin):
    """Logits at a place are those of the token after it; a permutation model is read from left to right."""

    def generate(self, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """As transformers has it; the prompt of a seq2seq model is its source, unless ``token_type_ids`` say else."""
        prompt = kwargs.get("input_ids") if inputs is None else inputs
        if self.config.objective == "seq2seq" and prompt is not None and kwargs.get("token_type_ids") is None:
            kwargs["token_type_ids"] = torch.zeros_like(prompt)
        return super().generate(inputs, *args, **kwargs)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        mems: Mems | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        new = input_ids.shape[1]
        if mems is not None:
            new = 1
        elif not self.config.mem_len and (self._counts_places or self.config.objective != "seq2seq"):
            new = min(new, self._room)  # without memory, what it can see at once
        return {
            "input_ids": input_ids[:, -new:],
            "attention_mask": None if attention_mask is None else attention_mask[:, -new:],
            "token_type_ids": None if token_type_ids is None else token_type_ids[:, -new:],
            "mems": mems,
            "use_cache": use_cache,
            "logits_to_keep": 1,
        }

    def _update_model_kwargs_for_generation(
        self, outputs: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        if self.config.objective == "seq2seq":  # what is generated is target
            types = model_kwargs.pop("token_type_ids", None)
            found = super()._update_model_kwargs_for_generation(outputs, model_kwargs, *args, **kwargs)
            if types is not None:
                found["token_type_ids"] = functional.pad(types, (0, 1), value=1)
        else:
            found = super()._update_model_kwargs_for_generation(outputs, model_kwargs, *args, **kwargs)
        found.pop("past_key_values", None)
        found["mems"] = outputs.mems
        return found

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # memory is no cache of keys and values

    @staticmethod
    def _reorder_cache(mems: Mems, beam_idx: Tensor) -> Mems:
        states, length, documents, document = mems
        at = beam_idx.to(states.device)
        return states[:, at], length[at], documents[at], document[at]


class XltrainForMaskedLM(XltrainModel):
    """Logits at a place are those of the token at it."""
