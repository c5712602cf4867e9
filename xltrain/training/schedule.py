"""Learning rates as a pure function of the optimizer step."""

import math

from xltrain.config.schema import Config


def lr_at(
    step: int,
    *,
    name: str,
    lr: float,
    warmup_steps: int,
    max_steps: int,
    min_lr_ratio: float,
    decay_steps: int = 0,
) -> float:
    """Learning rate of optimizer step ``step``, counted from 1.

    Warm-up is linear, ``lr * step / warmup_steps``, so step ``warmup_steps`` has the full rate. After it:

    - ``linear`` and ``cosine`` fall to ``min_lr_ratio * lr`` within ``decay_steps`` (0: by ``max_steps``) and stay;
    - ``wsd`` keeps the full rate and falls linearly to that floor over the last ``decay_steps`` before ``max_steps``
      (Hu et al. 2024, section 4; 0: a tenth of all);
    - ``inverse_sqrt`` falls as 1/sqrt(step) from the end of the warm-up, and never below the floor.
    """
    if step <= warmup_steps:
        return lr * step / warmup_steps
    floor = min_lr_ratio * lr
    if name == "constant":
        return lr
    if name == "inverse_sqrt":
        return max(floor, lr * math.sqrt(max(1, warmup_steps) / step))
    if name == "wsd":
        begin = max(warmup_steps, max_steps - (decay_steps or max(1, max_steps // 10)))
        end = max_steps
    else:
        begin = warmup_steps
        end = warmup_steps + decay_steps if decay_steps else max_steps
    done = min(1.0, max(0.0, (step - begin) / max(1, end - begin)))
    if name in ("linear", "wsd"):
        return floor + (lr - floor) * (1.0 - done)
    if name == "cosine":
        return floor + (lr - floor) * 0.5 * (1.0 + math.cos(math.pi * done))
    raise ValueError(name)


def configured_lr(config: Config, step: int) -> float:
    """Learning rate of optimizer step ``step`` of a run."""
    schedule = config.schedule
    return lr_at(
        step,
        name=schedule.name,
        lr=config.optimizer.lr,
        warmup_steps=schedule.warmup_steps,
        max_steps=config.training.max_steps,
        min_lr_ratio=schedule.min_lr_ratio,
        decay_steps=schedule.decay_steps,
    )
