"""A run while it lives: all its objects, what a step does with them, and what is saved of them."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from xltrain.config.schema import Config
from xltrain.data.ahead import ReadAhead
from xltrain.data.store import Split, Store
from xltrain.data.streams import Segment, Stream
from xltrain.data.tokenizer import Tokenizer
from xltrain.distributed import Place
from xltrain.model.memory import Memory
from xltrain.model.transformer import LanguageModel
from xltrain.objectives.draws import Draw
from xltrain.objectives.plan import Objective, Plan
from xltrain.training.build import build_model, build_objective, build_stream
from xltrain.training.checkpoint import Checkpoint, Progress, weights
from xltrain.training.dealing import Deal, deal
from xltrain.training.guard import Skips
from xltrain.training.optimizer import build_optimizer
from xltrain.training.optimizer_state import named_state, restore_state
from xltrain.training.parallel import replicate, shard
from xltrain.training.saving import State
from xltrain.training.schedule import configured_lr
from xltrain.training.step import StepStats, train_step
from xltrain.training.update import Updater

OF_AN_OBJECTIVE = ("mask_embedding",)
"""Weights that some objectives' models have and others' have not."""


@dataclass
class Run:
    """All live objects of a run in one process, and how far the run has come.

    network: what is called for a training step: the model, or a wrapper of it that works with the other processes.
    objective: of validation, which reads segments of the full length.
    objectives: of training, by segment length; they plan on the device ``planned_on``.
    memory: of this process's rows.
    new_tokens: that this process has read and ``progress`` does not count yet.
    """

    config: Config
    place: Place
    deal: Deal
    tokenizer: Tokenizer
    store: Store
    model: LanguageModel
    network: nn.Module
    objective: Objective
    objectives: dict[int, Objective]
    planned_on: torch.device
    updater: Updater
    stream: Stream
    memory: Memory
    progress: Progress
    validation: Split | None = None
    loss_sum: Tensor = field(default_factory=lambda: torch.zeros(()))
    new_tokens: int = 0

    @classmethod
    def build(
        cls,
        config: Config,
        place: Place,
        store: Store,
        checkpoint: Checkpoint | None,
        *,
        dealt: Deal | None = None,
        origin: Checkpoint | None = None,
    ) -> "Run":
        """Build everything in the order of dependence, and restore it if there is a checkpoint.

        ``dealt``: the rows of each process, by default as configured; ``origin``: whose weights a new run starts from.
        """
        device, segments = place.device, config.segments
        dealt = dealt or deal(config.training, place.world_size)
        tokenizer = store.tokenizer()
        model = build_model(config, vocab_size=tokenizer.vocab_size, device=device)
        if origin is not None:
            origin.restore(model, optional=OF_AN_OBJECTIVE)
        if config.training.compile:
            for part in compiled_parts(model, sharded=sharded(config, place)):
                part.compile(dynamic=False)  # in place, so the names of weights stay; all shapes of a run are fixed
        network = _spread(model, config, place)
        updater = Updater(
            build_optimizer(model, config.optimizer),
            config.optimizer,
            precision=config.training.precision,
            device=device,
        )
        stream = build_stream(config, store.split("train"), tokenizer, dealt=dealt, rank=place.rank)
        if config.training.num_workers:
            stream = ReadAhead(stream, depth=config.training.num_workers)
        # An adaptive softmax has to know what is predicted, and the host should not have to ask the device for it.
        planned_on = torch.device("cpu") if config.model.adaptive.cutoffs else device
        objectives = {
            length: build_objective(config, tokenizer=tokenizer, seq_len=length, device=planned_on)
            for length in {segments.seq_len, *(length for _, length in config.schedule.seq_len_stages)}
        }
        memory = model.empty_memory(rows=dealt.rows, mem_len=segments.mem_len)
        progress = Progress(fingerprint=store.training_fingerprint)
        if checkpoint is not None:
            progress = checkpoint.progress()
            memory = checkpoint.memory(device, first_row=place.rank * dealt.rows, rows=dealt.rows)
            checkpoint.restore(model)
            restore_state(updater.optimizer, model, checkpoint)
            updater.load_state_dict(progress.updater)
        return cls(
            config=config,
            place=place,
            deal=dealt,
            tokenizer=tokenizer,
            store=store,
            model=model,
            network=network,
            objective=objectives[segments.seq_len]
            if planned_on == device
            else build_objective(config, tokenizer=tokenizer, seq_len=segments.seq_len, device=device),
            objectives=objectives,
            planned_on=planned_on,
            updater=updater,
            stream=stream,
            memory=memory,
            progress=replace(progress, rows=dealt.total, processes=place.world_size),
            validation=_validation(config, store),
            loss_sum=torch.tensor(progress.loss_sum, device=device),
        )

    @property
    def first_row(self) -> int:
        """The number of this process's first row among all."""
        return self.place.rank * self.deal.rows

    def step(self) -> StepStats:
        """One optimizer step on the next segment."""
        number, dealt = self.progress.step + 1, self.deal
        segment, position = self.stream.read(self.progress.position)
        self.new_tokens += int(segment.length.sum())
        pieces = dealt.micro_batches()
        first_piece = self.place.rank * dealt.pieces
        segment = segment.to(self.planned_on)
        rows = torch.arange(self.first_row, self.first_row + dealt.rows, device=self.planned_on)
        plans = [self._plan(segment, rows, number, start, stop) for start, stop in pieces]
        stats, memories = train_step(
            self.network,
            self.updater,
            [plan.to(self.place.device) for plan in plans],
            [self.memory.rows(start, stop) for start, stop in pieces],
            seeds=[dropout_seed(self.config.run.seed, number, first_piece + piece) for piece in range(dealt.pieces)],
            rooms=[self.model.softmax.room(plan.targets) for plan in plans],
            total=self.place.total,
        )
        self.memory = Memory.joined(memories)
        self.loss_sum += stats.loss.masked_fill(stats.skipped, 0.0)
        self.progress = replace(
            self.progress,
            step=number,
            position=position,
            loss_count=self.progress.loss_count + 1,
        )
        return stats

    def _plan(self, segment: Segment, rows: Tensor, step: int, start: int, stop: int) -> Plan:
        draw = Draw(seed=self.config.run.seed, step=step, rows=rows[start:stop])
        return self.objectives[segment.tokens.shape[1]].plan(segment.rows(start, stop), draw)

    def spend(self, training: float, all_in_all: float) -> None:
        """Count seconds of the wall clock."""
        self.progress = replace(
            self.progress, seconds=self.progress.seconds + training, elapsed=self.progress.elapsed + all_in_all
        )

    def lr(self, step: int) -> float:
        return configured_lr(self.config, step)

    def _count_tokens(self) -> None:
        read = self.place.host_total(self.new_tokens)
        self.progress = replace(self.progress, tokens_seen=self.progress.tokens_seen + read)
        self.new_tokens = 0

    def line(self) -> tuple[float | None, Skips]:
        """Mean loss of the steps since the last line that were not left out; all steps that were. Begins a new line."""
        self._count_tokens()
        skips = self.updater.guard.skips()
        taken = self.progress.loss_count - (skips.total - self.progress.skipped)
        loss = self.loss_sum.item() / taken if taken else None
        self.loss_sum.zero_()
        self.progress = replace(self.progress, loss_count=0, skipped=skips.total, last_loss=loss)
        return loss, skips

    def state(self) -> State:
        """What a checkpoint holds of this process; the tensors are the live ones."""
        self._count_tokens()
        self.progress = replace(self.progress, loss_sum=self.loss_sum.item(), updater=self.updater.state_dict())
        return State(
            model=weights(self.model),
            optimizer=named_state(self.updater.optimizer, self.model),
            memory=self.memory,
            first_row=self.first_row,
            progress=self.progress,
            config=self.config,
            tokenizer=self.tokenizer,
        )


def dropout_seed(seed: int, step: int, piece: int) -> int:
    """Every (seed, step, micro-batch of all processes) has dropout masks of its own, so no generator needs saving."""
    return (seed * 1_000_003 + step) * 1_009 + piece


def sharded(config: Config, place: Place) -> bool:
    """Whether no process has the whole model."""
    return place.world_size > 1 and config.distributed.strategy == "fsdp"


def compiled_parts(model: LanguageModel, *, sharded: bool) -> list[nn.Module]:
    """What is compiled as one graph each: the model, or its layers, between which shares are fetched and dropped."""
    return list(model.layers) if sharded else [model]


def _spread(model: LanguageModel, config: Config, place: Place) -> nn.Module:
    """The model as this process's part of all, by ``distributed.strategy``."""
    if place.world_size == 1:
        return model
    if sharded(config, place):
        shard(model, place)
        return model
    return replicate(model, place, unused=config.model.segment_embeddings)


def _validation(config: Config, store: Store) -> Split | None:
    if not store.has("validation"):
        return None
    split = store.split("validation")
    return split.first(config.evaluation.max_tokens) if config.evaluation.max_tokens else split
