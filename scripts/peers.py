"""The peers' models, of our sizes, with dropout where ours has it: for bench_train.py and bench_predict.py.

Each is called with ids (B, L) and a mask (B, L), true on tokens, and gives logits (B, 2). `transformers`
comes with the extra `bench` and is imported where it is used.
"""

import torch
from torch import Tensor, nn

from imdb_transformer.config import Config, ModelConfig

PEERS = ("torch", "transformers", "modernbert")


class TorchClassifier(nn.Module):
    """What a good user of torch writes: its encoder, its padding mask, a masked max-pool."""

    def __init__(self, c: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, c.width, padding_idx=0)
        self.dropout = nn.Dropout(c.dropout)
        layer = nn.TransformerEncoderLayer(
            c.width, c.num_heads, c.feedforward_width, c.dropout, c.activation, batch_first=True,
            norm_first=c.norm == "pre",
        )  # fmt: skip
        layer.self_attn.dropout = layer.dropout.p = 0.0  # on attention weights, and inside the feed-forward
        norm = nn.LayerNorm(c.width) if c.norm == "pre" else None
        self.encoder = nn.TransformerEncoder(layer, c.num_layers, norm, enable_nested_tensor=False)
        self.head = nn.Linear(c.width, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(B, L) -> (B, 2) logits."""
        x = self.encoder(self.dropout(self.embedding(ids)), src_key_padding_mask=~mask)
        return self.head(x.masked_fill(~mask[..., None], -torch.inf).amax(1))


class TransformersClassifier(nn.Module):
    """A model of `transformers`, called as the others are."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(B, L) -> (B, 2) logits."""
        return self.model(input_ids=ids, attention_mask=mask.long()).logits


def bert(
    config: Config, vocab_size: int, *, attention: str = "sdpa", attention_dropout: float = 0.0
) -> nn.Module:
    """BERT of our sizes; `attention`: which implementation of it."""
    from transformers import BertConfig, BertForSequenceClassification

    c = config.model
    settings = BertConfig(
        vocab_size=vocab_size, hidden_size=c.width, num_hidden_layers=c.num_layers,
        num_attention_heads=c.num_heads, intermediate_size=c.feedforward_width, hidden_act=c.activation,
        hidden_dropout_prob=c.dropout, attention_probs_dropout_prob=attention_dropout,
        classifier_dropout=0.0, max_position_embeddings=config.tokenizer.max_length, num_labels=2,
        attn_implementation=attention,
    )  # fmt: skip
    return BertForSequenceClassification(settings)


def modernbert(config: Config, vocab_size: int) -> nn.Module:
    """ModernBERT of our sizes with our windows in all layers, and dropout where ours has it."""
    from transformers import ModernBertConfig, ModernBertForSequenceClassification

    c = config.model
    settings = ModernBertConfig(
        vocab_size=vocab_size, hidden_size=c.width, num_hidden_layers=c.num_layers,
        num_attention_heads=c.num_heads, intermediate_size=gated_width(c), hidden_activation=c.activation,
        embedding_dropout=c.dropout, attention_dropout=0.0,
        mlp_dropout=0.0, local_attention=2 * c.radius,
        layer_types=["sliding_attention"] * c.num_layers, classifier_pooling="mean",
        max_position_embeddings=config.tokenizer.max_length, num_labels=2, pad_token_id=0, bos_token_id=2,
        eos_token_id=2, cls_token_id=2, sep_token_id=2, attn_implementation="sdpa",
    )  # fmt: skip
    model = ModernBertForSequenceClassification(settings)
    for layer in model.model.layers:  # it has no rate for these two
        layer.attn.out_drop = nn.Dropout(c.dropout)
        layer.mlp = nn.Sequential(layer.mlp, nn.Dropout(c.dropout))
    return model


def gated_width(c: ModelConfig) -> int:
    """F with as many weights in three matrices as ours in two, in steps of 32."""
    return round(c.feedforward_width * 2 / 3 / 32) * 32 or 32


def make_peer(name: str, config: Config, vocab_size: int) -> nn.Module:
    """A peer by name, ready for training."""
    torch.manual_seed(config.train.seed)
    if name == "torch":
        return TorchClassifier(config.model, vocab_size).train()
    make = bert if name == "transformers" else modernbert
    return TransformersClassifier(make(config, vocab_size)).train()
