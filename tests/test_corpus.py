import json
import os
import random
import re
import shutil
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imdb_transformer.config import DataConfig
from imdb_transformer.data import corpus, holdout
from imdb_transformer.data.reviews import Reviews, Rows, joined
from imdb_transformer.errors import DataError, DataWarning
from imdb_transformer.store import run
from tests.conftest import write_jsonl


def config(source: Path | str, tmp_path: Path) -> DataConfig:
    return DataConfig(source=str(source), data_dir=str(tmp_path / "data"))


def test_train_and_validation_are_disjoint_balanced_and_stable_under_row_order(
    tmp_path: Path, source: Path
) -> None:
    first = corpus.ensure(config(source, tmp_path))
    shuffled = tmp_path / "shuffled"
    shuffled.mkdir()
    for path in source.iterdir():
        lines = path.read_text().splitlines(keepends=True)
        random.Random(1).shuffle(lines)
        (shuffled / path.name).write_text("".join(lines))
    second = corpus.ensure(config(shuffled, tmp_path))
    assert first.content_hash == second.content_hash
    assert corpus.read_split(first, "validation") == corpus.read_split(second, "validation")
    train, validation = (corpus.read_split(first, name) for name in ("train", "validation"))
    assert not set(train.texts) & set(validation.texts)
    assert (len(train.texts), len(validation.texts), sum(validation.labels)) == (180, 20, 10)


def test_copies_of_a_text_stay_on_one_side_of_the_validation_cut(tmp_path: Path) -> None:
    path = tmp_path / "copies.jsonl"
    write_jsonl(path, ["same"] * 30 + ["other"] * 30 + ["x", "y"] * 20, ["a", "b"] * 50)
    stored = corpus.ensure(config(path, tmp_path))
    texts = {name: set(corpus.read_split(stored, name).texts) for name in stored.manifest.splits}
    assert set(texts) == {"train", "validation", "test"}
    for label in (0, 1):
        rows = {name: corpus.read_split(stored, name) for name in texts}
        mine = [{t for t, other in zip(*r, strict=True) if other == label} for r in rows.values()]
        assert sum(map(len, mine)) == len(set().union(*mine))


