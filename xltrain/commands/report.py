"""What a prepared corpus amounts to, for a person."""

from typing import Any

from xltrain import console

_COLUMNS = ("documents", "lines", "bytes", "characters", "words", "tokens")
_DROPPED = {
    "carriage_returns": "carriage returns (U+000D)",
    "inner_carriage_returns": "of these inside lines",
    "nulls": "NUL characters (U+0000)",
    "byte_order_marks": "byte-order marks (U+FEFF)",
    "empty_records": "records without text",
    "unsampled_documents": "documents that a weight left out",
}


def print_report(manifest: dict[str, Any]) -> None:
    """Counts of every split, and what was left out of it and of the vocabulary."""
    splits = manifest["splits"]
    console.out("".join([f"{'':<11}", *(f"{name:>15}" for name in _COLUMNS), f"{'chars/token':>13}{'unknown':>10}"]))
    for name, counts in splits.items():
        tokens = max(1, counts["tokens"])
        figures = "".join(f"{counts[column]:>15,}" for column in _COLUMNS)
        console.out(f"{name:<11}{figures}{counts['characters'] / tokens:>13.3f}{counts['unknown'] / tokens:>10.3%}")
    for name, dropped in manifest["dropped"].items():
        said = [f"{number:,} {_DROPPED[what]}" for what, number in dropped.items() if number]
        if said:
            console.out(f"{name}: left out {', '.join(said)}")
    training = manifest["training"]
    if training.get("sentences", 0) < training.get("available_sentences", 0):
        console.out(f"vocabulary: trained on {training['sentences']:,} of {training['available_sentences']:,} lines")
    for unit in ("characters", "words"):
        if training.get(f"dropped_{unit}"):
            share = training["dropped_occurrences"] / training["occurrences"]
            console.out(
                f"vocabulary: without {training[f'dropped_{unit}']:,} of {training[unit]:,} {unit}, "
                f"{share:.3%} of the training text's"
            )
