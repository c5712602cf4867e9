"""`prepare`, `pretrain` and `plot`."""

import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from xltrain import console
from xltrain.commands.options import AsJson, ConfigPath, Overrides
from xltrain.commands.report import print_report
from xltrain.errors import UsageError

CURVES = Path("curves.png")


def prepare(
    config: ConfigPath,
    set_: Overrides = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Prepare only part I of N, for machines that share corpus.cache_dir; the last one writes the store.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train the tokenizer and write the token store; a second run finds and reuses them."""
    from xltrain.config.load import load_config
    from xltrain.data.prepare import Prepared, Waiting, prepare_part
    from xltrain.data.prepare import prepare as build

    part = _part(shard)
    loaded = load_config(config, set_ or ())
    if part is None:
        prepared: Prepared | Waiting = build(loaded, standard_input=sys.stdin.buffer)
    else:
        prepared = prepare_part(loaded, part=part[0], parts=part[1])
    if isinstance(prepared, Waiting):
        if as_json:
            found = {"fingerprint": prepared.fingerprint, "finished": prepared.finished, "shards": prepared.shards}
            console.out_json(found)
        else:
            console.out(
                f"part {shard} is done; {prepared.finished:,} of {prepared.shards:,} shards of the store are there. "
                "The other parts, or prepare without --shard, make the rest"
            )
        return
    store = prepared.store
    found = {
        "vocab_size": store.vocab_size,
        "fingerprint": store.fingerprint,
        "reused": prepared.reused,
        "folder": str(store.folder),
        "splits": store.manifest["splits"],
        "dropped": store.manifest["dropped"],
        "copied": store.manifest.get("copied", {}),
        "training": store.manifest["training"],
    }
    if as_json:
        console.out_json(found)
        return
    console.out(f"vocabulary {store.vocab_size:,}, store {store.folder}")
    print_report(store.manifest)


def _part(given: str | None) -> tuple[int, int] | None:
    if given is None:
        return None
    found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", given)
    if not found or int(found[1]) > int(found[2]):
        raise UsageError(f"--shard: {given!r} is no part of a whole; write I/N with I from 1 to N, such as 2/4")
    return int(found[1]), int(found[2])


def pretrain(
    config: ConfigPath,
    set_: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in run.output_dir.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete the run in run.output_dir first.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved configuration and what it amounts to, and stop.")
    ] = False,
) -> None:
    """Train a model as the configuration says."""
    from xltrain.config.load import dump_config, load_config
    from xltrain.config.schema import Config
    from xltrain.distributed import find_peers

    peers = find_peers()
    if resume and overwrite:
        raise UsageError("--resume and --overwrite exclude each other; give one of them")
    # One process reads the configuration for all, so that all have the same and a mistake is told once.
    loaded = Config.model_validate(peers.from_first("config", lambda: load_config(config, set_ or ()).as_dict()))
    for doubt in loaded.doubts():
        console.warn(doubt)
    if dry_run:
        from xltrain.training.dry_run import amounts

        if peers.first:
            console.out(dump_config(loaded))
            console.out("\n".join(amounts(loaded, peers.world_size)))
        return
    from xltrain.interop.huggingface import reasons_against
    from xltrain.training.loop import pretrain as train

    if loaded.objective.name == "permutation" and (reasons := reasons_against(loaded)):
        console.say(f"note: this model has no huggingface export: {'; '.join(reasons)}")
    train(loaded, resume=resume, overwrite=overwrite, peers=peers)


def _require_run(run: Path) -> None:
    """Refuse what is no folder, with what may have been meant."""
    if run.is_dir():
        return
    if run.suffix == ".png":
        raise UsageError(f"{run}: is no run; the picture is named by --output {run}")
    if not run.exists():
        raise UsageError(f"{run}: no such folder of a run (working directory {Path.cwd()})")
    hint = ""
    if run.name == "metrics.jsonl":
        hint = f"; it lies in {run.parent}"
    elif run.suffix in (".yaml", ".yml"):
        from xltrain.config.load import load_config

        with suppress(UsageError):
            hint = f"; its run is {load_config(run).run.folder}"
    raise UsageError(f"{run}: a file, where a run's folder is needed{hint}")


def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs.")],
    output: Annotated[Path, typer.Option(metavar="PNG", help="File to write.")] = CURVES,
) -> None:
    """Draw loss, perplexity, learning rate, gradient norm and speed of several runs on shared axes."""
    for run in runs:
        _require_run(run)
    from xltrain.training.curves import plot as draw

    draw(runs, output)
    console.out(str(output))
