"""What a run tells a person: the lines at its start, the bar or lines on its way, the metrics file."""

import math
import time
from dataclasses import dataclass
from pathlib import Path

from xltrain import console
from xltrain.config.schema import Config
from xltrain.distributed import Place
from xltrain.model.backends import choose_backend
from xltrain.training.checkpoint import Checkpoint
from xltrain.training.curves import plot_run
from xltrain.training.dealing import Counts, Deal
from xltrain.training.flops import Work
from xltrain.training.guard import Skips
from xltrain.training.metrics import MetricsFile, TensorBoard
from xltrain.training.schedule import configured_lr


def shape_lines(config: Config, dealt: Deal, *, parameters: int, document_tokens: float | None = None) -> list[str]:
    """What a configuration amounts to with so many processes; ``document_tokens``: of a document, on average."""
    counts, at_once = Counts.of(config, dealt), dealt.rows // dealt.pieces
    rows, targets = counts.rows_per_update, counts.targets_per_step
    predicted = "those of the target part are" if targets is None else f"{targets:,} are"
    return [
        f"parameters          {parameters:,}",
        f"rows per update     {rows:,} (rows per process {at_once:,} x accumulation {dealt.pieces:,} x processes "
        f"{dealt.processes:,})",
        f"tokens per update   {counts.tokens_per_step:,} ({rows} rows x seq_len {config.segments.seq_len}), "
        f"of which {predicted} predicted",
        f"effective context   {counts.effective_context:,} tokens back ({config.model.num_layers} layers x mem_len)"
        + (_bound(document_tokens) if counts.effective_context and not config.segments.cross_documents else ""),
    ]


def _bound(document_tokens: float | None) -> str:
    """Where memory reaches further than what may be seen of it."""
    length = "" if document_tokens is None else f" ({document_tokens:,.0f} tokens on average)"
    return f", within a document{length}: segments.cross_documents is false"


def start_lines(
    config: Config,
    *,
    place: Place,
    dealt: Deal,
    parameters: int,
    document_tokens: float,
    tokens: int,
    work: Work,
    notes: list[str],
) -> list[str]:
    """The header of a run; ``document_tokens`` (of each, on average), ``tokens`` and ``notes`` are on its text."""
    backend = choose_backend(config.model.attention_backend, place.device)
    return [
        f"device              {place.device}, precision {_precision(config, place)}, attention {backend}",
        *shape_lines(config, dealt, parameters=parameters, document_tokens=document_tokens),
        *_idle_memory_lines(config, dealt, tokens),
        f"work                {work}",
        *_short_lines(config),
        f"files               {config.run.folder}",
        *notes,
    ]


def origin_lines(config: Config, origin: Checkpoint) -> list[str]:
    """What a run takes from the checkpoint that it starts from."""
    found = [f"starting from the weights of {origin.folder}; its model section and tokenizer are used"]
    before, now = origin.config().objective.name, config.objective.name
    if before != now:
        changed = {"permutation": "; the query stream's own vector is left out"}.get(before, "")
        changed = "; the query stream's own vector starts at random" if now == "permutation" else changed
        found.append(f"these weights were trained with the {before} objective, and go on with {now}{changed}")
    return found


def _idle_memory_lines(config: Config, dealt: Deal, tokens: int) -> list[str]:
    """A memory that is longer than what a row reads of the text before it begins anew, with empty memory."""
    segments = config.segments
    row = tokens * (1 + segments.bidirectional) // dealt.total
    if segments.layout != "stream" or config.two_columns or segments.mem_len <= row:
        return []
    return [
        f"memory              of mem_len {segments.mem_len:,} no more than {row:,} positions are ever used: "
        "so many tokens a row reads before the text, and its memory, begin anew"
    ]


def _short_lines(config: Config) -> list[str]:
    """What a run has to be told that ends before its schedule has come to what was asked for."""
    steps, schedule, found = config.training.max_steps, config.schedule, []
    warmup, decay = schedule.warmup_steps, schedule.decay_steps
    if warmup >= steps:
        found.append(
            f"learning rate       the warm-up of {warmup:,} steps is not over at the last step, {steps:,}: "
            f"it ends at {configured_lr(config, steps):.3g}, not at optimizer.lr {config.optimizer.lr:g}"
        )
    elif schedule.name == "wsd" and decay > steps - warmup:
        found.append(
            f"learning rate       the decay of {decay:,} steps has no room between the warm-up and the last step, "
            f"{steps:,}: it takes the {steps - warmup:,} that there are"
        )
    late = [f"{length} from step {first + 1:,}" for first, length in schedule.seq_len_stages if first >= steps]
    if late:
        found.append(f"segment lengths     the last step, {steps:,}, comes before {', '.join(late)}")
    return found