def test_texts_that_differ_only_in_case_white_space_and_line_breaks_are_copies(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    blanks = (" ", "  ", "\n", "\u00a0", "<br />", " <BR>", "<br  /> ", "")
    texts = [
        f"{word}{blank}{i}"
        for i in range(40)
        for word, blank in zip(["text", "Text"] * 4, blanks, strict=True)
    ]
    write_jsonl(folder / "train.jsonl", texts, ["a"] * 160 + ["b"] * 160)
    write_jsonl(folder / "test.jsonl", ["held out", "text  0"], ["a", "b"])
    write_jsonl(folder / "unsupervised.jsonl", ["held  out", "free"], ["", ""])
    with pytest.warns(DataWarning, match="1 of 2 reviews of test are in train, too"):
        stored = corpus.ensure(config(folder, tmp_path))
    numbers = [
        {re.findall(r"\d+", text)[0] for text in corpus.read_split(stored, name).texts}
        for name in ("train", "validation")
    ]
    assert [len(each) for each in numbers] == [36, 4]
    assert corpus.read_split(stored, "unsupervised").texts == ["free"]
    train, test, _ = stored.manifest.statistics
    assert (train.num_duplicates, test.num_shared) == (280, {"train": 1, "unsupervised": 1})


def test_texts_that_look_alike_are_copies(tmp_path: Path) -> None:
    path = tmp_path / "alike.jsonl"
    forms = (
        "caf\u00e9 {}",
        "cafe\u0301 {}",
        "caf\u00e9\u200b {}",
        "caf\u00e9 {}\ufeff",
        "ca\u00adf\u00e9 \u0085{}",
    )
    write_jsonl(path, [form.format(i) for i in range(40) for form in forms], ["a"] * 100 + ["b"] * 100)
    stored = corpus.ensure(config(path, tmp_path))
    numbers = [
        {re.findall(r"\d+", text)[0] for text in corpus.read_split(stored, name).texts}
        for name in stored.manifest.splits
    ]
    assert sorted(map(len, numbers)) == [4, 4, 32]


def test_unsupervised_leaves_out_held_out_texts(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    write_jsonl(folder / "train.jsonl", [f"t{i}" for i in range(40)], ["a", "b"] * 20)
    write_jsonl(folder / "test.jsonl", ["held out", "too"], ["a", "b"])
    write_jsonl(folder / "unsupervised.jsonl", ["held out", "free"], ["", ""])
    stored = corpus.ensure(config(folder, tmp_path))
    assert corpus.read_split(stored, "unsupervised").texts == ["free"]


def test_a_second_call_uses_the_stored_corpus_unless_the_source_has_changed(
    tmp_path: Path, source: Path
) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    first = corpus.ensure(config(folder, tmp_path))
    assert first.is_new
    again = first._replace(is_new=False)
    assert corpus.ensure(config(folder, tmp_path)) == again
    with (folder / "train.jsonl").open("a") as file:
        file.write('{"text": "one more", "label": "pos"}\n')
    assert corpus.ensure(config(folder, tmp_path), expected_hash=first.content_hash) == again  # as a run does
    changed = corpus.ensure(config(folder, tmp_path))
    assert changed.is_new
    assert changed.content_hash != first.content_hash


def test_a_change_that_keeps_size_and_time_of_modification_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "pile.jsonl"
    write_jsonl(path, [f"t{i}" for i in range(100)], ["a", "b"] * 50)
    before = path.stat()
    assert corpus.ensure(config(path, tmp_path)).manifest.classes == ("a", "b")
    write_jsonl(path, [f"t{i}" for i in range(100)], ["a", "c"] * 50)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert corpus.ensure(config(path, tmp_path)).manifest.classes == ("a", "c")


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
    first = corpus.ensure(config(path, tmp_path))
    path.unlink()
    assert corpus.ensure(config(path, tmp_path)) == first._replace(is_new=False)


def test_a_run_finds_its_reviews_if_their_source_is_not_found(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = run.open_run(trained)
    elsewhere = config(Path("not-here.jsonl"), tmp_path).model_copy(
        update={"data_dir": opened.config.data.data_dir}
    )
    assert (
        corpus.ensure(elsewhere, expected_hash=opened.info.corpus_hash).content_hash
        == opened.info.corpus_hash
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=f"no file or folder {tmp_path}/not-here.jsonl"):
        corpus.ensure(elsewhere)


@pytest.mark.parametrize(
    "names", [("reviews_train.jsonl", "reviews_test.jsonl"), ("part-0.jsonl", "part-1.jsonl")]
)
@pytest.mark.parametrize("store", ["", "data"])
def test_what_is_stored_below_a_source_is_not_read_with_it(
    tmp_path: Path, names: tuple[str, str], store: str
) -> None:
    """Nor are the runs: their JSON files look like tables."""
    for i, name in enumerate(names):
        write_jsonl(tmp_path / name, [f"t{j} of {i}" for j in range(50)], ["a", "b"] * 25)
    (tmp_path / "runs" / "r").mkdir(parents=True)
    (tmp_path / "runs" / "r" / run.INFO).write_text("{}")
    inside = DataConfig(source=str(tmp_path), data_dir=str(tmp_path / store))
    first = corpus.ensure(inside)
    assert first.manifest.classes == ("a", "b")
    (tmp_path / "runs" / "r" / "more.json").write_text("{}")
    assert not corpus.ensure(inside).is_new
    write_jsonl(tmp_path / names[0], [f"t{j} of 0" for j in range(60)], ["a", "b"] * 30)
    assert sum(each.num_rows for each in corpus.ensure(inside).manifest.statistics) == 110


def test_a_store_of_another_name_in_the_source_is_not_read_with_it(tmp_path: Path) -> None:
    for name in ("reviews_train.jsonl", "reviews_test.jsonl"):
        write_jsonl(tmp_path / name, [f"t{j} of {name}" for j in range(50)], ["a", "b"] * 25)
    source = DataConfig(source=str(tmp_path), data_dir=str(tmp_path / "store"))
    first = corpus.ensure(source)
    second = corpus.ensure(source.model_copy(update={"data_dir": str(tmp_path / "other")}))
    assert second.content_hash == first.content_hash


def test_any_file_that_a_card_may_name_is_read_again_when_it_changes(tmp_path: Path) -> None:
    block = "  - split: train\n    path: rows.csv.zip\n"
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n- config_name: x\n  data_files:\n{block}---\n")
    source = DataConfig(source=str(tmp_path), data_dir=str(tmp_path / "store"))
    for number in (50, 60):
        rows = "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(number))
        with zipfile.ZipFile(tmp_path / "rows.csv.zip", "w") as file:
            file.writestr("rows.csv", f"text,label\n{rows}")
        (statistics,) = corpus.ensure(source).manifest.statistics
        assert statistics.num_rows == number


def test_a_log_that_grows_beside_the_tables_changes_nothing(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", [f"t{j}" for j in range(50)], ["a", "b"] * 25)
    source = DataConfig(source=str(tmp_path), data_dir=str(tmp_path / "store"))
    assert corpus.ensure(source).is_new
    (tmp_path / "nohup.out").write_text("a warning")
    assert not corpus.ensure(source).is_new


def test_a_run_finds_its_reviews_if_their_source_has_another_path_now(tmp_path: Path) -> None:
    link = tmp_path / "latest.jsonl"
    for i in range(2):
        write_jsonl(tmp_path / f"v{i}.jsonl", [f"t{j} of {i}" for j in range(50)], ["a", "b"] * 25)
    link.symlink_to(tmp_path / "v0.jsonl")
    first = corpus.ensure(config(link, tmp_path))
    link.unlink()
    link.symlink_to(tmp_path / "v1.jsonl")
    second = corpus.ensure(config(link, tmp_path))
    assert second.content_hash != first.content_hash
    assert corpus.ensure(config(link, tmp_path), expected_hash=first.content_hash) == first._replace(
        is_new=False
    )
    learnt = [
        text.replace(" ", "")
        for name in ("train", "validation")
        for text in corpus.read_split(first, name).texts
    ]
    assert corpus.learnt_texts(config(link, tmp_path), first.content_hash) == {*learnt}


def test_download_brings_back_a_split_that_was_deleted_and_training_does_not_need_it(
    tmp_path: Path, source: Path
) -> None:
    stored = corpus.ensure(config(source, tmp_path))
    corpus.split_path(stored, "test").unlink()
    assert corpus.ensure(config(source, tmp_path)) == stored._replace(is_new=False)
    assert corpus.ensure(config(source, tmp_path), needs=["test"]) == stored
    assert corpus.split_path(stored, "test").exists()


@pytest.mark.parametrize("name", ["train", "validation", "unsupervised"])
def test_a_split_of_training_that_was_deleted_is_imported_again(
    tmp_path: Path, source: Path, name: str
) -> None:
    stored = corpus.ensure(config(source, tmp_path))
    corpus.split_path(stored, name).unlink()
    assert corpus.ensure(config(source, tmp_path)) == stored
    assert corpus.split_path(stored, name).exists()


@pytest.mark.parametrize("name", ["train.parquet", "test.parquet", "manifest.json"])
def test_damaged_corpus_is_refused_by_file_name(tmp_path: Path, source: Path, name: str) -> None:
    stored = corpus.ensure(config(source, tmp_path))
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


def test_a_mistyped_source_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a source"):
        corpus.ensure(DataConfig(source=str(tmp_path / "no.csv"), data_dir=str(tmp_path / "data")))
    assert not list(tmp_path.iterdir())


def test_a_source_named_like_imdb_with_other_reviews_is_refused(tmp_path: Path) -> None:
    tree = tmp_path / "aclImdb_v1."
    for name in ("train/pos", "train/neg", "test/pos", "test/neg"):
        (tree / name).mkdir(parents=True)
        (tree / name / "0_1.txt").write_text(name)
    with pytest.raises(DataError, match=r"wrong checksum of train, test, unsupervised"):
        corpus.ensure(config(tree, tmp_path))


def test_content_hash_depends_on_texts_and_labels_and_not_on_their_order() -> None:
    rows = Rows(["a", "b"], [0, 1])
    assert holdout.content_hash(rows) == holdout.content_hash(Rows(["b", "a"], [1, 0]))
    assert holdout.content_hash(rows) != holdout.content_hash(Rows(["a", "b"], [1, 0]))


def test_imdb_validation_list_names_2500_reviews_less_the_copies() -> None:
    hashes = holdout.imdb_validation_hashes()
    assert len(hashes) == 2498
    assert all(len(item) == 16 and int(item, 16) >= 0 for item in hashes)


def test_the_only_text_of_a_class_is_learnt_and_a_warning_names_the_class(tmp_path: Path) -> None:
    path = tmp_path / "rare.jsonl"
    write_jsonl(path, [f"t{i}" for i in range(106)], ["a"] * 100 + ["b"] * 3 + ["c"] * 2 + ["d"])
    with pytest.warns(DataWarning) as warned:
        stored = corpus.ensure(config(path, tmp_path))
    messages = [str(each.message) for each in warned]
    reason = "too few of its texts differ"
    assert messages == [
        f"test has no text of 1 of 4 classes ('d'): {reason}",
        f"validation has no text of 2 of 4 classes ('c', 'd'): {reason}",
    ]
    counts = {name: Counter(corpus.read_split(stored, name).labels) for name in stored.manifest.splits}
    assert counts["train"] == {0: 81, 1: 1, 2: 1, 3: 1}
    assert counts["validation"] == {0: 9, 1: 1}
    assert counts["test"] == {0: 10, 1: 1, 2: 1}


def test_a_split_of_the_source_that_lacks_a_class_gives_a_warning(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    write_jsonl(folder / "train.jsonl", [f"t{i}" for i in range(40)], ["neg", "pos"] * 20)
    for name in ("validation", "test"):
        write_jsonl(folder / f"{name}.jsonl", [f"{name}{i}" for i in range(10)], ["pos"] * 10)
    with pytest.warns(DataWarning) as warned:
        corpus.ensure(config(folder, tmp_path))
    assert [str(each.message) for each in warned] == [
        f"{name} has no text of 1 of 2 classes ('neg'): scores on it say little"
        for name in ("test", "validation")
    ]


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3)), min_size=1), st.sampled_from([0.1, 0.3, 0.5])
)
def test_each_class_keeps_a_text_to_learn_and_one_of_several_is_held_out(
    pairs: list[tuple[int, int]], fraction: float
) -> None:
    rows = Rows([f"t{text}" for text, _ in pairs], [label for _, label in pairs])
    rest, share = holdout._take_share(holdout._sorted(rows), fraction)
    assert not set(rest.texts) & set(share.texts)
    assert sorted(zip(*rows, strict=True)) == sorted(zip(*joined([rest, share]), strict=True))
    assert set(rest.labels) == set(rows.labels)
    num_labels = Counter(text for text, _ in set(pairs))
    for label in set(rows.labels):
        texts = {text for text, other in pairs if other == label}
        if len(texts) > 1 and all(num_labels[text] == 1 for text in texts):
            held_out = {text for text, other in zip(*share, strict=True) if other == label}
            assert 1 <= len(held_out) <= max(1, round(fraction * len(texts)))


def test_a_class_whose_only_text_has_another_label_too_is_learnt(tmp_path: Path) -> None:
    path = tmp_path / "both.jsonl"
    texts = [f"t{i}" for i in range(40)]
    write_jsonl(path, texts + texts[:9], ["a"] * 40 + list("bcdefghij"))
    with pytest.warns(DataWarning, match=r"9 of 10 classes \('b', 'c', .*\): too few of its texts differ"):
        stored = corpus.ensure(config(path, tmp_path))
    assert set(corpus.read_split(stored, "train").labels) == set(range(10))


def test_one_text_with_most_of_the_rows_leaves_the_others_to_training(tmp_path: Path) -> None:
    path = tmp_path / "great.jsonl"
    texts = ["great!"] * 800 + [f"good {i}" for i in range(200)] + [f"dull {i}" for i in range(1000)]
    write_jsonl(path, texts, ["pos"] * 1000 + ["neg"] * 1000)
    stored = corpus.ensure(config(path, tmp_path))
    rows = {name: corpus.read_split(stored, name) for name in stored.manifest.splits}
    sizes = {name: Counter(split.labels) for name, split in rows.items()}
    assert sizes == {"train": {0: 810, 1: 962}, "validation": {0: 90, 1: 18}, "test": {0: 100, 1: 20}}
    assert "great!" in rows["train"].texts


def test_texts_with_many_copies_do_not_make_a_held_out_split_large(tmp_path: Path) -> None:
    path = tmp_path / "repeated.jsonl"
    texts = [text for i in range(10) for text in (*[f"copied {i}"] * 10, *[f"t{i} {j}" for j in range(10)])]
    write_jsonl(path, texts, ["a"] * 100 + ["b"] * 100)
    stored = corpus.ensure(config(path, tmp_path))
    for name in ("validation", "test"):
        for count in Counter(corpus.read_split(stored, name).labels).values():
            assert 5 <= count <= 15


def test_a_held_out_split_that_is_too_large_because_of_copies_gives_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "three.jsonl"
    texts = ["one", "two", "three"] * 20 + ["four", "five", "six"] * 20
    write_jsonl(path, texts, ["a"] * 60 + ["b"] * 60)
    with pytest.warns(
        DataWarning, match="test has 40 of 120 reviews, because copies of a text stay together"
    ):
        corpus.ensure(config(path, tmp_path))


def test_a_run_keeps_its_reviews_when_its_file_changes_and_is_imported_again(tmp_path: Path) -> None:
    path = tmp_path / "pile.jsonl"
    write_jsonl(path, [f"t{i}" for i in range(100)], ["a", "b"] * 50)
    first = corpus.ensure(config(path, tmp_path))
    write_jsonl(path, [f"t{i}" for i in range(102)], ["a", "b"] * 51)
    second = corpus.ensure(config(path, tmp_path))
    assert second.is_new
    again = corpus.ensure(config(path, tmp_path), expected_hash=first.content_hash)
    assert again.content_hash == first.content_hash
    assert corpus.read_split(again, "train") != corpus.read_split(second, "train")
    assert corpus.learnt_texts(config(path, tmp_path), first.content_hash)
    assert corpus.find_stored(config(path, tmp_path), first.content_hash) == again
    assert corpus.find_stored(config(path, tmp_path), "unknown") is None
    assert corpus.ensure(config(path, tmp_path)).content_hash == second.content_hash
    os.utime(path, (0, 0))  # imported once more, with the same reviews
    assert corpus.ensure(config(path, tmp_path)).is_new
    assert len(list((tmp_path / "data").glob("pile-*"))) == 2


def test_a_change_behind_a_link_in_the_source_is_noticed(tmp_path: Path) -> None:
    folder, target = tmp_path / "own", tmp_path / "elsewhere.jsonl"
    folder.mkdir()
    write_jsonl(target, [f"t{i}" for i in range(100)], ["a", "b"] * 50)
    (folder / "train.jsonl").symlink_to(target)
    (folder / "loop").symlink_to(folder)
    (folder / "broken").symlink_to(tmp_path / "nothing")
    first = corpus.ensure(config(folder, tmp_path))
    assert not corpus.ensure(config(folder, tmp_path)).is_new
    write_jsonl(target, [f"t{i}" for i in range(102)], ["a", "b"] * 51)
    assert corpus.ensure(config(folder, tmp_path)).content_hash != first.content_hash


def test_a_source_that_is_also_the_data_folder_is_imported_once(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "more").mkdir(parents=True)
    write_jsonl(folder / "train.jsonl", [f"t{i}" for i in range(100)], ["a", "b"] * 50)
    assert corpus.ensure(config(folder, tmp_path)).is_new
    for name in ("encoded", "tokenizers"):
        (folder / name).mkdir()
    assert not corpus.ensure(config(folder, tmp_path)).is_new
    (folder / "more" / "notes.txt").touch()
    assert corpus.ensure(config(folder, tmp_path)).is_new


def test_a_run_keeps_its_reviews_when_only_the_classes_are_renamed(tmp_path: Path) -> None:
    path = tmp_path / "pile.jsonl"
    write_jsonl(path, [f"t{i}" for i in range(100)], ["a", "b"] * 50)
    first = corpus.ensure(config(path, tmp_path))
    write_jsonl(path, [f"t{i}" for i in range(100)], ["c", "d"] * 50)
    assert corpus.ensure(config(path, tmp_path)).manifest.classes == ("c", "d")
    assert corpus.ensure(config(path, tmp_path), expected_hash=first.content_hash).manifest.classes == (
        "a",
        "b",
    )


def test_held_out_reviews_that_are_in_train_too_give_a_warning(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", [f"t{i}" for i in range(100)], ["a", "b"] * 50)
    write_jsonl(tmp_path / "validation.jsonl", [f"t{i}" for i in range(98, 118)], ["a", "b"] * 10)
    with pytest.warns(DataWarning, match="2 of 20 reviews of validation are in train, too"):
        corpus.ensure(config(tmp_path, tmp_path))


def test_each_held_out_copy_of_a_text_of_train_counts_in_the_warning(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", [f"t{i}" for i in range(200)], ["a", "b"] * 100)
    texts = ["t0", "t1"] * 40 + [f"new {i}" for i in range(20)]
    write_jsonl(tmp_path / "test.jsonl", texts, ["a", "b"] * 50)
    with pytest.warns(DataWarning, match="80 of 100 reviews of test are in train, too"):
        stored = corpus.ensure(config(tmp_path, tmp_path))
    train, test = stored.manifest.statistics
    assert (train.num_shared, test.num_shared) == ({"test": 2}, {"train": 80})


def test_a_text_with_both_labels_stays_on_one_side(tmp_path: Path) -> None:
    path = tmp_path / "both.jsonl"
    write_jsonl(path, [f"t{i // 2}" for i in range(200)], ["a", "b"] * 100)
    stored = corpus.ensure(config(path, tmp_path))
    sets = [set(corpus.read_split(stored, name).texts) for name in stored.manifest.splits]
    assert sum(map(len, sets)) == len(set().union(*sets))


@pytest.fixture
def imdb(monkeypatch: pytest.MonkeyPatch, source: Path) -> Path:
    """A source that stands for IMDB: its 200 train reviews have the known hash, and 20 of them are listed."""
    reviews = corpus.sources.read(DataConfig(source=str(source)))
    hashes = {name: holdout.content_hash(rows) for name, rows in reviews.splits.items()}
    monkeypatch.setattr(holdout, "IMDB_HASHES", hashes)
    listed = {holdout.text_hash(text)[:16] for text in reviews.splits["train"].texts[:20]}
    monkeypatch.setattr(holdout, "imdb_validation_hashes", lambda: listed)
    return source


def texts_of(path: Path) -> set[str]:
    return {json.loads(line)["text"] for line in path.read_text().splitlines()}


def stored_texts(stored: corpus.Corpus) -> dict[str, set[str]]:
    return {name: set(corpus.read_split(stored, name).texts) for name in stored.manifest.splits}


def test_imdbs_listed_reviews_are_validation_and_the_others_are_train(tmp_path: Path, imdb: Path) -> None:
    unlabelled = tmp_path / "imdb"
    shutil.copytree(imdb, unlabelled)
    lines = (imdb / "train.jsonl").read_text().splitlines(keepends=True)
    with (unlabelled / "unsupervised.jsonl").open("a") as file:
        file.writelines(lines[:20])  # pretraining must not see them
    # Whatever share is asked for.
    wide = config(unlabelled, tmp_path).model_copy(update={"held_out_fraction": 0.5})
    stored = corpus.ensure(wide)
    texts = stored_texts(stored)
    listed = {json.loads(line)["text"] for line in lines[:20]}
    assert texts["validation"] == listed
    assert texts["train"] == texts_of(imdb / "train.jsonl") - listed
    assert texts["unsupervised"] == texts_of(imdb / "unsupervised.jsonl") - texts["test"]


def part_of(imdb: Path, folder: Path, num_listed: int, num_others: int) -> Path:
    """IMDB's test and unlabelled reviews, with some of those of train."""
    shutil.copytree(imdb, folder)
    lines = (imdb / "train.jsonl").read_text().splitlines(keepends=True)
    (folder / "train.jsonl").write_text("".join(lines[:num_listed] + lines[20 : 20 + num_others]))
    return folder


@pytest.mark.parametrize(("num_listed", "num_others", "by_list"), [
    (10, 90, True), (6, 94, True), (20, 20, True), (2, 98, False), (0, 100, False), (20, 6, False)
])  # fmt: skip
def test_a_part_of_imdb_holds_out_its_listed_reviews_if_they_are_a_fair_share(
    tmp_path: Path, imdb: Path, num_listed: int, num_others: int, by_list: bool
) -> None:
    folder = part_of(imdb, tmp_path / "part", num_listed, num_others)
    stored = corpus.ensure(config(folder, tmp_path))
    assert not stored.manifest.is_imdb
    texts = stored_texts(stored)
    listed = {
        json.loads(line)["text"] for line in (folder / "train.jsonl").read_text().splitlines()[:num_listed]
    }
    assert (texts["validation"] == listed) == by_list
    assert texts["train"] | texts["validation"] == texts_of(folder / "train.jsonl")
    assert not texts["train"] & texts["validation"]
    if not by_list:
        assert len(texts["validation"]) == pytest.approx(0.1 * (num_listed + num_others), abs=1)


def test_a_sources_own_validation_split_is_used_even_with_imdb(tmp_path: Path, imdb: Path) -> None:
    folder = Path(shutil.copytree(imdb, tmp_path / "imdb"))
    write_jsonl(folder / "validation.jsonl", ["a review of mine", "another"], ["neg", "pos"])
    stored = corpus.ensure(config(folder, tmp_path))
    texts = stored_texts(stored)
    assert texts["validation"] == {"a review of mine", "another"}
    assert not stored.manifest.is_imdb
    assert texts["train"] == texts_of(imdb / "train.jsonl")


def test_imdbs_train_split_is_recognised_beside_another_test_split(tmp_path: Path, imdb: Path) -> None:
    folder = Path(shutil.copytree(imdb, tmp_path / "imdb"))
    write_jsonl(folder / "test.jsonl", ["a review of mine", "another"], ["neg", "pos"])
    stored = corpus.ensure(config(folder, tmp_path))
    assert stored_texts(stored)["test"] == {"a review of mine", "another"}
    assert len(stored_texts(stored)["validation"]) == 20
    assert not stored.manifest.is_imdb


@pytest.mark.parametrize("split", ["train", "test", "unsupervised"])
def test_a_source_named_like_imdb_is_refused_if_one_split_differs(
    tmp_path: Path, imdb: Path, split: str
) -> None:
    folder = Path(shutil.copytree(imdb, tmp_path / "aclImdb_v1."))
    assert corpus.ensure(config(folder, tmp_path)).manifest.is_imdb
    lines = (folder / f"{split}.jsonl").read_text().splitlines(keepends=True)
    (folder / f"{split}.jsonl").write_text("".join(lines[1:]))
    with pytest.raises(DataError, match=rf"wrong checksum of {split}\. .*your own file, rename it"):
        corpus.ensure(config(folder, tmp_path))


def test_reviews_from_the_hub_are_refused_if_one_split_differs(
    tmp_path: Path, imdb: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reviews = corpus.sources.read(DataConfig(source=str(imdb)))
    monkeypatch.setattr(corpus.sources, "read", lambda _: reviews)
    assert corpus.ensure(config("hub", tmp_path / "whole")).manifest.is_imdb
    monkeypatch.setitem(holdout.IMDB_HASHES, "test", "0" * 64)
    with pytest.raises(DataError, match=r"hub is not IMDB: wrong checksum of test\. "):
        corpus.ensure(config("hub", tmp_path / "other"))


def test_relative_and_absolute_paths_use_the_same_stored_corpus(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = corpus.ensure(config(source, tmp_path))
    monkeypatch.chdir(source.parent)
    assert corpus.ensure(config(source.name, tmp_path)) == first._replace(is_new=False)


def test_the_folder_of_a_source_with_a_long_name_has_a_short_one(tmp_path: Path) -> None:
    path = tmp_path / f"{'x' * 244}.jsonl"
    write_jsonl(path, [f"t{i}" for i in range(40)], ["a", "b"] * 20)
    stored = corpus.ensure(config(path, tmp_path))
    assert stored.folder.name.startswith("x" * 60 + "-")
    assert corpus.corpus_folder(config(path.with_name("x" * 245), tmp_path)) != stored.folder


def test_the_stored_corpus_depends_on_the_held_out_fraction() -> None:
    default, wider = DataConfig(source="demo"), DataConfig(source="demo", held_out_fraction=0.3)
    assert corpus.corpus_folder(default) != corpus.corpus_folder(wider)


def test_reviews_without_words_are_counted_in_a_warning(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "r.jsonl", [f"review {i}" for i in range(40)] + ["", " "], ["a", "b"] * 21)
    with pytest.warns(DataWarning, match="without any words: 2"):
        corpus.ensure(DataConfig(source=str(tmp_path / "r.jsonl"), data_dir=str(tmp_path / "data")))
