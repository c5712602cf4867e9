"""Segments that grow longer as training goes on: short ones first, from the same text and with the same memory."""

from collections.abc import Sequence
from dataclasses import replace

from xltrain.data.streams import Position, Segment, TrainingStream


class StagedStream:
    """One stream per stage, each going on at the token where the one before it stopped.

    Args:
        stages: how many segments are read before a stage begins, ascending from 0, and its stream. The streams differ
            in segment length only, and share the unit that their positions count in.
    """

    def __init__(self, stages: Sequence[tuple[int, TrainingStream]]) -> None:
        self.stages = list(stages)

    def read(self, position: Position) -> tuple[Segment, Position]:
        """The segment at ``position`` and the position after it."""
        _, stream = max((stage for stage in self.stages if stage[0] <= position.read), key=lambda stage: stage[0])
        segment, following = stream.read(position)
        return segment, replace(following, read=position.read + 1)

    def notes(self) -> list[str]:
        lengths = ", ".join(f"{stream.seq_len} from step {first + 1:,}" for first, stream in self.stages)
        return [f"segment lengths     {lengths}", *self.stages[-1][1].notes()]
