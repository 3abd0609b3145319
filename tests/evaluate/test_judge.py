from dataclasses import replace

import numpy as np
import pytest
import torch

from purereplay.evaluate.judge import Judge, summary, transfer_measures
from purereplay.learners.base import FilterReport


class Always:
    """A classifier that answers with fixed labels."""

    def __init__(self, answers: list[int]) -> None:
        self.answers = torch.tensor(answers)

    def predict(self, images: torch.Tensor) -> torch.Tensor:
        return self.answers


def judge(true: list[int] | None = None) -> Judge:
    return Judge(
        given_labels=np.array([0, 0, 1, 1, 2, 2]),
        true_labels=None if true is None else np.array(true),
        stream_order=np.array([5, 3, 1, 0, 2, 4]),
        test_images=torch.zeros(6, 1, 1, 1),
        test_labels=torch.tensor([0, 0, 1, 1, 2, 3]),
        tasks=((0, 1), (2, 3)),
    )


def report(selected: list[bool], purified: list[int]) -> FilterReport:
    index = torch.tensor([0, 2, 4])
    half = torch.full((3,), 0.5, dtype=torch.float64)
    return FilterReport(
        buffer=7,
        index=index,
        labels=index // 2,
        clean_probability=half,
        centrality=half,
        selected_mask=torch.tensor(selected),
        held_index=torch.tensor(purified),
        expert_loss=1.0,
        base_loss=2.0,
    )


TRUE = [0, 1, 1, 0, 2, 0]  # samples 1, 3 and 5 are noisy


def test_purity_and_filtered_noise_by_hand():
    ours = judge(TRUE)
    assert ours.stream_noise == 0.5
    line = ours.buffer_line(report([True, True, False], [0, 1, 2, 4]))
    assert line["noise"] == 0 and line["n_passed"] == 2 and line["passed_noise"] == 0
    assert line["purity"] == 0.75 and line["filtered_noise"] == 1 - 0.25 / 0.5
    worse = ours.buffer_line(report([True, True, False], [1, 3, 5]))
    assert worse["purity"] == 0 and worse["filtered_noise"] == -1


def test_unknown_truth_is_none_and_never_a_number():
    line = judge(None).buffer_line(report([True, True, True], [0, 1]))
    assert [line[k] for k in ("noise", "passed_noise", "purity", "filtered_noise")] == [None] * 4
    task = {"event": "task", "accuracy": 0.5, "task_accuracies": [0.5, 0.5], "class_accuracies": []}
    result = summary([line, task], None, 0.0)
    assert result["purity"] is None and result["filtered_noise"] is None and result["passed_noise"] is None
    assert result["filtered_noise_of_nominal"] is None and result["stream_noise"] is None


def test_the_auroc_counts_pairs_and_ties_half():
    index = torch.arange(6)
    p = torch.tensor([0.9, 0.5, 0.5, 0.2, 0.8, 0.85], dtype=torch.float64)
    line = replace(report([True] * 3, [0]), index=index, clean_probability=p, selected_mask=index >= 0)
    pairs = [(float(p[i]), float(p[j])) for i in (0, 2, 4) for j in (1, 3, 5)]
    expected = sum((right > wrong) + 0.5 * (right == wrong) for right, wrong in pairs) / 9
    assert judge(TRUE).buffer_line(line)["auroc"] == pytest.approx(expected)
    assert judge(TRUE).buffer_line(report([True] * 3, [0]))["auroc"] is None  # no wrong label in it
    assert judge(None).buffer_line(line)["auroc"] is None
    task = {"event": "task", "accuracy": 0.5, "task_accuracies": [0.5, 0.5], "class_accuracies": []}
    known = judge(TRUE).buffer_line(line)
    former = {name: value for name, value in known.items() if name != "auroc"}  # before this measure existed
    assert summary([known, known | {"auroc": None}, former, task], 0.5, 0.5)["auroc"] == pytest.approx(expected)


