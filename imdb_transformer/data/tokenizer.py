"""From text to ids: cleaning, splitting, byte-pair encoding, cutting. No other code makes ids from text.

Cleaning is part of `tokenizer.json`, so any program that reads this format gets the same pieces. Cutting is
not part of it, because it depends on the model's length limit.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from imdb_transformer.config import Config, TokenizerConfig
from imdb_transformer.config_file import differences
from imdb_transformer.data.reviews import BREAK_TAG, word_pattern
from imdb_transformer.errors import RunError, reason_of
from imdb_transformer.store import run
from imdb_transformer.store.files import write_whole

Ids = NDArray[np.uint32]
Number = TypeVar("Number", bound=np.generic)

SPECIAL_PIECES = ("[PAD]", "[MASK]")
PAD_ID, MASK_ID = range(2)
SPACE = "Ġ"  # a space in byte-level pieces; no word contains it. Its id stands for an empty text
MIN_FREQUENCY = 2  # a rarer pair of pieces is not merged
FILE_NAME = "tokenizer.json"
MAX_FILE_BYTES = 200 << 20
LENGTH_KEYS = {"max_length", "tail_length"}  # keys that may differ from those of another run
LONG_WORD = 4  # letters. Shorter words of any language are often pieces of longer words in training
# Of the usual number of characters per piece. French reviews have 0.5 to 0.82 of IMDB's, and German ones 0.45
# to 0.7.
LEAST_SHARE = 0.85


class Tokenizer:
    """Byte-pair encoding (Sennrich et al. 2016, section 3.2) over bytes: it can spell any text."""

    def __init__(self, json_text: str, config: TokenizerConfig, *, origin: str = FILE_NAME) -> None:
        """Raises RunError, which names `origin`, if `json_text` is not a tokenizer that `train` made."""
        if len(json_text) > MAX_FILE_BYTES:
            raise RunError(f"{origin} is too large for a tokenizer.")
        self._json = json_text
        self._config = config
        try:
            self._engine = tokenizers.Tokenizer.from_str(json_text)
        except Exception as error:  # the binding raises bare Exception
            raise RunError(f"{origin} is damaged: {reason_of(error, 120)}.") from None
        self._empty = [self._engine.token_to_id(SPACE)]
        first = tuple(map(self._engine.id_to_token, range(len(SPECIAL_PIECES))))
        if first != SPECIAL_PIECES or self._empty == [None]:
            raise RunError(f"{origin} was not made by imdb-tx: it lacks one of its special pieces.")

    @classmethod
    def train(cls, texts: Iterable[str], config: TokenizerConfig) -> "Tokenizer":
        """A tokenizer whose merges come from `texts`.

        Break tags become spaces, case is folded, words and punctuation are split, words are spelt in bytes.
        """
        engine = tokenizers.Tokenizer(models.BPE())
        breaks = normalizers.Replace(Regex(f"(?i){BREAK_TAG}"), " ")
        engine.normalizer = normalizers.Sequence([breaks, normalizers.Lowercase()])
        # `\w+|[^\w\s]+`: the same word is the same piece after a space, a quote or a bracket.
        spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        engine.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), spell])
        engine.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=config.vocab_size, min_frequency=MIN_FREQUENCY, special_tokens=list(SPECIAL_PIECES),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        )  # fmt: skip
        engine.train_from_iterator(map(_encodable, texts), trainer)
        tree = json.loads(engine.to_str())
        # As added tokens they would be recognised inside reviews: "[PAD]" in a text would become padding.
        tree["added_tokens"] = []
        return cls(json.dumps(tree, ensure_ascii=False), config)

    @classmethod
    def load(cls, folder: Path, config: TokenizerConfig) -> "Tokenizer":
        """The tokenizer that `save` wrote into `folder`. Raises RunError."""
        path = folder / FILE_NAME
        try:
            return cls(path.read_text(encoding="utf-8"), config, origin=str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(
                f"{path} is missing or damaged ({getattr(error, 'strerror', 'not UTF-8')})."
            ) from None

    def save(self, folder: Path) -> None:
        """Writes `tokenizer.json` into `folder`."""
        write_whole(folder / FILE_NAME, self._json.encode())

    @property
    def vocab_size(self) -> int:
        """V. All ids are below it."""
        return int(self._engine.get_vocab_size())

    @property
    def max_length(self) -> int:
        """The largest number of ids of a text."""
        return self._config.max_length

    @property
    def content_hash(self) -> str:
        """Two tokenizers with the same hash give the same ids, cutting included."""
        cut = f"{self._config.max_length} {self._config.tail_length}\n"
        return hashlib.sha256((cut + self._json).encode()).hexdigest()

    def encode(self, texts: Sequence[str], *, whole: bool = False) -> list[Ids]:
        """Ids of each text: at least one, and at most `max_length` unless `whole`."""
        encodings = self._engine.encode_batch_fast([_encodable(text) for text in texts])
        all_ids = [np.array(encoding.ids or self._empty, dtype=np.uint32) for encoding in encodings]
        return all_ids if whole else [self.cut(ids) for ids in all_ids]

    def characters_per_piece(self, texts: Sequence[str]) -> float:
        """The mean length of a piece. Frequent words of training are one piece, and other words several."""
        num_pieces = sum(len(ids) for ids in self.encode(texts, whole=True))
        return sum(map(len, texts)) / max(num_pieces, 1)

    def knows_few_words(self, texts: Sequence[str], usual: float) -> bool:
        """Whether texts use words that are rare in the training reviews, such as those of another language.

        Then most words of four letters or more are split into several pieces. At least two different words
        must be split, or one that is spelt in bytes. `usual` is `characters_per_piece` of the training
        reviews. It is small after training on another language than the tokenizer's.
        """
        if self.characters_per_piece(texts) >= LEAST_SHARE * usual:
            return False
        pattern = re.compile(word_pattern())
        counts = Counter(word for text in texts for word in pattern.findall(text) if word[0].isalpha())
        num_pieces = {word: len(ids) for word, ids in zip(counts, self.encode(list(counts)), strict=True)}
        split = [word for word in counts if num_pieces[word] > 1]
        num_long, num_long_split = (
            sum(counts[word] for word in words if len(word) >= LONG_WORD) for words in (counts, split)
        )
        is_seen = len(split) > 1 or any(num_pieces[word] > len(word) for word in split)
        return is_seen and 2 * num_long_split > num_long

    def encode_with_spans(self, text: str) -> tuple[Ids, list[tuple[int, int]]]:
        """Ids of a text, cut, and for each id the (start, end) of its characters."""
        encoding = self._engine.encode(_encodable(text))
        ids = np.array(encoding.ids or self._empty, dtype=np.uint32)
        spans = np.array(encoding.offsets or [(0, 0)]).reshape(-1, 2)
        return self.cut(ids), [(int(start), int(end)) for start, end in self.cut(spans)]

    def cut(self, ids: NDArray[Number]) -> NDArray[Number]:
        """The first and last ids of a review that is too long: opinions are at both ends."""
        longest, tail = self._config.max_length, self._config.tail_length
        if len(ids) <= longest:
            return ids
        return np.concatenate([ids[: longest - tail], ids[len(ids) - tail :]])

    def spelling(self, ids: Sequence[int]) -> str:
        """The text of ids, without spaces between them and without bytes that are not UTF-8."""
        return self._engine.decode(ids, skip_special_tokens=False).replace("\ufffd", "")


def _encodable(text: str) -> str:
    """The text with lone surrogates, which UTF-8 cannot spell, replaced."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def tokenizer_of(opened: run.Run) -> Tokenizer:
    """The tokenizer of a run. Raises RunError if it is damaged, or not the one of training."""
    tokenizer = Tokenizer.load(opened.folder, opened.config.tokenizer)
    if tokenizer.content_hash != opened.info.tokenizer_hash:
        raise RunError(f"{opened.folder / FILE_NAME} is not the tokenizer that this run was trained with.")
    return tokenizer


def tokenizer_of_origin(path: Path, config: Config, *, as_teacher: bool = False) -> Tokenizer:
    """The tokenizer of a run to start from, or to learn from, with this config's length limit.

    Raises RunError if the run is a linear model, if its tokenizer is damaged, or if the config asks for
    another tokenizer or, to start, for an encoder of another size or kind. It is called before anything is
    encoded or predicted.
    """
    opened, _ = run.locate(path)
    if opened.info.kind == "linear":
        raise RunError(f"{path} is a linear model: it has no encoder.")
    free, problem, advice = {"tokenizer": LENGTH_KEYS}, "cannot teach here", ""
    if not as_teacher:
        repeats = config.model.num_layers % opened.config.model.num_layers == 0  # its blocks
        free["model"] = run.FREE_MODEL_KEYS | ({"num_layers"} if repeats else set())
        problem, advice = "does not fit", ', or start from random weights (--set train.init_from="")'
    for key, here, of_run in differences(config, opened.config, free):
        raise RunError(
            f"{path} {problem}: its {key} is {of_run!r}, here it is {here!r}. Use its value{advice}."
        )
    tokenizer_of(opened)  # raises RunError if it is damaged
    return Tokenizer.load(opened.folder, config.tokenizer)
