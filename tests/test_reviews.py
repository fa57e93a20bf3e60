"""Single reviews, as text and as a page: what is shown of a prediction, an explanation and attention."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from imdb_transformer.inference.explanation import Attention, Explanation, WordShare, words_of
from imdb_transformer.inference.predictor import Prediction
from imdb_transformer.report import reviews


def explanation(text: str, shares: list[float], toward: str = "pos") -> Explanation:
    starts = words_of(text, [])[0]
    words = [WordShare(word, start, share) for (word, start), share in zip(starts, shares, strict=True)]
    return Explanation(toward, "neg", sum(shares) + 0.5, 0.5, words)


def attention(num_words: int, layer: int = 1, head: int = 1) -> Attention:
    weights = np.full((num_words, num_words), 1 / num_words)
    return Attention(layer, head, [f"w{i}" for i in range(1, num_words + 1)], weights)


def test_a_page_shows_the_sums_of_shares_for_and_against_the_class() -> None:
    text = "good fun but long"
    why = explanation(text, [10.25, 6.5, -1.0, -0.25])
    page = re.sub(r"<[^>]*>", "", reviews.as_html(Prediction("pos", 0.9, text, {}), why, None, []))
    assert "for pos +16.8, against +1.2" in page


def test_words_on_a_page_keep_the_line_breaks_between_them() -> None:
    text = "good <br />fun"
    marked = reviews.marked_words(explanation(text, [1.0, -1.0]), text)
    assert re.sub(r"<[^>]*>", "", marked) == "good \nfun"
    assert marked.index('class="for"') < marked.index('class="against"')
    assert 'title="-1.000">fun<' in marked


def test_a_long_review_is_marked_in_time_linear_in_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest share takes a look at all words."""
    calls = []
    monkeypatch.setattr(Explanation, "largest", property(lambda _: calls.append(1) or 1.0))
    text = "good fun " * 50
    why = explanation(text, [0.5] * 100)
    assert reviews.marked_words(why, text).count("<mark") == 100
    assert len(reviews.coloured(why).split()) == 100
    assert len(calls) == 2


def test_a_label_with_a_line_break_stays_on_its_line() -> None:
    why = explanation("good fun", [1.0, 1.0], toward="po\ns")
    lines = reviews.as_text(Prediction("po\ns", 0.9, "good fun", {}), why, None).split("\n")
    assert [line.strip().partition(":")[0] for line in lines[:3]] == ["po s\t0.9000", "for po s", "for neg"]


def test_a_long_review_is_cut_between_words() -> None:
    line = reviews.as_text(Prediction("pos", 0.9, "word " * 50, {}))
    assert line.endswith(" word…")
    assert len(line) <= len("pos\t0.9000\t") + reviews.TEXT_WIDTH


def test_column_numbers_from_ten_on_do_not_run_together() -> None:
    lines = reviews.as_text(Prediction("pos", 0.9, "", {}), None, attention(12)).split("\n")
    tens, units = lines[2][-24:], lines[3][-24:]
    assert tens.split() == ["1", "1", "1"]
    assert units.split() == [*map(str, range(1, 10)), "0", "1", "2"]
    assert [tens[i] for i in (19, 21, 23)] == ["1", "1", "1"]
    nine = reviews.as_text(Prediction("pos", 0.9, "", {}), None, attention(9)).split("\n")
    assert nine[2].split() == [*map(str, range(1, 10))]


def test_the_page_of_attention_has_every_head_with_the_weights_that_matter() -> None:
    heads = [attention(3, layer, head) for layer in (1, 2) for head in (1, 2, 3)]
    heads[5].weights[0] = [0.9, 0.096, 0.004]
    page = reviews.as_html(Prediction("pos", 0.9, "</script>", {}), None, heads[4], heads)
    data = json.loads(re.findall(r'<script type="application/json">(.*?)</script>', page)[0])
    assert [len(layer) for layer in data["heads"]] == [3, 3]
    assert data["heads"][1][2][0] == {"0": 0.9, "1": 0.096}
    assert data["heads"][0][0][2] == {"0": 0.333, "1": 0.333, "2": 0.333}
    assert re.findall(r"<option selected>(\d)", page) == ["2", "2"]


def test_a_word_cannot_end_the_script_of_a_page() -> None:
    shown = attention(1)._replace(words=["</script><img src=x>"])
    page = reviews.as_html(Prediction("pos", 0.9, "", {}), None, shown, [shown])
    assert page.count("</script>") == 1
    assert "<img" not in page


def test_the_title_of_a_page_says_what_it_shows(tmp_path: Path) -> None:
    titles = {}
    for explained, attended in ((True, False), (False, True), (True, True)):
        reviews.write_reviews(tmp_path / "p.html", [], explained=explained, attended=attended)
        page = (tmp_path / "p.html").read_text()
        titles[explained, attended] = re.findall(r"<title>(.*)</title>", page)[0]
        assert ("<script>" in page) == attended
    assert len(set(titles.values())) == 3
    assert titles[False, True] == "What each word attended to"
