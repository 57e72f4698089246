"""The readers of real benchmark files, on small files of the same form."""

import json

import pytest

from aero.errors import UserError
from aero.parallel_context import benchmarks
from aero.parallel_context.evaluate import contains_answer, first_word_is


def encode(text):
    return list(text.encode("utf-8"))


def text_of(batch):
    return "".join(bytes(unit[0].tolist()).decode() for unit in batch.units)


def lines(path, records):
    path.write_text("\n".join(map(json.dumps, records)) + "\n", encoding="utf-8")
    return path


def test_key_value_pairs_are_units_and_the_asked_one_stays(tmp_path):
    pairs = {f"key{i}": f"value{i}" for i in range(9)}
    path = lines(tmp_path / "synthetic.jsonl", [{"context": json.dumps(pairs), "question": "key7", "answer": "value7"}])
    (whole,) = benchmarks.synthetic(path, encode, 1000, 5, 0)
    assert len(whole.units) == 9 and whole.accepted == [("value7",)] and '"key3": "value3"' in text_of(whole)
    assert b'"key7"' in bytes(whole.question[0].tolist())
    (cut,) = benchmarks.synthetic(path, encode, 60, 5, 0)
    assert '"key7": "value7"' in text_of(cut) and len(text_of(cut)) <= 60
    with pytest.raises(UserError, match="no unit of the context fits"):
        list(benchmarks.rag(lines(tmp_path / "r.jsonl", [PASSAGES]), encode, 3, 1, 0))


PASSAGES = {
    "question": "Who?",
    "answers": ["Ada", "Ada L."],
    "ctxs": [{"title": "A", "text": "one"}, {"title": "B", "text": "two"}, {"text": "three"}],
}


def test_passages_are_units_in_their_order(tmp_path):
    path = tmp_path / "rag.json"
    path.write_text(json.dumps({"data": [PASSAGES] * 3}), encoding="utf-8")
    found = list(benchmarks.rag(path, encode, 1000, 2, 0))
    assert len(found) == 2 and found[0].accepted == [("Ada", "Ada L.")]
    assert text_of(found[0]) == "Title: A\none\n\nTitle: B\ntwo\n\nTitle: \nthree\n\n"
    assert bytes(found[0].question[0].tolist()).decode() == "Question: Who?\nAnswer:"


def test_examples_are_balanced_and_labels_are_numbered_anew(tmp_path):
    train = tmp_path / "icl_train.txt"
    train.write_text("".join(f"{'DESC' if i % 4 else 'NUM'}:x question {i} ?\n" for i in range(16)), encoding="utf-8")
    test = lines(tmp_path / "icl_test.jsonl", [{"text": f"asked {i}", "label": "NUM:x"} for i in range(6)])
    found = list(benchmarks.icl(train, test, encode, 8 * 26, 6, 0))
    numbers = set()
    for batch in found:
        units = [bytes(unit[0].tolist()).decode() for unit in batch.units]
        (right,) = batch.accepted[0]
        numbers.add(right)
        own = [unit for unit in units if unit.endswith(f"label: {right}\n\n")]
        assert all(int(unit.split()[1]) % 4 == 0 for unit in own) and abs(len(units) - 2 * len(own)) <= 1
    assert numbers == {"0", "1"}
    with pytest.raises(UserError, match="label 'OTHER' does not occur"):
        list(benchmarks.icl(train, lines(tmp_path / "o.jsonl", [{"text": "t", "label": "OTHER"}]), encode, 99, 1, 0))


def test_text_windows(tmp_path):
    (tmp_path / "lm").mkdir()
    (tmp_path / "lm/a.txt").write_text("abcdefghijklmnop", encoding="utf-8")
    (tmp_path / "lm/b.txt").write_text("too short", encoding="utf-8")
    (batch,) = benchmarks.language_modelling(tmp_path / "lm", encode, 8, 4, 5, 0)
    assert text_of(batch) == "abcdefgh" and batch.question.tolist() == [[ord("i")]]
    assert bytes(batch.answer[0].tolist()) == b"jklm"
    with pytest.raises(UserError, match="no text of 105 tokens"):
        list(benchmarks.language_modelling(tmp_path / "lm", encode, 100, 4, 5, 0))


