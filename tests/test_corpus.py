import random
import shutil
from pathlib import Path

import pytest

from imdb_transformer.config import DataConfig
from imdb_transformer.data import corpus, holdout
from imdb_transformer.data.reviews import Reviews, Rows
from imdb_transformer.errors import DataError
from tests.conftest import write_jsonl


def config(source: Path | str, tmp_path: Path) -> DataConfig:
    return DataConfig(source=str(source), data_dir=str(tmp_path / "data"))


def test_train_and_validation_are_disjoint_balanced_and_stable_under_row_order(
    tmp_path: Path, source: Path
) -> None:
    first, _ = corpus.ensure(config(source, tmp_path))
    shuffled = tmp_path / "shuffled"
    shuffled.mkdir()
    for path in source.iterdir():
        lines = path.read_text().splitlines(keepends=True)
        random.Random(1).shuffle(lines)
        (shuffled / path.name).write_text("".join(lines))
    second, _ = corpus.ensure(config(shuffled, tmp_path))
    assert first.content_hash == second.content_hash
    assert corpus.read_split(first, "validation") == corpus.read_split(second, "validation")
    train, validation = (corpus.read_split(first, name) for name in ("train", "validation"))
    assert not set(train.texts) & set(validation.texts)
    assert (len(train.texts), len(validation.texts), sum(validation.labels)) == (180, 20, 10)


def test_copies_of_a_text_stay_on_one_side_of_the_validation_cut(tmp_path: Path) -> None:
    path = tmp_path / "copies.jsonl"
    write_jsonl(path, ["same"] * 30 + ["other"] * 30 + ["x", "y"] * 20, ["a", "b"] * 50)
    stored, _ = corpus.ensure(config(path, tmp_path))
    texts = {name: set(corpus.read_split(stored, name).texts) for name in stored.manifest.splits}
    assert set(texts) == {"train", "validation", "test"}
    for label in (0, 1):
        rows = {name: corpus.read_split(stored, name) for name in texts}
        mine = [{t for t, own in zip(*r, strict=True) if own == label} for r in rows.values()]
        assert sum(map(len, mine)) == len(set().union(*mine))


def test_unlabelled_texts_that_are_held_out_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    write_jsonl(folder / "train.jsonl", [f"t{i}" for i in range(40)], ["a", "b"] * 20)
    write_jsonl(folder / "test.jsonl", ["held out", "too"], ["a", "b"])
    write_jsonl(folder / "unsupervised.jsonl", ["held out", "free"], ["", ""])
    stored, _ = corpus.ensure(config(folder, tmp_path))
    assert corpus.read_split(stored, "unsupervised").texts == ["free"]


