"""Configuration of an exported xltrain model, for transformers' ``trust_remote_code``."""

from typing import Any

from transformers import PretrainedConfig


class XltrainConfig(PretrainedConfig):
    """What the wrapper has to know.

    Args:
        vocab_size: V.
        stack: arguments of ``LanguageModel``.
        objective: causal, permutation, masked or seq2seq: the order in which a text is read.
        seq_len: T; longer inputs are read in segments of this length, memory carried from one to the next.
        mem_len: M; 0: no memory.
        parts: whether the source and the target of a seq2seq model are parts that its attention tells apart.
        end_of_document: id after which a new document begins, where documents are kept apart; None: they are not.
    """

    model_type = "xltrain"

    def __init__(
        self,
        vocab_size: int = 0,
        stack: dict[str, Any] | None = None,
        objective: str = "causal",
        seq_len: int = 128,
        mem_len: int = 0,
        parts: bool = False,
        end_of_document: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.stack = stack or {}
        self.objective = objective
        self.seq_len, self.mem_len = seq_len, mem_len
        self.parts = parts
        self.end_of_document = end_of_document
        self.hidden_size = self.stack.get("d_model", 0)  # names that other programs look for
        self.num_hidden_layers = self.stack.get("num_layers", 0)
        self.num_attention_heads = self.stack.get("num_heads", 0)
        self.use_cache = kwargs.pop("use_cache", mem_len > 0)
        super().__init__(**kwargs)
