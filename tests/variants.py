"""Settings of models of every kind, and segments to read one after another."""

from typing import Any

import torch

B, V = 3, 40
LENGTHS = (5, 1, 7, 1, 1, 5, 2, 9)
"""Tokens of the segments: some longer, some shorter than before, some longer than memory."""

VARIANTS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "pre-norm": {"norm_position": "pre", "final_norm": True, "norm": "rms_norm"},
    "batch norm": {"norm_position": "pre", "norm": "batch_norm"},
    "shared biases, clamped": {"tie_position_bias": True, "clamp_len": 4},
    "same length": {"same_length": True},
    "biases everywhere, no scale": {"attention_bias": True, "attention_scale": "none", "head_dim": 5},
    "adaptive": {"cutoffs": (10, 25), "div_val": 2, "tie_projections": (False, True, True)},
    "learned positions": {"positions": "learned", "max_positions": 9},
    "sinusoids of places": {"positions": "sinusoid"},
    "no positions": {"positions": "none"},
    "neural tangent": {"parametrization": "ntk"},
}


def segments(*, two_sided: bool, lengths: tuple[int, ...] = LENGTHS, **more: Any) -> list[dict[str, Any]]:
    """Inputs of consecutive segments: rows start anew now and then, documents change."""
    draw = torch.Generator().manual_seed(3)
    found = []
    for number, length in enumerate(lengths):
        order = torch.randint(0, 4, (B, length), generator=draw) if two_sided else torch.arange(length).expand(B, -1)
        found.append(
            {
                "tokens": torch.randint(0, V, (B, length), generator=draw),
                "targets": torch.randint(-1, V, (B, length), generator=draw),
                "order": order,
                "fresh": torch.rand(B, generator=draw) < 0.2 if number else torch.ones(B, dtype=torch.bool),
            }
            | {name: value(length, draw) if callable(value) else value for name, value in more.items()}
        )
    return found


def documents(length: int, draw: torch.Generator) -> torch.Tensor:
    """(B, T) the number of every token's document, of two: a value of ``more`` of :func:`segments`."""
    return torch.randint(0, 2, (B, length), generator=draw).sort(1).values