def test_nothing_passed_has_no_noise_share():
    assert judge(TRUE).buffer_line(report([False] * 3, []))["passed_noise"] is None


def test_a_clean_stream_has_no_filtered_noise():
    assert judge([0, 0, 1, 1, 2, 2]).filtered_noise(torch.tensor([0])) is None


def test_accuracy_by_task_and_class_over_the_whole_test_set():
    line = judge(TRUE).task_line(0, Always([0, 1, 1, 1, 0, 0]))
    assert line["accuracy"] == 0.5 and line["classes"] == [0, 1]
    assert line["task_accuracies"] == [0.75, 0.0]
    assert line["class_accuracies"] == [0.5, 1.0, 0.0, 0.0]


def test_forgetting_and_transfer_by_hand():
    matrix = [[0.9, 0.2, 0.0], [0.95, 0.8, 0.1], [0.4, 0.9, 0.7]]
    found = transfer_measures(matrix, 10)
    assert found["accuracy_matrix"] == matrix
    assert found["forgetting"] == pytest.approx(((0.9 - 0.4) + (0.8 - 0.9)) / 2)  # from just after the task
    assert found["forgetting_max"] == pytest.approx(((0.95 - 0.4) + (0.8 - 0.9)) / 2)  # from the maximum over time
    assert found["backward_transfer"] == -found["forgetting"]
    assert found["forward_transfer"] == pytest.approx(((0.2 - 0.1) + (0.1 - 0.1)) / 2)  # against random guesses
    without = transfer_measures([[None, 0.2], [None, 0.8]], 4)  # a task without test samples
    assert without["forgetting"] is None and without["forward_transfer"] == pytest.approx(0.2 - 0.25)


@pytest.mark.parametrize("matrix", [[[0.9]], [[0.9, 0.8, 0.7]]])
def test_one_evaluation_at_the_end_has_no_forgetting(matrix):
    found = transfer_measures(matrix, 10)
    assert found.pop("accuracy_matrix") == matrix and set(found.values()) == {None}


def test_average_incremental_accuracy_is_over_the_classes_seen_so_far():
    first = judge(TRUE).task_line(0, Always([0, 1, 1, 1, 0, 0]))
    last = judge(TRUE).task_line(1, Always([0, 1, 1, 1, 2, 0]))
    assert first["seen_accuracy"] == 0.75 and last["seen_accuracy"] == last["accuracy"] == pytest.approx(4 / 6)
    assert summary([first, last], 0.5, 0.5)["average_incremental_accuracy"] == pytest.approx((0.75 + 4 / 6) / 2)
    assert summary([last], 0.5, 0.5)["average_incremental_accuracy"] is None  # evaluated once: a mean of one task
    former = [{k: v for k, v in line.items() if k != "seen_accuracy"} for line in (first, last)]
    assert summary(former, 0.5, 0.5)["average_incremental_accuracy"] is None


def test_summary_takes_the_last_state_and_weighs_what_passed():
    def buffer(n, share, purity):
        return {
            "event": "buffer",
            "n_passed": n,
            "passed_noise": share,
            "purity": purity,
            "filtered_noise": purity,
            "n_purified": 9,
        }

    def task(a):
        return {"event": "task", "accuracy": a, "task_accuracies": [a], "class_accuracies": [a]}

    lines = [buffer(10, 0.1, 0.9), task(0.9), buffer(30, 0.3, 0.8), buffer(0, None, 0.7), task(0.6)]
    result = summary(lines, 0.2, 0.4)
    assert result["accuracy"] == 0.6 and result["accuracy_after_task"] == [0.9, 0.6]  # not the best one
    assert result["passed_noise"] == pytest.approx(0.25) and result["n_passed"] == 40
    assert result["purity"] == 0.7 and result["filtered_noise_of_nominal"] == pytest.approx(1 - 0.3 / 0.4)
