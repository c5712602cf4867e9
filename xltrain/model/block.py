"""One layer: attention and feed-forward, each with its residual sum and its norm."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from xltrain.model.attention import RelativeAttention
from xltrain.model.cache import Slots
from xltrain.model.dropout import Dropout
from xltrain.model.linear import Linear
from xltrain.model.norm import make_norm
from xltrain.model.visibility import View


def gelu_tanh(x: Tensor) -> Tensor:
    """The tanh approximation of GELU, which the original XLNet code calls gelu."""
    return functional.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": gelu_tanh,
    "silu": functional.silu,
}


class FeedForward(nn.Module):
    """Linear, activation, dropout, Linear, dropout."""

    def __init__(self, *, d_model: int, d_inner: int, activation: str, dropout: float, bias: bool) -> None:
        super().__init__()
        self.inner = Linear(d_model, d_inner, bias=bias)
        self.outer = Linear(d_inner, d_model, bias=bias)
        self.activation, self.dropout = ACTIVATIONS[activation], Dropout(dropout)

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.dropout(self.activation(self.inner(rows)))  # (B, R, I)
        return self.dropout(self.outer(hidden))  # (B, R, D)


class Layer(nn.Module):
    """Rows in, rows out; keys and values come from memory and the content stream, never from query rows."""

    def __init__(
        self,
        *,
        d_model: int,
        num_heads: int,
        head_dim: int,
        d_inner: int,
        activation: str,
        dropout: float,
        attention_dropout: float,
        norm: str,
        norm_position: str,
        norm_eps: float,
        bias: bool,
        attention_bias: bool,
        relative: bool,
        scaled: bool,
        backend: str,
    ) -> None:
        super().__init__()
        self.pre_norm = norm_position == "pre"
        self.attention = RelativeAttention(
            d_model=d_model,
            num_heads=num_heads,
            head_dim=head_dim,
            dropout=attention_dropout,
            backend=backend,
            relative=relative,
            bias=attention_bias,
            scaled=scaled,
        )
        self.attention_norm = make_norm(norm, d_model, eps=norm_eps, bias=bias)
        self.feed_forward = FeedForward(
            d_model=d_model, d_inner=d_inner, activation=activation, dropout=dropout, bias=bias
        )
        self.feed_forward_norm = make_norm(norm, d_model, eps=norm_eps, bias=bias)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        rows: Tensor,
        content: Tensor,
        memory: Tensor | Slots,
        table: Tensor | None,
        view: View,
        *,
        u: Tensor | None = None,
        v: Tensor | None = None,
        s: Tensor | None = None,
        segment: Tensor | None = None,
    ) -> Tensor:
        """Apply the layer.

        Args:
            rows: (B, R, D) rows to compute.
            content: (B, T, D) this layer's input of the content stream.
            memory: (B, M, D) this layer's input at earlier positions, or what attention makes of it.
            table, view, u, v, s, segment: see :class:`RelativeAttention`.

        Returns:
            (B, R, D)
        """
        if not isinstance(memory, Slots):
            memory = memory.to(content.dtype)
        biases = {"u": u, "v": v, "s": s, "segment": segment}
        if self.pre_norm:
            norm = self.attention_norm
            memory = memory if isinstance(memory, Slots) else norm(memory)
            mixed = self.attention(norm(rows), norm(content), memory, table, view, **biases)
            rows = rows + self.dropout(mixed)
            return rows + self.feed_forward(self.feed_forward_norm(rows))
        mixed = self.attention(rows, content, memory, table, view, **biases)
        rows = self.attention_norm(rows + self.dropout(mixed))
        return self.feed_forward_norm(rows + self.feed_forward(rows))
