"""The model of pretraining: an encoder, and a head that guesses tokens from features.

`training/objectives.py` chooses the tokens to guess. With the objective "denoise" there is a decoder,
which rewrites a review that the encoder has read.

Shapes: B batch, L length, R selected positions, H heads, K head width, D model width, V vocabulary, M guessed
positions, C candidates.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imdb_transformer.config import ModelConfig, PretrainConfig
from imdb_transformer.model.attention import SelfAttention, attention_bias, split_heads
from imdb_transformer.model.encoder import Encoder
from imdb_transformer.model.layers import (
    NUM_SPECIAL,
    Dropout,
    FeedForward,
    LayerNorm,
    Linear,
    rotate,
    rotation_of,
    select,
)
from imdb_transformer.model.sampled_softmax import sampled_cross_entropy

SIZE_MULTIPLE = 128  # M and C are rounded up to a multiple of it
HEAD = ("transform.weight", "transform.bias", "norm.weight", "norm.bias", "bias")  # what guesses tokens
PROJECTED = 128  # numbers by which halves of reviews are compared
RARE = 1e-3  # added to each id's count: an id that never occurs may still become a candidate


class LanguageModel(nn.Module):
    """An encoder, a decoder if the objective is "denoise", and a head that shares the embedding's weights.

    `teacher` is a trained encoder, if it learns the features of one.
    """

    inclusion: Tensor  # (V,): probability of each id to be a candidate
    spacing: Tensor | None
    teacher: Encoder | None

    def __init__(
        self, config: ModelConfig, options: PretrainConfig, *, counts: Tensor,
        spacing: Tensor | None = None, teacher: Encoder | None = None,
    ) -> None:  # fmt: skip
        """`counts` (V,): how often each id occurs.

        `spacing` (2, V) is saved with the weights of a causal model. It decides where generated text has
        spaces.
        """
        super().__init__()
        self.encoder = Encoder(config, len(counts))
        self.transform = Linear(config.width, config.width)
        self.norm = LayerNorm(config.width)
        frequency = (counts + RARE) / (counts + RARE).sum()
        # Starts at the unigram distribution: the model learns only what the context adds.
        self.bias = nn.Parameter(frequency.log())
        spread = frequency.sqrt()
        inclusion = (options.num_candidates * spread / spread.sum()).clamp(max=1)
        inclusion[:NUM_SPECIAL] = 0  # the embedding of padding must stay zero
        self.decoder = Decoder(config) if options.objective == "denoise" else None
        is_contrastive = options.objective == "contrastive"
        self.projection = Linear(config.width, PROJECTED) if is_contrastive else None
        self.to_teacher = Linear(config.width, teacher.config.width) if teacher else None
        object.__setattr__(self, "teacher", teacher)  # no submodule: it is neither trained nor saved
        self.register_buffer("inclusion", inclusion, persistent=False)
        self.register_buffer("spacing", spacing)

    def sampled_loss(self, features: Tensor, targets: Tensor, num_guessed: int) -> tuple[Tensor, Tensor]:
        """Summed cross-entropy in nats, and the number of correct guesses; the softmax is over candidates.

        Both are sums over the first `num_guessed` of (M, D) features and (M,) true ids. A guess is correct if
        the true id is the likeliest candidate.
        """
        return sampled_cross_entropy(*self.softmax_inputs(features, targets), num_guessed=num_guessed)

    def full_loss(self, features: Tensor, targets: Tensor, num_guessed: int) -> tuple[Tensor, Tensor]:
        """The same with a softmax over the whole vocabulary except special ids.

        It takes `SIZE_MULTIPLE` rows at a time: all logits at once would fill hundreds of megabytes.
        """
        loss, num_correct = torch.zeros((), device=features.device), torch.zeros((), device=features.device)
        for start in range(0, num_guessed, SIZE_MULTIPLE):
            part = slice(start, min(start + SIZE_MULTIPLE, num_guessed))
            logits = self.logits(features[part])
            loss = loss + F.cross_entropy(logits, targets[part], reduction="sum")
            num_correct = num_correct + (logits.argmax(1) == targets[part]).sum()
        return loss, num_correct

    def logits(self, features: Tensor) -> Tensor:
        """(M, D) features -> (M, V) in fp32, minus infinity for special ids."""
        table = self.encoder.embedding.tokens.weight
        logits = (self.hidden(features) @ table.to(features.dtype).T).float() + self.bias
        logits[:, :NUM_SPECIAL] = -torch.inf
        return logits

    def hidden(self, features: Tensor) -> Tensor:
        """(M, D) features -> (M, D), whose product with the embedding gives logits."""
        return self.norm(F.gelu(self.transform(features)))

    def softmax_inputs(self, features: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """(M, D) features and (M,) true ids -> the tensors that `sampled_cross_entropy` takes.

        Candidates replace the vocabulary in the softmax. Each id becomes one with its own probability p, and
        log p is subtracted from its logit. The sum over candidates is then an unbiased estimate of the sum
        over the vocabulary (sampled softmax: Jean et al. 2015, section 3, with Poisson sampling).
        """
        drawn = (torch.rand_like(self.inclusion) < self.inclusion).nonzero().squeeze(1)
        candidates = rounded_up(F.pad(drawn, (0, 1)))  # (C,), one or more of them padding
        hidden = self.hidden(features)
        # One look-up, because its gradient is as large as the table. Not table[ids]: with several threads,
        # the order of its gradient's sums differs between runs.
        ids, sizes = torch.cat([candidates, targets]), [len(candidates), len(targets)]
        vectors = F.embedding(ids, self.encoder.embedding.tokens.weight).to(hidden.dtype)
        vectors, true_vectors = vectors.split(sizes)
        bias, true_bias = self.bias.index_select(0, ids).split(sizes)
        is_padding = torch.arange(len(candidates), device=ids.device) >= len(drawn)
        offsets = (bias - self.inclusion[candidates].log()).masked_fill(is_padding, -torch.inf)
        true = (hidden * true_vectors).sum(1).float() + true_bias  # (M,)
        return hidden, vectors, offsets, true, targets, candidates


def rounded_up(indices: Tensor) -> Tensor:
    """(n,) -> (n rounded up to `SIZE_MULTIPLE`,), zeros after the indices.

    Their number differs from step to step. oneDNN compiles a matrix product for each size, and caches 1,024.
    With a new size in every step, it would take gigabytes and compile all the time.
    """
    return F.pad(indices, (0, -len(indices) % SIZE_MULTIPLE))


class Decoder(nn.Module):
    """As many blocks as in the encoder (Vaswani et al. 2017, 3.1). Pre-norm ends with one more layer norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(DecoderBlock(config) for _ in range(config.num_layers))
        self.final_norm = LayerNorm(config.width) if config.norm == "pre" else nn.Identity()

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor, rows: Tensor | None = None) -> Tensor:
        """(B, L, D) embedded tokens and features of the encoder -> (B, L, D), or (R, D) at `rows`.

        Each position sees the tokens at and before it, and the whole memory. `mask` (B, L) applies to both.
        """
        length = x.shape[1]
        bias = attention_bias(mask, min(self.config.radius, length), x.dtype, direction=1)
        memory_bias = attention_bias(mask, 0, x.dtype)
        rotation = rotation_of(self.config, length, x.device, x.dtype)
        for block in self.blocks:
            x = block(x, memory, bias, memory_bias, rotation, rows if block is self.blocks[-1] else None)
        return self.final_norm(x)