def test_second_call_finds_it_there_and_a_changed_source_is_imported_again(
    tmp_path: Path, source: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    for path in source.iterdir():
        (own / path.name).write_bytes(path.read_bytes())
    first, was_there = corpus.ensure(config(own, tmp_path))
    assert not was_there
    assert corpus.ensure(config(own, tmp_path)) == (first, True)
    with (own / "train.jsonl").open("a") as file:
        file.write('{"text": "one more", "label": "pos"}\n')
    assert corpus.ensure(config(own, tmp_path), known=first.content_hash) == (first, True)  # a run's own
    changed, was_there = corpus.ensure(config(own, tmp_path))
    assert not was_there
    assert changed.content_hash != first.content_hash


def test_a_source_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "grows.jsonl"
    write_jsonl(path, [f"t{i}" for i in range(40)], ["a", "b"] * 20)
    read = corpus.sources.read

    def slow(data: DataConfig) -> Reviews:
        reviews = read(data)
        with path.open("a") as file:
            file.write('{"text": "one more", "label": "a"}\n')
        return reviews

    monkeypatch.setattr(corpus.sources, "read", slow)
    with pytest.raises(DataError, match="changed while it was read"):
        corpus.ensure(config(path, tmp_path))
    assert not list((tmp_path / "data").glob("*"))


def test_stored_corpus_is_used_when_the_source_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "gone.jsonl"
    write_jsonl(path, [f"t{i}" for i in range(40)], ["a", "b"] * 20)
    first, _ = corpus.ensure(config(path, tmp_path))
    path.unlink()
    assert corpus.ensure(config(path, tmp_path)) == (first, True)


def test_download_brings_back_a_split_that_was_deleted_and_training_does_not_need_it(
    tmp_path: Path, source: Path
) -> None:
    stored, _ = corpus.ensure(config(source, tmp_path))
    corpus.split_path(stored, "test").unlink()
    assert corpus.ensure(config(source, tmp_path)) == (stored, True)
    assert corpus.ensure(config(source, tmp_path), needs=["test"]) == (stored, False)
    assert corpus.split_path(stored, "test").exists()


@pytest.mark.parametrize("name", ["train.parquet", "test.parquet", "manifest.json"])
def test_damaged_corpus_is_refused_by_file_name(tmp_path: Path, source: Path, name: str) -> None:
    stored, _ = corpus.ensure(config(source, tmp_path))
    path = stored.folder / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(DataError, match=name):
        corpus.ensure(config(source, tmp_path))


def test_failed_import_leaves_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("text,label\na,pos\n")
    with pytest.raises(DataError):
        corpus.ensure(config(path, tmp_path))
    assert not list((tmp_path / "data").glob("*"))


def test_what_claims_to_be_imdb_and_is_not_is_refused(tmp_path: Path) -> None:
    tree = tmp_path / "aclImdb_v1."
    for name in ("train/pos", "train/neg", "test/pos", "test/neg"):
        (tree / name).mkdir(parents=True)
        (tree / name / "0_1.txt").write_text(name)
    with pytest.raises(DataError, match=r"wrong checksum of train, test, unsupervised"):
        corpus.ensure(config(tree, tmp_path))


def test_content_hash_depends_on_texts_and_labels_and_not_on_their_order() -> None:
    rows = Rows(["a", "b"], [0, 1])
    assert corpus.content_hash(rows) == corpus.content_hash(Rows(["b", "a"], [1, 0]))
    assert corpus.content_hash(rows) != corpus.content_hash(Rows(["a", "b"], [1, 0]))


def test_imdb_validation_list_names_2500_reviews_less_the_copies() -> None:
    hashes = holdout.imdb_validation_hashes()
    assert len(hashes) == 2498
    assert all(len(item) == 16 and int(item, 16) >= 0 for item in hashes)


def test_a_class_too_rare_to_hold_some_out_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rare.jsonl"
    write_jsonl(path, [f"t{i}" for i in range(102)], ["a"] * 100 + ["b"] * 2)
    with pytest.raises(DataError, match="class 'b' has too few"):
        corpus.ensure(config(path, tmp_path))


def test_a_text_with_both_labels_stays_on_one_side(tmp_path: Path) -> None:
    path = tmp_path / "both.jsonl"
    write_jsonl(path, [f"t{i // 2}" for i in range(200)], ["a", "b"] * 100)
    stored, _ = corpus.ensure(config(path, tmp_path))
    sets = [set(corpus.read_split(stored, name).texts) for name in stored.manifest.splits]
    assert sum(map(len, sets)) == len(set().union(*sets))


def test_one_damaged_split_of_imdb_is_not_taken_for_imdb_nor_for_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Path
) -> None:
    stored, _ = corpus.ensure(config(source, tmp_path))
    parts = [corpus.read_split(stored, name) for name in ("train", "validation")]
    train = Rows(parts[0].texts + parts[1].texts, parts[0].labels + parts[1].labels)
    hashes = {"train": corpus.content_hash(train), "test": "0" * 64, "unsupervised": "0" * 64}
    monkeypatch.setattr(corpus, "IMDB_HASHES", hashes)
    again = config(source, tmp_path / "again")
    with pytest.raises(DataError, match=r"wrong checksum of test, unsupervised.*eval --source"):
        corpus.ensure(again)


def test_imdb_with_a_validation_split_of_ones_own_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Path
) -> None:
    own = Path(shutil.copytree(source, tmp_path / "own"))
    shutil.copy(own / "test.jsonl", own / "validation.jsonl")
    stored, _ = corpus.ensure(config(own, tmp_path))
    hashes = {name: stored.manifest.splits[name].content_hash for name in corpus.IMDB_HASHES}
    monkeypatch.setattr(corpus, "IMDB_HASHES", hashes)
    with pytest.raises(DataError, match="comes with the package"):
        corpus.ensure(config(own, tmp_path / "again"))


def test_how_a_path_is_spelt_does_not_matter(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = corpus.ensure(config(source, tmp_path))
    monkeypatch.chdir(source.parent)
    assert corpus.ensure(config(source.name, tmp_path)) == (first, True)


def test_settings_that_decide_the_cut_are_part_of_the_key() -> None:
    default, wider = DataConfig(source="demo"), DataConfig(source="demo", validation_fraction=0.3)
    assert corpus.corpus_folder(default) != corpus.corpus_folder(wider)
