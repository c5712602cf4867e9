"""A linear layer whose weights may be scaled in the forward pass."""

from torch import Tensor, nn
from torch.nn import functional


class Linear(nn.Linear):
    """``x W^T * multiplier + b``.

    With the standard parametrisation the multiplier is 1 and weights start at their working size. With the NTK
    parametrisation (Jacot et al. 2018) weights start with unit variance and the multiplier carries the size, so a
    step of the optimizer moves a wide layer's function no more than a narrow one's.
    """

    multiplier: float = 1.0

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True, matrices: int = 1) -> None:
        """``matrices``: how many of the same shape are stacked in this one; each is initialised on its own."""
        super().__init__(in_features, out_features, bias=bias)
        self.fan_out = out_features // matrices

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight if self.multiplier == 1.0 else self.weight * self.multiplier
        return functional.linear(input, weight, self.bias)
