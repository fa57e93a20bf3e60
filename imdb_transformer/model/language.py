"""The model of pretraining: an encoder, and a head that guesses tokens from features.

`training/objectives.py` chooses the tokens to guess.

Shapes: D model width, V vocabulary, M guessed positions, K candidates.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imdb_transformer.config import ModelConfig, PretrainConfig
from imdb_transformer.model.decoder import Decoder
from imdb_transformer.model.encoder import Encoder
from imdb_transformer.model.layers import LayerNorm, Linear

SIZE_MULTIPLE = 128  # M and K are rounded up to a multiple of it
RARE = 1e-3  # added to each id's count: an id that never occurs may still become a candidate


class LanguageModel(nn.Module):
    """An encoder, and a head that shares its weights with the embedding.

    With the objective "denoise" a decoder stands between them.
    """

    inclusion: Tensor  # (V,): probability of each id to be a candidate
    special_ids: Tensor  # ids that spell no text
    spacing: Tensor | None

    def __init__(
        self, config: ModelConfig, options: PretrainConfig, *, special_ids: Sequence[int], counts: Tensor,
        spacing: Tensor | None = None,
    ) -> None:  # fmt: skip
        """`counts` (V,): how often each id occurs; `special_ids` are never candidates.

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
        inclusion[list(special_ids)] = 0  # the embedding of padding must stay zero
        self.decoder = Decoder(config) if options.objective == "denoise" else None
        self.register_buffer("inclusion", inclusion, persistent=False)
        self.register_buffer("spacing", spacing)
        self.register_buffer("special_ids", torch.tensor(special_ids), persistent=False)

    def sampled_loss(self, features: Tensor, targets: Tensor, num_guessed: int) -> tuple[Tensor, Tensor]:
        """Summed cross-entropy in nats, and the number of correct guesses; the softmax is over candidates.

        Both are sums over the first `num_guessed` of (M, D) features and (M,) true ids. A guess is correct if
        the true id is the likeliest candidate.
        """
        logits = self.candidate_logits(features, targets)[:num_guessed]  # (M, 1 + K)
        first = torch.zeros(num_guessed, dtype=torch.long, device=targets.device)
        return F.cross_entropy(logits, first, reduction="sum"), (logits.argmax(1) == 0).sum()

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
        logits[:, self.special_ids] = -torch.inf
        return logits

    def hidden(self, features: Tensor) -> Tensor:
        """(M, D) features -> (M, D), whose product with the embedding gives logits."""
        return self.norm(F.gelu(self.transform(features)))

    def candidate_logits(self, features: Tensor, targets: Tensor) -> Tensor:
        """(M, D) features and (M,) true ids -> (M, 1 + K) logits of the true id and of K candidates.

        The candidates replace the vocabulary in the softmax. Each id becomes one with its own probability p,
        and log p is subtracted from its logit. The sum over candidates is then an unbiased estimate of the
        sum over the vocabulary (sampled softmax: Jean et al. 2015, section 3, with Poisson sampling).
        """
        drawn = (torch.rand_like(self.inclusion) < self.inclusion).nonzero().squeeze(1)
        candidates = rounded_up(drawn)  # (K,)
        hidden = self.hidden(features)
        table = self.encoder.embedding.tokens.weight
        others = hidden @ table[candidates].to(hidden.dtype).T  # (M, K)
        others = others.float() + (self.bias[candidates] - self.inclusion[candidates].log())
        others = others.masked_fill(targets[:, None] == candidates, -torch.inf)
        others[:, len(drawn) :] = -torch.inf
        true = (hidden * table[targets].to(hidden.dtype)).sum(1).float() + self.bias[targets]  # (M,)
        return torch.cat([true[:, None], others], dim=1)


def rounded_up(indices: Tensor) -> Tensor:
    """(n,) -> (n rounded up to `SIZE_MULTIPLE`,), zeros after the indices.

    Their number differs from step to step. oneDNN compiles a matrix product for each size, and caches 1,024.
    With a new size in every step, it would take gigabytes and compile all the time.
    """
    return F.pad(indices, (0, -len(indices) % SIZE_MULTIPLE))
