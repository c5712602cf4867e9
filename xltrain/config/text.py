"""Sections that say what is read: the corpus, the tokenizer, the segments."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from xltrain.config.base import Count, Float, Length, Problem, Section, TextList


class SourceConfig(Section):
    """Text of one kind, where a path alone does not say enough: files, or a dataset of the library `datasets`."""

    files: TextList = Field(default_factory=list)
    """Files, globs or addresses."""
    format: Literal["text", "jsonl", "parquet"] | None = None
    """What the files hold; by default, Parquet is known by its first bytes and JSON Lines by `.jsonl` or `.ndjson`."""
    dataset: str | None = None
    """Name of a dataset, a folder that `save_to_disk` wrote, or a loader such as `json` with `data_files`."""
    config: str | None = None
    """Configuration of the dataset."""
    split: str | None = None
    """Split of the dataset, or slices such as `train[:90%]`; by default the one that the list is for: `train`,
    `validation` or `test`. A folder that `save_to_disk` wrote without splits is every split."""
    data_files: TextList = Field(default_factory=list)
    """Files for the dataset's loader."""
    streaming: bool = False
    """Read the dataset as it arrives, instead of downloading it first."""
    text_field: str | None = None
    """Field or column with the text; `corpus.text_field` by default."""
    weight: Float = Field(1.0, gt=0.0, le=1000.0)
    """How often the source is taken: 3 is three times, 0.25 a quarter of its documents (corpus.train only)."""
    seed: Length = Field(0, le=2**32 - 1)
    """Another number takes other documents, where the weight is not whole."""

    def problems(self) -> list[Problem]:
        found = []
        if bool(self.files) == (self.dataset is not None):
            found.append(("files", "give either files or dataset"))
        of_datasets = {
            name: value
            for name, value in (
                ("config", self.config),
                ("split", self.split),
                ("data_files", self.data_files),
                ("streaming", self.streaming),
            )
            if value and self.dataset is None
        }
        found += [(name, "goes with dataset, not with files; leave it out") for name in of_datasets]
        if self.format is not None and self.dataset is not None:
            found.append(("format", "goes with files, not with dataset; leave it out"))
        return found


def _entries(value: Any) -> Any:
    """A list of sources; one stands for a list of one. YAML reads a lone dash as a list of nothing."""
    if value == [None]:
        return ["-"]
    return [value] if isinstance(value, str | dict) else value


ENTRY_KINDS = ("path", "source")
"""What pydantic calls the two kinds of an entry, in the places that it names."""

Sources = Annotated[
    list[
        Annotated[
            Annotated[str, Tag("path")] | Annotated[SourceConfig, Tag("source")],
            Discriminator(lambda entry: ENTRY_KINDS[isinstance(entry, dict | SourceConfig)]),
        ]
    ],
    BeforeValidator(_entries),
]


class CorpusConfig(Section):
    """The raw text."""

    train: Sources = Field(min_length=1)
    """What to train on: text, JSON Lines and Parquet files, each compressed or not, by path, glob or address
    (`s3://...`), or mappings with the keys below. `-` is standard input, for `prepare`."""
    validation: Sources = Field(default_factory=list)
    """The same for validation during training; none: no validation."""
    test: Sources = Field(default_factory=list)
    """The same for a final evaluation with `eval-ppl --split test`."""
    document_separator: Literal["blank_line", "line", "file", "record", "two_columns"] = "blank_line"
    """What ends a document: a blank line, every line, or only the end of a file. Records of JSON Lines, Parquet and
    datasets are documents of their own with `blank_line` and with `record`, which allows nothing else than records.
    Each document ends with `<eod>`.
    `two_columns`: every line is a pair, a source, one tab and a target (objective seq2seq); `<sep>` parts them."""
    text_field: str = "text"
    """Field or column of records that holds their text."""
    cache_dir: str = ".xltrain"
    """Folder of the token stores, each with its tokenizer and named by the fingerprint of what it was built from. A
    tokenizer is not trained again for a store with the same training text and tokenizer settings."""
    num_workers: Length = 0
    """Processes that turn text into ids; 0: one per core. The store does not depend on it."""

    def problems(self) -> list[Problem]:
        found = []
        for name, entries in (("train", self.train), ("validation", self.validation), ("test", self.test)):
            for number, entry in enumerate(entries):
                if isinstance(entry, SourceConfig):
                    found += [(f"{name}.{number}.{key}", text) for key, text in entry.problems()]
                    if name != "train" and entry.weight != 1:
                        found.append((f"{name}.{number}.weight", "is for corpus.train; other text is read once"))
        return found