class DecoderBlock(nn.Module):
    """Self-attention, attention to the memory, and feed-forward, each with residual sum and layer norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.attention = SelfAttention(config)
        self.attention_norm = LayerNorm(config.width)
        self.cross_attention = CrossAttention(config)
        self.cross_norm = LayerNorm(config.width)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = LayerNorm(config.width)
        self.dropout = Dropout(config.dropout, by_channel=config.dropout_mask == "channel")

    def forward(
        self, x: Tensor, memory: Tensor, bias: Tensor, memory_bias: Tensor, rotation: Tensor | None,
        rows: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """(B, L, D) -> (B, L, D), or (R, D) at the positions `rows`."""
        attend, look_up, drop = self.attention, self.cross_attention, self.dropout
        if self.pre_norm:
            x = x + drop(attend(self.attention_norm(x), bias, rotation))
            queries = self.cross_norm(x)
            x = select(x, rows) + drop(look_up(queries, memory, memory_bias, rotation, rows))
            return x + drop(self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(x + drop(attend(x, bias, rotation)))
        x = self.cross_norm(select(x, rows) + drop(look_up(x, memory, memory_bias, rotation, rows)))
        return self.feed_forward_norm(x + drop(self.feed_forward(x)))


class CrossAttention(nn.Module):
    """Attention whose queries come from the decoder, and keys and values from the encoder's features.

    It is always full attention: its memory grows with the square of the length.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads, self.head_width = config.num_heads, config.head_width
        inner = config.num_heads * config.head_width
        self.project_queries = Linear(config.width, inner)
        self.project_memory = Linear(config.width, 2 * inner)  # keys and values in one product
        self.project_out = Linear(inner, config.width)

    def forward(
        self, x: Tensor, memory: Tensor, bias: Tensor, rotation: Tensor | None, rows: Tensor | None = None
    ) -> Tensor:
        """(B, L, D) and memory (B, L, D) -> (B, L, D), or (R, D) at the positions `rows`."""
        q = split_heads(self.project_queries(x), self.num_heads, self.head_width)[0]  # (H, B, L, K)
        k, v = split_heads(self.project_memory(memory), self.num_heads, self.head_width)
        if rotation is not None:  # a token and its copy in the memory have the same position
            q, k = rotate(q, rotation), rotate(k, rotation)
        q = q * (1 / math.sqrt(self.head_width))
        weights = (q @ k.transpose(-1, -2)).add_(bias).softmax(-1)  # (H, B, L, L)
        heads = (weights @ v).permute(1, 2, 0, 3).flatten(2)  # (B, L, HK)
        return self.project_out(select(heads, rows))


@torch.no_grad()
def teacher_features(teacher: Encoder, ids: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, L) -> (B, L, width of the teacher): the sum of the upper half of its layers, each normalised.

    The sum is normalised, too. Baevski et al. 2022 ("data2vec") average layers in this way; their teacher is
    the model's own moving average.
    """
    shape = [teacher.config.width]
    total = torch.zeros((), device=ids.device)

    def add(_block: nn.Module, _arguments: object, layer: Tensor) -> None:
        nonlocal total
        total = total + F.layer_norm(layer.float(), shape)

    upper = teacher.blocks[teacher.config.num_layers // 2 :]
    hooks = [block.register_forward_hook(add) for block in upper]
    try:
        teacher(ids, mask, dtype)
    finally:
        for hook in hooks:
            hook.remove()
    return F.layer_norm(total, shape)
