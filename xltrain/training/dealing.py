"""How the rows of a run are dealt to its processes.

The rows of an optimizer step are numbered over all processes; process r has the r-th equal share of them. A run that
is continued keeps its rows, whatever the number of processes: what a row reads and what it remembers stay the same.
"""

from dataclasses import dataclass

from xltrain.config.schema import Config
from xltrain.config.training import TrainingConfig
from xltrain.errors import UsageError


@dataclass(frozen=True)
class Deal:
    """Rows of an optimizer step.

    rows: of each process.
    processes: how many.
    pieces: micro-batches that each process takes its rows in.
    """

    rows: int
    processes: int
    pieces: int

    @property
    def total(self) -> int:
        return self.rows * self.processes

    def micro_batches(self) -> list[tuple[int, int]]:
        """First and past-the-last row of every micro-batch of a process."""
        size = self.rows // self.pieces
        return [(start, start + size) for start in range(0, self.rows, size)]


def deal(config: TrainingConfig, processes: int) -> Deal:
    """The rows of a new run: ``training.batch_size x accumulate`` for each process."""
    return Deal(rows=config.rows, processes=processes, pieces=config.accumulate)


@dataclass(frozen=True)
class Counts:
    """What a configuration amounts to with so many processes; targets are None where the text says how many.

    effective_context: tokens back, over all layers; less where documents are kept apart and are shorter.
    """

    rows_per_update: int
    tokens_per_step: int
    targets_per_step: int | None
    effective_context: int

    @classmethod
    def of(cls, config: Config, dealt: Deal) -> "Counts":
        segments, rows = config.segments, dealt.total
        drawn = config.objective.name == "seq2seq"
        return cls(
            rows_per_update=rows,
            tokens_per_step=rows * segments.seq_len,
            targets_per_step=None if drawn else rows * config.objective.targets_per_segment(segments.seq_len),
            effective_context=config.model.num_layers * segments.mem_len,
        )


def deal_again(config: TrainingConfig, processes: int, *, total: int, rows_before: int) -> Deal:
    """The same ``total`` rows for a run that is continued, perhaps by another number of processes.

    Micro-batches get no larger than ``training.batch_size``.

    Args:
        rows_before: that the configuration asked for in each process when the run was saved.

    Raises:
        UsageError: if the rows cannot be dealt evenly, or the configuration was changed to ask for other rows.
    """
    if config.rows * processes == total:
        return deal(config, processes)
    rule = f"this run reads {total:,} rows at once, and goes on with as many"
    if total % processes:
        raise UsageError(
            f"{rule}; {processes} processes cannot share them equally: start a number that divides {total:,}"
        )
    rows = total // processes
    if config.rows != rows_before:
        raise UsageError(
            f"training.batch_size x accumulate was {rows_before} and is now {config.rows}: {rule}; with {processes} "
            f"process{'es' if processes > 1 else ''} set it to {rows}, or back to {rows_before}"
        )
    pieces = next(count for count in range(1, rows + 1) if rows % count == 0 and rows // count <= config.batch_size)
    return Deal(rows=rows, processes=processes, pieces=pieces)
