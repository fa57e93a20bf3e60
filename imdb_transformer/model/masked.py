"""Masked language modelling: an encoder learns to guess the tokens behind `[MASK]` (Devlin et al. 2019, 3.1).

Shapes: B batch, L length, D model width, V vocabulary, M masked positions, K candidates.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imdb_transformer.config import ModelConfig, PretrainConfig
from imdb_transformer.model.encoder import Encoder
from imdb_transformer.model.layers import LayerNorm, Linear

SIZE_MULTIPLE = 128  # M and K are rounded up to a multiple of it
RARE = 1e-3  # added to each id's count: an id that never occurs may still become a candidate


class MaskedLanguageModel(nn.Module):
    """An encoder, and a head that shares its weights with the embedding."""

    inclusion: Tensor  # (V,): probability of each id to be a candidate
    special_ids: Tensor  # ids that spell no text

    def __init__(
        self, config: ModelConfig, options: PretrainConfig, *, mask_id: int, special_ids: Sequence[int],
        counts: Tensor,
    ) -> None:  # fmt: skip
        """`counts` (V,): how often each id occurs; `special_ids` are never masked, and never candidates."""
        super().__init__()
        self.mask_id = mask_id
        self.encoder = Encoder(config, len(counts))
        self.transform = Linear(config.width, config.width)
        self.norm = LayerNorm(config.width)
        frequency = (counts + RARE) / (counts + RARE).sum()
        # Starts at the unigram distribution: the model learns only what the context adds.
        self.bias = nn.Parameter(frequency.log())
        spread = frequency.sqrt()
        inclusion = (options.num_candidates * spread / spread.sum()).clamp(max=1)
        inclusion[list(special_ids)] = 0  # the embedding of padding must stay zero
        self.register_buffer("inclusion", inclusion, persistent=False)
        self.register_buffer("special_ids", torch.tensor(special_ids), persistent=False)

    def forward(
        self, ids: Tensor, mask: Tensor, share: float, dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor, int]:
        """(B, L) ids and mask (true on tokens) -> three sums over the masked tokens, a `share` of all.

        They are the cross-entropy in nats, the number of right answers (the true id is the likeliest
        candidate), and M, the number of masked tokens. Masks come from torch's generator.
        """
        masked = self.masked_positions(ids, mask, share)
        features, targets, num_masked = self._masked_features(ids, mask, masked, dtype)
        logits = self.candidate_logits(features, targets)[:num_masked]  # (M, 1 + K)
        first = torch.zeros(num_masked, dtype=torch.long, device=ids.device)
        loss = F.cross_entropy(logits, first, reduction="sum")
        return loss, (logits.argmax(1) == 0).sum(), num_masked

    def exact(self, ids: Tensor, mask: Tensor, masked: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Two sums over the `masked` (B, L) tokens: cross-entropy in nats, and the number of right answers.

        The softmax is over the whole vocabulary but for the special ids.
        """
        features, targets, num_masked = self._masked_features(ids, mask, masked, dtype)
        table = self.encoder.embedding.tokens.weight
        logits = (self.hidden(features) @ table.to(features.dtype).T)[
            :num_masked
        ].float() + self.bias  # (M, V)
        logits[:, self.special_ids] = -torch.inf
        targets = targets[:num_masked]
        return F.cross_entropy(logits, targets, reduction="sum"), (logits.argmax(1) == targets).sum()

    def _masked_features(
        self, ids: Tensor, mask: Tensor, masked: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, int]:
        """Features (M, D) at the masked positions, their true ids (M,), and how many are not filling."""
        rows = masked.flatten().nonzero().squeeze(1)
        num_masked, rows = len(rows), _rounded_up(rows)
        features = self.encoder(ids.masked_fill(masked, self.mask_id), mask, dtype, rows)
        return features, ids.flatten()[rows], num_masked

    def hidden(self, features: Tensor) -> Tensor:
        """(M, D) features -> (M, D), whose product with the embedding gives logits."""
        return self.norm(F.gelu(self.transform(features)))

    def masked_positions(
        self, ids: Tensor, mask: Tensor, share: float, generator: torch.Generator | None = None
    ) -> Tensor:
        """(B, L): true on a random `share` of the tokens, at least one, never on a special one."""
        eligible = mask & ~torch.isin(ids, self.special_ids)
        noise = torch.rand(ids.shape, device=ids.device, generator=generator)
        noise = noise.masked_fill(~eligible, torch.inf)
        return eligible & ((noise < share) | (noise == noise.min()))

    def candidate_logits(self, features: Tensor, targets: Tensor) -> Tensor:
        """(M, D) features and (M,) true ids -> (M, 1 + K) logits of the true id and of K candidates.

        The candidates replace the vocabulary in the softmax. Each id becomes one with its own probability p,
        and log p is subtracted from its logit. The sum over candidates is then an unbiased estimate of the
        sum over the vocabulary (sampled softmax: Jean et al. 2015, section 3, with Poisson sampling).
        """
        drawn = (torch.rand_like(self.inclusion) < self.inclusion).nonzero().squeeze(1)
        candidates = _rounded_up(drawn)  # (K,)
        hidden = self.hidden(features)
        table = self.encoder.embedding.tokens.weight
        others = hidden @ table[candidates].to(hidden.dtype).T  # (M, K)
        others = others.float() + (self.bias[candidates] - self.inclusion[candidates].log())
        others = others.masked_fill(targets[:, None] == candidates, -torch.inf)
        others[:, len(drawn) :] = -torch.inf
        true = (hidden * table[targets].to(hidden.dtype)).sum(1).float() + self.bias[targets]  # (M,)
        return torch.cat([true[:, None], others], dim=1)


def _rounded_up(indices: Tensor) -> Tensor:
    """(n,) -> (n rounded up to `SIZE_MULTIPLE`,), zeros after the indices.

    Their number differs from step to step. oneDNN compiles a matrix product for each size, and caches 1,024.
    With a new size in every step, it would take gigabytes and compile all the time.
    """
    return F.pad(indices, (0, -len(indices) % SIZE_MULTIPLE))
