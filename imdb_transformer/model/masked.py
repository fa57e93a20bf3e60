"""The heads of self-supervised training: an encoder learns from text alone.

Two objectives share one encoder. Masked language modelling: name the tokens behind `[MASK]` (Devlin et al.
2019, 3.1). Replaced-token detection: of a text in which those tokens were replaced by the model's own
guesses, say of every position whether it is as written (ELECTRA: Clark et al. 2020, section 2; their
generator and discriminator are here one encoder, all weights tied).

Shapes: B batch, L length, D model width, V vocabulary, M masked positions, K candidates.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from imdb_transformer.config import ModelConfig, PretrainConfig
from imdb_transformer.model.encoder import Encoder
from imdb_transformer.model.layers import LayerNorm, Linear

SIZE_MULTIPLE = 128  # of the numbers of masked positions and of candidates
RARE = 1e-3  # expected uses of an id that never occurs: it keeps a chance to be a candidate


class PretrainingLosses(NamedTuple):
    """Sums over a batch; the counts to divide them by."""

    masked: Tensor  # cross-entropy in nats
    num_masked: int
    num_correct: Tensor  # masked tokens whose likeliest candidate is the true one
    detection: Tensor  # binary cross-entropy in nats
    num_detected: Tensor  # tokens rightly told to be replaced or not
    num_replaced: Tensor


class PretrainingModel(nn.Module):
    """An encoder, a head that names tokens by the embedding's own weights, a head that spots replacements."""

    inclusion: Tensor  # (V,): probability of each id to be a candidate
    special_ids: Tensor  # those that stand for no text

    def __init__(
        self, config: ModelConfig, options: PretrainConfig, *, mask_id: int, special_ids: Sequence[int],
        counts: Tensor,
    ) -> None:  # fmt: skip
        """`counts` (V,): how often each id occurs; `special_ids` are never masked, and never candidates."""
        super().__init__()
        self.options, self.mask_id = options, mask_id
        self.encoder = Encoder(config, len(counts))
        self.transform = Linear(config.width, config.width)
        self.norm = LayerNorm(config.width, eps=config.norm_eps)
        frequency = (counts + RARE) / (counts + RARE).sum()
        # Starting at the unigram distribution: what a context adds is then all that is left to learn.
        self.bias = nn.Parameter(frequency.log())
        if options.detection_weight:
            layers = (Linear(config.width, config.width), nn.GELU(), Linear(config.width, 1))
            self.detector = nn.Sequential(*layers)
        spread = frequency.sqrt()
        inclusion = (options.num_candidates * spread / spread.sum()).clamp(max=1)
        inclusion[list(special_ids)] = 0  # or the embedding of padding would not stay zero
        self.register_buffer("inclusion", inclusion, persistent=False)
        self.register_buffer("special_ids", torch.tensor(special_ids), persistent=False)

    def forward(self, ids: Tensor, mask: Tensor, dtype: torch.dtype = torch.float32) -> PretrainingLosses:
        """(B, L) ids and mask (true on tokens) -> losses; what is masked is drawn from torch's generator."""
        chosen = self._chosen(ids, mask)
        rows = chosen.flatten().nonzero().squeeze(1)
        num_masked = len(rows)
        rows = _rounded_up(rows)  # (M,)
        truth = ids.flatten()[rows]
        mixed = self.encoder.mix(ids.masked_fill(chosen, self.mask_id), mask, dtype)
        features = self.encoder.each_position(mixed.at(rows))  # (M, D)
        logits, candidates = self._named(features, truth)  # (M, 1 + K), target first
        logits, truth = logits[:num_masked], truth[:num_masked]
        targets = torch.zeros(num_masked, dtype=torch.long, device=ids.device)
        masked = F.cross_entropy(logits, targets, reduction="sum")
        num_correct = (logits.argmax(1) == 0).sum()
        if not self.options.detection_weight:
            none = masked.new_zeros(())
            return PretrainingLosses(masked, num_masked, num_correct, none, none, none)
        corrupted = ids.masked_scatter(chosen, _sampled(logits.detach(), candidates, truth))
        scores = self.detector(self.encoder(corrupted, mask, dtype)[mask]).squeeze(1).float()
        replaced = (corrupted != ids)[mask]
        detection = F.binary_cross_entropy_with_logits(scores, replaced.float(), reduction="sum")
        num_detected = ((scores > 0) == replaced).sum()
        return PretrainingLosses(masked, num_masked, num_correct, detection, num_detected, replaced.sum())

    def _chosen(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(B, L): which tokens to mask; no special one, and of the others one at least."""
        eligible = mask & ~torch.isin(ids, self.special_ids)
        noise = torch.rand(ids.shape, device=ids.device).masked_fill(~eligible, torch.inf)
        return eligible & ((noise < self.options.mask_fraction) | (noise == noise.min()))

    def _named(self, features: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(M, 1 + K) logits, the true id's first, and the K other ids that stand in for the vocabulary.

        Each id is a candidate with its own probability p, and log p is taken from its logit, so that the
        sum over candidates estimates that over the vocabulary without bias (sampled softmax: Jean et al.
        2015, section 3, with Poisson sampling).
        """
        drawn = (torch.rand_like(self.inclusion) < self.inclusion).nonzero().squeeze(1)
        candidates = _rounded_up(drawn)  # (K,)
        hidden = self.norm(F.gelu(self.transform(features)))  # (M, D)
        table = self.encoder.embedding.tokens.weight
        others = hidden @ table[candidates].to(hidden.dtype).T  # (M, K)
        others = others.float() + (self.bias[candidates] - self.inclusion[candidates].log())
        others = others.masked_fill(targets[:, None] == candidates, -torch.inf)
        others[:, len(drawn) :] = -torch.inf
        own = (hidden * table[targets].to(hidden.dtype)).sum(1).float() + self.bias[targets]  # (M,)
        return torch.cat([own[:, None], others], dim=1), candidates


def _rounded_up(indices: Tensor) -> Tensor:
    """(n,) -> (n rounded up to `SIZE_MULTIPLE`,), zeros after the indices.

    Their number is drawn anew in each step. oneDNN keeps the code of its last 1,024 matrix products, one for
    each size: with a new size in every step it takes gigabytes and compiles all the time.
    """
    return F.pad(indices, (0, -len(indices) % SIZE_MULTIPLE))


def _sampled(logits: Tensor, candidates: Tensor, targets: Tensor) -> Tensor:
    """(M,): an id drawn from each row's distribution."""
    cumulative = logits.softmax(1).cumsum(1)
    uniform = torch.rand(len(logits), 1, device=logits.device) * cumulative[:, -1:]
    index = torch.searchsorted(cumulative, uniform).squeeze(1).clamp(max=logits.shape[1] - 1)
    return torch.where(index == 0, targets, candidates[(index - 1).clamp(min=0)])
