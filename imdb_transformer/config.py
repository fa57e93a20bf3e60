"""Every key of a config, typed and frozen. The defaults are those of `configs/base.toml`."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from imdb_transformer.errors import ConfigError, with_home

Share = Annotated[float, Field(gt=0, lt=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
# Bounded: a typo is refused here, with the key's name.
MAX_INT = 2**31 - 1
PositiveInt = Annotated[int, Field(gt=0, le=MAX_INT)]
NaturalInt = Annotated[int, Field(ge=0, le=MAX_INT)]
Width = Annotated[int, Field(gt=0, le=65_536)]
MAX_FLOAT = 1e18  # the product of two fits in fp32
PositiveFloat = Annotated[float, Field(gt=0, le=MAX_FLOAT)]
NonNegativeFloat = Annotated[float, Field(ge=0, le=MAX_FLOAT)]
PathOrName = Annotated[str, AfterValidator(with_home)]


class Section(BaseModel):
    """Frozen. Refuses unknown keys and values of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class DataConfig(Section):
    """Where reviews come from and which of them are held out."""

    source: Annotated[PathOrName, Field(min_length=1)] = "hub"
    """`hub`, `demo`, or a path or URL: archive, folder, or CSV, TSV, JSON, JSONL, Parquet or Excel file"""
    data_dir: Annotated[PathOrName, Field(min_length=1)] = "data"
    """folder for stored corpora and encoded splits"""
    text_column: str = "text"
    """column that holds the review, in table files"""
    label_column: str = "label"
    """column that holds the class, in table files; empty: there is none, and only `pretrain` can learn"""
    encoding: Annotated[str, Field(min_length=1)] = "utf-8"
    """encoding of text, CSV, TSV and JSON files, such as `cp1252`; a byte order mark overrides it"""
    bad_rows: Literal["fail", "skip"] = "fail"
    """what happens at a row that is malformed or lacks its text or label: `fail` or `skip`"""
    held_out_fraction: Annotated[float, Field(ge=0, le=0.5)] = 0.1
    """share held out as validation (IMDB's is fixed) and, if only train exists, as test; 0: no validation"""

    @model_validator(mode="after")
    def _columns_differ(self) -> Self:
        if self.text_column == self.label_column:
            raise ValueError(f"text_column and label_column are both {self.text_column!r}")
        return self

    def check_labelled(self) -> None:
        """Raises ConfigError if no column holds the class: a classifier could not learn it."""
        if not self.label_column:
            raise ConfigError(
                "data.label_column is empty. This command needs labels: name their column (--label-column)."
            )


class TokenizerConfig(Section):
    """How text becomes ids."""

    vocab_size: Annotated[int, Field(ge=300, le=1_000_000)] = 16_000
    """most pieces of the vocabulary, `[PAD]` and `[MASK]` included"""
    max_length: PositiveInt = 1024
    """most ids of a review; a longer review is cut"""
    tail_length: NaturalInt = 256
    """how many ids of a cut review are from its end; the others are from its beginning"""

    @model_validator(mode="after")
    def _tail_fits(self) -> Self:
        if self.tail_length >= self.max_length:
            raise ValueError(f"tail_length ({self.tail_length}) must be below max_length ({self.max_length})")
        return self


class ModelConfig(Section):
    """The encoder and its head."""

    width: Width = 256
    """D, width of the residual stream"""
    num_layers: Width = 4
    """encoder blocks"""
    num_heads: Width = 4
    """H, attention heads"""
    head_width: Width = 64
    """K, width of each head; it need not be width / num_heads"""
    feedforward_width: Width = 1024
    """F, width between the two linear maps of the feed-forward"""
    radius: NaturalInt = 16
    """r: a token sees r tokens on either side, at a cost linear in length; 0: it sees all tokens"""
    positions: Literal["sinusoidal", "rotary", "none"] = "rotary"
    """how the model knows a token's position: `sinusoidal`, `rotary` or `none`"""
    norm: Literal["post", "pre"] = "pre"
    """layer norm after each residual sum (`post`: the 2017 paper) or before each sub-layer (`pre`)"""
    embedding_norm: bool = False
    """layer norm after the embedding sum"""
    embedding_std: PositiveFloat = 1.0
    """standard deviation of the token embedding's initial weights"""
    bigram_buckets: Annotated[int, Field(ge=0, le=2**24)] = 0
    """hashed vectors of bigrams, added to the token embedding; 0 for none"""
    embedding_scale: bool = False
    """multiply embeddings by the square root of the width (the 2017 paper, section 3.4)"""
    activation: Literal["relu", "gelu"] = "relu"
    """`relu` or `gelu`, between the two linear maps of the feed-forward"""
    dropout: Fraction = 0.0
    """dropout of the embedding sum and of each sub-layer's output (the 2017 paper, section 5.4)"""
    word_dropout: Fraction = 0.0
    """share of a review's tokens that training leaves out at random; pretraining reads all"""
    dropout_mask: Literal["element", "channel"] = "channel"
    """one random number for each `element`, or for each `channel` of a review (cheaper on a CPU)"""