class TokenizerConfig(Section):
    """How text becomes ids."""

    kind: Literal["sentencepiece", "char", "byte", "word"] = "sentencepiece"
    """`sentencepiece`: subwords; `char`: one id per character, line ends included, alphabet sorted by code point;
    `byte`: one id per byte of UTF-8; `word`: words between white space, by frequency (Transformer-XL's corpora)."""
    path: str | None = None
    """An existing tokenizer file (`.model` of sentencepiece, `.json` of char and word, or a list with one word per
    line); none: train one on `corpus.train`."""
    vocab_size: Count | None = None
    """Size of the vocabulary. sentencepiece: 8,000 when not given; char and word: all of the text's when not given
    (a smaller word vocabulary has `<unk>` for the rest); byte: it is fixed."""
    min_count: Count = 1
    """Words that occur less often in the training text become `<unk>` (word only)."""
    eos: bool = True
    """Whether every line, a blank one too, ends with `<eos>` (word only)."""
    lower: bool = False
    """Whether text is lower-cased before it is split (word and sentencepiece)."""
    quotes: bool = False
    """Whether two grave accents, and two apostrophes, become a quotation mark, as XLNet has it (sentencepiece only)."""
    strip_accents: bool = False
    """Whether characters are taken apart (NFKD) and combining marks dropped, as XLNet has it; this harms Korean, Thai
    and Indic scripts (sentencepiece only)."""
    split_digit_commas: bool = False
    """Whether a comma after a digit becomes a piece of its own, as XLNet has it (sentencepiece only)."""
    model_type: Literal["unigram", "bpe"] = "unigram"
    """Algorithm of a trained sentencepiece model."""
    character_coverage: Float = Field(0.9995, ge=0.98, le=1.0)
    """Share of the training text's characters that the vocabulary covers; the rest are `<unk>` (sentencepiece only)."""
    normalization: Literal["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity"] = "nmt_nfkc"
    """Normalisation rule of a trained sentencepiece model; `_cf` also folds case. `identity` keeps every character of a
    line, and spaces as many as there are; the others make one space of several, and none at the ends."""
    user_defined_symbols: list[str] = Field(default_factory=lambda: ["<eop>"])
    """Pieces that are never split. `<eop>` comes first, so that it has XLNet's id 8."""
    max_sentences: Count = 1_000_000
    """At most this many lines are used to train the vocabulary, drawn at random (sentencepiece only); fewer where they
    would have more than 40 million characters, which take about a gigabyte of memory. Above a million lines, 40 times
    as many characters as lines are allowed."""

    def problems(self) -> list[Problem]:
        found = []
        controls = {"<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>"}
        for symbol in self.user_defined_symbols:
            if not symbol.strip():
                found.append(("user_defined_symbols", f"{symbol!r} is empty; remove it"))
            elif symbol in controls:
                found.append(("user_defined_symbols", f"{symbol!r} is already a control symbol; remove it"))
            elif symbol[0] in "'\"" or (symbol[-1] in "'\"" and len(symbol) > 1):
                found.append(("user_defined_symbols", f"{symbol!r} has quotes in its name; write it without them"))
            elif any(character.isspace() for character in symbol):
                found.append(("user_defined_symbols", f"{symbol!r} contains white space; a symbol cannot"))
        twice = {symbol for symbol in self.user_defined_symbols if self.user_defined_symbols.count(symbol) > 1}
        found += [("user_defined_symbols", f"{symbol!r} is listed twice") for symbol in sorted(twice)]
        if self.kind == "sentencepiece" and self.user_defined_symbols[:1] != ["<eop>"] and self.path is None:
            found.append(("user_defined_symbols", "the first must be '<eop>', which XLNet has at id 8"))
        if self.kind == "byte" and self.path is not None:
            found.append(("path", f"{self.path!r} is not allowed: bytes need no file; leave it out"))
        if self.kind == "byte" and self.vocab_size not in (None, 265):
            found.append(("vocab_size", f"{self.vocab_size} is not allowed: 256 bytes and 9 special pieces make 265"))
        return found


class SegmentsConfig(Section):
    """How the token stream is cut."""

    seq_len: Count = 128
    """Tokens per segment (T)."""
    mem_len: Length = 128
    """Positions of earlier segments that each layer remembers (M); 0: no memory."""
    layout: Literal["stream", "pair"] = "stream"
    """`stream`: text as it follows; `pair`: XLNet's windows, a reused part and then two texts, of which the second
    follows the first or comes from elsewhere, each closed by `<sep>`, and `<cls>` (permutation, with a `reuse_len`)."""
    initial_memory: Literal["absent", "zeros"] = "absent"
    """What rows see of memory before anything was read: nothing, or `mem_len` states of zero that take part in
    attention, as in TensorFlow's and transformers' Transformer-XL (to compare with their numbers)."""
    reuse_len: Length = 0
    """Of a segment, only this many tokens enter memory and the rest is read again (permutation); 0: all of it."""
    bidirectional: bool = False
    """Half of the rows read the other half's text in reverse (XLNet); it needs an even number of rows."""
    shuffle_documents: bool = False
    """Put the documents into a new random order every epoch; off: the order of the files, every epoch."""
    cross_documents: bool = True
    """Whether text may see the document before it; off: attention and memory stop at document boundaries."""