def _precision(config: Config, place: Place) -> str:
    if not config.training.tf32:
        return config.training.precision
    return f"{config.training.precision} with" + ("" if place.device.type == "cuda" else "out") + " tf32 products"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no infinity


@dataclass
class Reporter:
    """Shows progress on a terminal, prints plain lines elsewhere, and always writes ``metrics.jsonl``.

    folder: of the run; None for processes that write nothing.
    """

    folder: Path | None
    config: Config
    first_step: int
    work: Work
    skipped: int = 0

    def __post_init__(self) -> None:
        self._sinks: list[MetricsFile | TensorBoard] = []
        if self.folder is not None:
            self._sinks.append(MetricsFile(self.folder / "metrics.jsonl", from_step=self.first_step))
            if self.config.logging.tensorboard:
                self._sinks.append(TensorBoard(self.folder / "tensorboard", from_step=self.first_step))
        total = self.config.training.max_steps
        self._bar = console.bar(total=total, initial=self.first_step, unit="step", description="pretrain")
        self._begin = time.perf_counter()
        self._unlogged_since = self._begin
        self._skipped, self._logged = self.skipped, False

    def _write(self, *, step: int, **values: float | None) -> None:
        for sink in self._sinks:
            sink.write(step=step, **values)

    def tick(self) -> None:
        self._bar.update(1)

    def logged(
        self,
        *,
        step: int,
        loss: float | None,
        lr: float,
        grad_norm: float,
        skips: Skips,
        tokens_seen: int,
        new_tokens: int,
    ) -> None:
        """A line of training metrics; ``new_tokens`` were read since the last one. No loss: no step counted."""
        now = time.perf_counter()
        rate = new_tokens / max(now - self._unlogged_since, 1e-9)
        self._unlogged_since, self._logged = now, True
        mfu = self.work.utilisation(rate)
        self._write(
            step=step,
            loss=loss,
            lr=lr,
            grad_norm=_finite(grad_norm),
            skipped=skips.total,
            tokens_seen=tokens_seen,
            tokens_per_second=round(rate, 1),
            **({} if mfu is None else {"mfu": round(mfu, 4)}),
        )
        shown = "-" if loss is None else f"{loss:.4f}"
        if skips.total > self._skipped:
            new = skips.total - self._skipped
            console.warn(f"step {step:,}: {new:,} step(s) since the last line were left out ({skips} in all)")
            self._skipped = skips.total
        speed = f"{rate:,.0f} tokens/s" + ("" if mfu is None else f", {mfu:.0%} of peak")
        self._bar.set_postfix_str(f"loss {shown}, lr {lr:.2e}, {speed}")
        if self._bar.disable:
            done = max(1, step - self.first_step)
            left = (now - self._begin) / done * (self.config.training.max_steps - step)
            console.say(
                f"step {step:,}/{self.config.training.max_steps:,}  loss {shown}  lr {lr:.3e}  "
                f"grad_norm {grad_norm:.3f}  {speed}  {console.duration(left)} left"
            )

    def validated(self, *, step: int, loss: float, unigram_loss: float) -> None:
        ppl = math.exp(loss) if loss < 700 else None  # JSON has no infinity
        self._write(step=step, validation_loss=_finite(loss), validation_ppl=ppl, unigram_loss=unigram_loss)
        shown = "-" if ppl is None else f"{ppl:.2f}"
        console.say(f"step {step:,}  validation loss {loss:.4f}  ppl {shown}  (unigram loss {unigram_loss:.4f})")

    def pause(self, seconds: float) -> None:
        """Time that was not spent on training does not count in tokens/s."""
        self._unlogged_since += seconds

    def close(self) -> None:
        """End bar and files; draw the curves of what was logged."""
        self._bar.close()
        for sink in self._sinks:
            sink.close()
        if self._logged and self.folder is not None:
            try:
                console.say(f"curves are in {plot_run(self.folder)}")
            except OSError as error:  # a full disk is no reason to hide what else went wrong
                console.warn(f"the curves could not be drawn: {error}")