class TrainConfig(Section):
    """Optimisation, validation and hardware."""

    init_from: PathOrName = "auto"
    """run whose encoder the model starts with; empty: random weights; `auto`: one of the package's"""
    seed: NaturalInt = 0
    """decides initial weights, batch order, dropout and masks"""
    epochs: Annotated[int, Field(ge=0, le=65_536)] = 0
    """passes over the training reviews; 0: chosen from the reviews"""
    batch_tokens: NaturalInt = 0
    """most tokens of a batch, padding included; 0: chosen from the reviews"""
    lr: PositiveFloat = 6e-4
    """peak learning rate"""
    optimizer: Literal["adamw", "muon"] = "muon"
    """`adamw`, or `muon` for the matrices of the blocks and AdamW for all else"""
    muon_lr_scale: PositiveFloat = 1.5
    """Muon's learning rate, as a multiple of `train.lr`"""
    schedule: Literal["linear", "cosine", "inverse_sqrt", "constant"] = "linear"
    """after the warm-up: `linear` or `cosine` to zero, `inverse_sqrt` of the step, or `constant`"""
    warmup_fraction: Fraction = 0.1
    """share of all steps in which the rate rises linearly to its peak"""
    weight_decay: NonNegativeFloat = 0.01
    """decay of the weights (Loshchilov and Hutter 2019); biases and norms do not decay"""
    beta2: Fraction = 0.999
    """AdamW's decay of the mean squared gradient"""
    clip_norm: NonNegativeFloat = 1.0
    """largest norm of the whole gradient; 0 does not clip"""
    label_smoothing: Fraction = 0.0
    """probability moved from the label to all classes evenly"""
    star_weight: NonNegativeFloat = 0.0
    """weight of a second loss: guessing each review's stars, which only IMDB's training reviews have"""
    ema_decay: Fraction = 0.998
    """largest decay of the average of the weights, which is validated and kept; 0: no average"""
    first_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """share of that average that the starting weights keep; 0: what the decay leaves"""
    evals_per_epoch: NaturalInt = 0
    """validations per epoch; 0: two if there are one or two epochs, otherwise one"""
    best_by: Literal["accuracy", "f1", "loss", "last"] = "last"
    """which checkpoint is best: by validation `accuracy`, macro `f1` or `loss`, or the `last`"""
    yardstick: bool = True
    """compare with a linear model on validation when training ends"""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """type of activations and Muon's products; `auto` takes `bf16` if it is faster. Weights are fp32"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`cpu` or `cuda`; `auto` takes a GPU when there is one"""


class PretrainConfig(Section):
    """Self-supervised training (`imdb-tx pretrain`). Its optimisation is set in [train]."""

    objective: Literal["masked", "contrastive", "causal", "causal_backward", "denoise"] = "masked"
    """what is guessed: `masked`, `contrastive`, `causal`, `causal_backward` or `denoise`"""
    mask_fractions: tuple[Share, Share] = Field((0.3, 0.15), strict=False)
    """shares of tokens hidden behind `[MASK]` in the first and the last step; linear in between"""
    num_candidates: Annotated[int, Field(ge=16, lt=2**31)] = 2048
    """how many ids a batch's softmax samples from the vocabulary, on average at most"""


class Config(Section):
    """A whole experiment."""

    data: DataConfig = DataConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    pretrain: PretrainConfig = PretrainConfig()

    def replaced(self, section: str, **values: object) -> Self:
        """The config with other values in a section. They are not validated."""
        return self.model_copy(update={section: getattr(self, section).model_copy(update=values)})

    @model_validator(mode="after")
    def _values_fit(self) -> Self:
        model = self.model
        if model.positions == "rotary" and model.head_width % 2:
            raise ValueError(f'positions = "rotary" needs an even head_width, not {model.head_width}')
        if self.pretrain.objective == "causal_backward" and model.bigram_buckets:
            raise ValueError('"causal_backward" needs bigram_buckets = 0: bigrams show the token to guess')
        return self
