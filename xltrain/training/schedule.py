"""Learning rates as a pure function of the optimizer step."""

import math


def lr_at(step: int, *, name: str, lr: float, warmup_steps: int, max_steps: int, min_lr_ratio: float) -> float:
    """Learning rate of optimizer step ``step``, counted from 1.

    Warm-up is linear, ``lr * step / warmup_steps``, so step ``warmup_steps`` has the full rate. After it, the decay
    reaches ``min_lr_ratio * lr`` at step ``max_steps`` and stays there; ``inverse_sqrt`` falls as 1/sqrt(step) from
    the end of the warm-up, and never below that floor.
    """
    if step <= warmup_steps:
        return lr * step / warmup_steps
    done = min(1.0, (step - warmup_steps) / max(1, max_steps - warmup_steps))
    floor = min_lr_ratio * lr
    if name == "constant":
        return lr
    if name == "linear":
        return floor + (lr - floor) * (1.0 - done)
    if name == "cosine":
        return floor + (lr - floor) * 0.5 * (1.0 + math.cos(math.pi * done))
    if name == "inverse_sqrt":
        return max(floor, lr * math.sqrt(max(1, warmup_steps) / step))
    raise ValueError(name)
