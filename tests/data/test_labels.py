import datetime
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from purereplay.data.labels import (
    LabelBook,
    in_order,
    label_array,
    label_from_json,
    label_to_json,
    read_labels,
)
from purereplay.data.names import SampleNames
from purereplay.errors import InputError, InputTypeError, UserError

PLAIN = st.one_of(st.text(), st.integers(), st.booleans(), st.integers(-9, 9).map(float))
LABELS = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)


def test_labels_come_in_lists_arrays_and_tensors():
    for labels in ([3, 1], (3, 1), np.array([3, 1]), torch.tensor([3, 1]), np.array([3, 1], object), [np.int32(3), 1]):
        read = read_labels(labels)
        assert read == [3, 1] and all(type(label) is int for label in read)
    assert read_labels(np.array(["a", "b"])) == ["a", "b"]
    assert read_labels([("a", 1), ("b", 2)]) == [("a", 1), ("b", 2)]
    assert read_labels([]) == [] and read_labels(range(2)) == [0, 1]


@pytest.mark.parametrize(
    ("labels", "words", "kind"),
    [
        ([1, None], "Sample 1 has no label", InputError),
        ([1.0, 2.5], "Sample 1 has the continuous label 2.5: Unknown label type", InputError),
        ([1.0, float("nan")], "Sample 1 has no label: y holds nan there; leave", InputError),
        (np.array(["2024-01-01", "NaT"], "M8[D]"), "Sample 1 has no label: y holds NaT there", InputError),
        ([float("inf")], "Sample 0 has infinity as its label", InputError),
        ([1, [2]], "Sample 1 has a label of type list, which cannot be hashed", InputTypeError),
        (np.eye(2), r"y should be a 1d array .* shape \(2, 2\)", InputError),
        ("text", "y should be a 1d array with one label per sample, not of type str: give a list", InputError),
        ({1, 2}, "not of type set: give a list", InputError),
        ({1: "a"}.values(), "not of type dict_values: give a list", InputError),
        ((label for label in "ab"), "not of type generator: give a list", InputError),
        (None, "y should be a 1d array", InputError),
    ],
)
def test_what_is_no_label_is_named(labels, words, kind):
    with pytest.raises(kind, match=words):
        read_labels(labels)


def test_order_is_sorted_or_that_of_appearance():
    assert in_order([3, 1, 3, 2]) == [1, 2, 3]
    assert in_order(["b", 1, "b", (2,)]) == ["b", 1, (2,)]


@given(st.lists(LABELS, max_size=6))
def test_an_array_keeps_labels_as_they_are(labels):
    kept = label_array(labels)
    assert kept.shape == (len(labels),) and kept.tolist() == labels
    assert [type(label) for label in kept.tolist()] == [type(label) for label in labels]


@given(LABELS)
def test_labels_go_through_json(label):
    back = label_from_json(json.loads(json.dumps(label_to_json(label))))
    assert back == label and type(back) is type(label)


def test_other_labels_cannot_be_saved():
    with pytest.raises(UserError, match="Labels of type date cannot be saved"):
        label_to_json((1, datetime.date(2024, 1, 1)))


@given(st.lists(LABELS, min_size=1, max_size=8), st.lists(LABELS, max_size=8))
def test_class_numbers_stay_when_labels_come(first, more):
    book = LabelBook()
    book.know(first)
    before = book.numbers(first)
    book.know(more)
    assert torch.equal(book.numbers(first), before)
    assert sorted(book.columns) == list(range(len(book.labels)))
    assert book.classes.tolist() == [book.labels[c] for c in book.columns]
    assert book.given(book.numbers(more)).tolist() == more


def test_names_are_each_samples_own():
    names = SampleNames()
    names.add(names.check(None, 3), 3)
    names.add(names.check(["a", np.int64(7)], 2), 2)
    assert names.of(range(5)) == [0, 1, 2, "a", 7]
    for wrong, words in (
        (["b", "a"], "Sample 1 has the id 'a'"),
        ([9, 9], "Sample 1 has the id 9"),
        ([8, 1], "Sample 1 has the id 1"),  # the second sample's number
        ([8], "2 samples, but sample_ids 1"),
    ):
        with pytest.raises(InputError, match=words):
            names.check(wrong, 2)
    with pytest.raises(InputTypeError, match="Sample 0 has an id of type float"):
        names.check([1.5, 2], 2)
    assert names.check([3, 4], 2) == [3, 4]  # their bearers have other names
    with pytest.raises(InputError, match="Sample 2 needs an id: its number 7 is the id of another"):
        names.check(None, 3)
    other = SampleNames()
    other.load(names.state())
    assert other.of(range(5)) == names.of(range(5)) and other.n == 5
    with pytest.raises(InputError, match="'a'"):
        other.check(["a"], 1)


def test_names_of_copies_that_are_dropped_are_forgotten():
    names = SampleNames()
    names.add(names.check(["a", "b"], 2), 2)
    dropped = names.copy()
    dropped.add(dropped.check(["c", 9, "d"], 3), 3)
    assert dropped.of(range(5)) == ["a", "b", "c", 9, "d"]
    with pytest.raises(InputError, match="'c'"):
        dropped.check(["c"], 1)
    saved, other = names.state(), SampleNames()
    other.load(saved)
    assert other.of(range(2)) == ["a", "b"] and other.n == names.n == 2
    names.add(names.check(None, 2), 2)
    assert names.of(range(4)) == ["a", "b", 2, 3]
    names.add(names.check(["d", "c"], 2), 2)  # free again, under other numbers
    assert names.of(range(6)) == ["a", "b", 2, 3, "d", "c"]
    names.add(names.check([9], 1), 1)
    for wrong in (["a"], ["c"], ["d"], [9], [3]):
        with pytest.raises(InputError, match=repr(wrong[0])):
            names.check(wrong, 1)
    other.load(names.state())
    assert other.of(range(7)) == names.of(range(7)) == ["a", "b", 2, 3, "d", "c", 9]


def test_labels_of_copies_that_are_dropped_are_forgotten():
    book = LabelBook()
    book.know(["b"])
    dropped = book.copy()
    dropped.know(["a", "c"])
    assert book.labels == ["b"] and book.classes.tolist() == ["b"] and dropped.classes.tolist() == ["a", "b", "c"]
    book.know(["c"])
    assert book.numbers(["b", "c"]).tolist() == [0, 1] and dropped.numbers(["b", "c"]).tolist() == [0, 2]
