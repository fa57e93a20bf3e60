"""The sections of a config that trains in about a second; [data] is to be put before them."""

TINY_MODEL = """
[tokenizer]
vocab_size = 400
max_length = 64
tail_length = 16

[model]
width = 16
num_layers = 1
num_heads = 2
head_width = 8
feedforward_width = 32
radius = 8
embedding_std = 0.1
activation = "gelu"
dropout = 0.1

[train]
init_from = ""
epochs = 2
evals_per_epoch = 2
batch_tokens = 1024
optimizer = "adamw"
lr = 1e-2
warmup_fraction = 0.0
ema_decay = 0.0
best_by = "accuracy"
yardstick = false
"""