def record(**changes):
    return json.dumps(PASSAGES | changes)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "one JSON object a line"),
        ('{"other": 1}', "line 1: expected 'question'"),
        (record(ctxs=[{"text": "one"}, {"title": "B"}]), "line 1: expected 'question'"),
        (record(answers=[]), "no answer"),
        ("[" * 100_000, "one JSON object a line"),
    ],
)
def test_files_of_another_form(tmp_path, text, named):
    path = tmp_path / "rag.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="rag.jsonl") as caught:
        list(benchmarks.rag(path, encode, 100, 1, 0))
    assert named in str(caught.value)


def test_contexts_and_text_of_another_form(tmp_path):
    for context in ("[1, 2]", [1, 2], "{1}", '{"other": 1}'):
        path = lines(tmp_path / "synthetic.jsonl", [{"context": context, "question": "k", "answer": "v"}])
        with pytest.raises(UserError, match="line 1: expected 'context'"):
            list(benchmarks.synthetic(path, encode, 100, 1, 0))
    (tmp_path / "lm.txt").write_bytes(b"no\xfft")
    with pytest.raises(UserError, match="lm.txt: expected text in utf-8"):
        list(benchmarks.language_modelling(tmp_path / "lm.txt", encode, 8, 4, 1, 0))


def test_lines_end_at_newlines_only(tmp_path):
    path = tmp_path / "rag.jsonl"
    path.write_text(json.dumps(PASSAGES | {"question": "a\u2028b?"}, ensure_ascii=False) + "\r\n", encoding="utf-8")
    (batch,) = benchmarks.rag(path, encode, 1000, 1, 0)
    assert "a\u2028b?" in bytes(batch.question[0].tolist()).decode()
    path = tmp_path / "icl.txt"
    path.write_bytes(b"NUM:x a\x85b ?\r\n\nDESC c\n")
    with pytest.raises(UserError, match="icl.txt, line 3: expected LABEL:sub"):
        benchmarks.labelled(path)


def test_substring_match():
    assert contains_answer("It is the Eiffel-Tower, I think", ("the Eiffel Tower", "eiffeltower"))
    assert not contains_answer("Paris", ("London", "")) and not contains_answer("anything", ("the",))
    assert first_word_is(" 12\n", ("12",)) and not first_word_is("12", ("1",))


def test_only_the_first_line_of_an_answer_counts():
    right = {name: benchmarks.judge_of(name, lambda ids: bytes(ids).decode()) for name in ("rag", "synthetic", "icl")}
    for name in ("rag", "synthetic"):
        assert right[name](encode(" Ada Lovelace\n\nQuestion: Who?"), ("Ada Lovelace",))
        assert not right[name](encode(" Bob\n\nQuestion: Who is Ada Lovelace?"), ("Ada Lovelace",))
        assert right[name](encode("\nAda Lovelace, I think"), ("Ada Lovelace",)), "an empty line is no answer"
    assert right["icl"](encode(" 12\nlabel: 3"), ("12",)) and not right["icl"](encode(" 12\n3"), ("3",))


def test_a_task_takes_several_files(tmp_path):
    for name in ("rag_nq.jsonl", "rag.json", "synthetic.jsonl", "icl_train_b.txt", "icl_test_b.jsonl", "icl_train.txt"):
        (tmp_path / name).write_text("", encoding="utf-8")
    assert benchmarks.files_of(tmp_path, "rag") == [(tmp_path / "rag.json",), (tmp_path / "rag_nq.jsonl",)]
    assert benchmarks.files_of(tmp_path, "synthetic") == [(tmp_path / "synthetic.jsonl",)]
    with pytest.raises(UserError, match="must both exist"):
        benchmarks.files_of(tmp_path, "icl")
    (tmp_path / "icl_test.txt").write_text("", encoding="utf-8")
    found = [tuple(path.name for path in one) for one in benchmarks.files_of(tmp_path, "icl")]
    assert found == [("icl_train.txt", "icl_test.txt"), ("icl_train_b.txt", "icl_test_b.jsonl")]
    assert benchmarks.files_of(tmp_path / "none", "icl") == []
