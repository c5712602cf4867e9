"""`score` and `generate`."""

import math
from pathlib import Path
from typing import Annotated

import typer

from xltrain import console
from xltrain.commands.misuse import require_order
from xltrain.commands.options import AsJson, MemLen, Source
from xltrain.errors import UsageError

StartMark = Annotated[
    bool | None,
    typer.Option(
        "--start/--no-start", help="Put a document's end before each text; by default unless documents are files."
    ),
]


def score(
    source: Source,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Lines of text or JSON; - is standard input.")] = "-",
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="auto|lines|jsonl",
            help='Plain lines, or JSON such as {"context": "The king", "text": " is dead."}; auto: by the first line.',
        ),
    ] = "auto",
    per_token: Annotated[bool, typer.Option("--per-token", help="Also every piece and its log-probability.")] = False,
    start: StartMark = None,
    end: Annotated[bool, typer.Option("--end", help="Also score that the text ends.")] = False,
    mem_len: MemLen = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Texts at once; does not change the result.")
    ] = None,
) -> None:
    """Log-probability of every line, or of a continuation given its context; see docs/generation.md."""
    require_order("score", source, file)
    from xltrain.evaluation.score_lines import score_lines

    for found in score_lines(
        source,
        file,
        form=form,
        start=start,
        end=end,
        per_token=per_token,
        mem_len=mem_len,
        batch_size=batch_size,
    ):
        console.out_json(found)


def generate(
    source: Source,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="Text to go on with; - is standard input; none: a new text."),
    ] = None,
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="Read the prompt from a file.")] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Every line of the file or input is a prompt.")] = False,
    max_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="A sample's longest length.")] = 200,
    until: Annotated[
        str, typer.Option(metavar="document|line|never", help="What ends a sample before --max-tokens.")
    ] = "document",
    temperature: Annotated[
        float,
        typer.Option(
            min=0.0, metavar="X", help="Below 1: likelier tokens; above: rarer ones; 0: always the likeliest."
        ),
    ] = 1.0,
    top_k: Annotated[int | None, typer.Option(min=1, metavar="N", help="Draw from the N likeliest tokens.")] = None,
    top_p: Annotated[
        float, typer.Option(metavar="P", help="Draw from the likeliest tokens of total probability P.")
    ] = 1.0,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, metavar="N", help="Of the draws: the same seed gives the same text.")
    ] = 0,
    num_samples: Annotated[int, typer.Option(min=1, metavar="N", help="Samples of every prompt.")] = 1,
    start: StartMark = None,
    mem_len: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Remembered positions; by default what training reached.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Samples at once; does not change them.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a text, or begin one."""
    if not 0.0 < top_p <= 1.0:
        raise UsageError(f"--top-p: {top_p} is not allowed; give a probability above 0 and up to 1")
    if math.isinf(temperature):
        raise UsageError("--temperature: inf is not allowed; give a number, 1 for the model's own probabilities")
    require_order("generate", source, prompt)
    if prompt is not None and prompt != "-" and _is_file(prompt):
        console.say(f"note: the prompt is {prompt!r} itself, and not the file of this name; --file {prompt} reads that")
    prompts = _prompts(prompt, file, lines=lines)
    from xltrain.evaluation.generate import Sample
    from xltrain.evaluation.generate import generate as run
    from xltrain.evaluation.sampling import Sampling

    streamed = len(prompts) * num_samples == 1 and not as_json

    def show(sample: Sample, text: str) -> None:
        if streamed:
            console.out(sample.before + text if sample.text == text else text, end="")

    found, samples = run(
        source,
        prompts,
        sampling=Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed),
        max_tokens=max_tokens,
        num_samples=num_samples,
        until=until,
        start=start,
        mem_len=mem_len,
        batch_size=batch_size,
        show=show,
    )
    if as_json:
        console.out_json(found)
        return
    if streamed:
        console.out("" if samples[0].text else samples[0].before)
    else:
        for sample in samples:
            of_prompt = f"prompt {sample.prompt_number}, " if len(prompts) > 1 else ""
            console.out(f"--- {of_prompt}sample {sample.copy}\n{sample.before}{sample.text}")
    console.say(f"{found['tokens']:,} tokens, {found['tokens_per_second']:,.0f} tokens/s")


def _is_file(prompt: str) -> bool:
    try:
        return Path(prompt).is_file()
    except (OSError, ValueError):  # too long for a name, or with NUL
        return False


def _prompts(prompt: str | None, file: Path | None, *, lines: bool) -> list[str]:
    if file is not None and prompt is not None:
        raise UsageError("a prompt and --file exclude each other; give one of them")
    if lines and file is None and prompt != "-":
        raise UsageError("--lines needs prompts from a file (--file) or from standard input (-)")
    try:
        raw = file.read_bytes() if file is not None else console.standard_input().read() if prompt == "-" else None
        text = (prompt or "") if raw is None else raw.decode("utf-8-sig").removesuffix("\n")
        text.encode("utf-8")
    except OSError as error:
        raise UsageError(f"--file: {file} cannot be read ({error.strerror}); working directory {Path.cwd()}") from None
    except UnicodeEncodeError:  # bytes of an argument that are no characters, as Python keeps them
        raise UsageError("the prompt is not UTF-8 text; write it in a UTF-8 terminal, or into a --file") from None
    except UnicodeDecodeError as error:
        from xltrain.data.files import way_to_convert

        place = f"{file or 'standard input'}: not UTF-8 text (byte {error.start})"
        raise UsageError(f"{place}; {way_to_convert(error)}") from None
    if raw is not None and not text.strip("\r\n"):
        raise UsageError(
            f"{file or 'standard input'}: is empty; give a prompt in it, or leave it out to begin a new text"
        )
    found = [line.removesuffix("\r") for line in (text.split("\n") if lines else [text])]
    if lines and (blank := found.count("")):
        console.say(f"note: {blank:,} of {len(found):,} prompts are blank lines, and each of these begins a new text")
    return found
