"""The judge: the only place that knows true labels. Accuracy, purity, filtered noise, forgetting and transfer.

All shares are in [0, 1]. A measure that depends on unknown true labels is None.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

from purereplay.learners.base import FilterReport, Report
from purereplay.nets.inference import Classifier

Line = dict[str, Any]


class Judge:
    """Knows the true labels of a stream and the test set."""

    def __init__(
        self,
        *,
        given_labels: NDArray[np.int64],
        true_labels: NDArray[np.int64] | None,
        stream_order: NDArray[np.int64],
        test_images: Tensor,
        test_labels: Tensor,
        tasks: tuple[tuple[int, ...], ...],
    ) -> None:
        self.tasks = tasks
        self.test_images, self.test_labels = test_images, test_labels.cpu()
        self._noisy_mask: NDArray[np.bool_] | None = None if true_labels is None else given_labels != true_labels
        self.stream_noise = self.noise_share(torch.from_numpy(stream_order.copy()))

    def noise_share(self, index: Tensor) -> float | None:
        """Return the share of these samples whose given label is wrong; None if unknown or if there are no samples."""
        if self._noisy_mask is None or index.numel() == 0:
            return None
        return int(np.count_nonzero(self._noisy_mask[index.numpy()])) / index.numel()

    def purity(self, index: Tensor) -> float | None:
        """Return the share of these samples whose given label is right."""
        share = self.noise_share(index)
        return None if share is None else 1 - share

    def filtered_noise(self, index: Tensor) -> float | None:
        """Return 1 − noise of P / noise of the stream; a negative value is worse than random."""
        share = self.noise_share(index)
        return None if share is None or not self.stream_noise else 1 - share / self.stream_noise

    def auroc(self, report: FilterReport) -> float | None:
        """Return the area under the ROC curve of the clean probability.

        It is the share of pairs of a correct and a wrong label whose scores are in the correct order. Equal scores
        count half. None if the buffer does not hold both right and wrong labels.
        """
        if self._noisy_mask is None:
            return None
        wrong = self._noisy_mask[report.index.numpy()]
        n_wrong = int(np.count_nonzero(wrong))
        n_right = len(wrong) - n_wrong
        if not n_wrong or not n_right:
            return None
        ranks = rankdata(report.clean_probability.numpy())
        return float((ranks[~wrong].sum() - n_right * (n_right + 1) / 2) / (n_right * n_wrong))

    def buffer_line(self, report: Report) -> Line:
        """Return the line of metrics.jsonl on one delayed buffer."""
        passed = report.index[report.selected_mask] if isinstance(report, FilterReport) else None
        return {
            "event": "buffer",
            "buffer": report.buffer,
            "n": report.index.shape[0],
            "noise": self.noise_share(report.index),
            "n_passed": None if passed is None else passed.shape[0],
            "passed_noise": None if passed is None else self.noise_share(passed),
            "auroc": self.auroc(report) if isinstance(report, FilterReport) else None,
            "n_purified": report.held_index.shape[0],
            "purity": self.purity(report.held_index),
            "filtered_noise": self.filtered_noise(report.held_index),
            "expert_loss": report.expert_loss if isinstance(report, FilterReport) else None,
            "base_loss": report.base_loss,
        }

    def task_line(self, task: int, classifier: Classifier) -> Line:
        """Return the line of metrics.jsonl at the end of a task: accuracy on all test classes, unseen ones included."""
        right = classifier.predict(self.test_images).cpu() == self.test_labels
        return {
            "event": "task",
            "task": task,
            "classes": list(self.tasks[task]),
            "accuracy": float(right.double().mean()),
            "seen_accuracy": self._share(right, tuple(c for seen in self.tasks[: task + 1] for c in seen)),
            "task_accuracies": [self._share(right, classes) for classes in self.tasks],
            "class_accuracies": [self._share(right, (c,)) for c in range(int(self.test_labels.max()) + 1)],
        }

    def _share(self, right: Tensor, classes: tuple[int, ...]) -> float | None:
        mask = torch.isin(self.test_labels, torch.tensor(classes))
        return float(right[mask].double().mean()) if bool(mask.any()) else None


def summary(lines: list[Line], stream_noise: float | None, noise_rate: float) -> Line:
    """Return the measured part of result.json, from the lines of metrics.jsonl: always of the last state."""
    buffers = [line for line in lines if line["event"] == "buffer"]
    tasks = [line for line in lines if line["event"] == "task"]
    last, final = (buffers[-1] if buffers else {}), tasks[-1]
    purity = last.get("purity")
    nominal = None if purity is None or not noise_rate else 1 - (1 - purity) / noise_rate
    return {
        "accuracy": final["accuracy"],
        "accuracy_after_task": [line["accuracy"] for line in tasks],
        "task_accuracies": final["task_accuracies"],
        "class_accuracies": final["class_accuracies"],
        **transfer_measures([line["task_accuracies"] for line in tasks], len(final["class_accuracies"])),
        "average_incremental_accuracy": _average_of_tasks(tasks),
        "purity": purity,
        "filtered_noise": last.get("filtered_noise"),
        "filtered_noise_of_nominal": nominal,  # differs if only some classes have noise
        "stream_noise": stream_noise,
        "passed_noise": _mean_passed_noise(buffers),
        "auroc": _mean_auroc(buffers),
        "n_passed": None if last.get("n_passed") is None else sum(line["n_passed"] for line in buffers),
        "n_purified": last.get("n_purified", 0),
        "n_buffers": len(buffers),
    }


def _average_of_tasks(tasks: list[Line]) -> float | None:
    """Return the mean over all tasks of the accuracy on the classes so far; None unless each task was evaluated."""
    values = [line.get("seen_accuracy") for line in tasks]
    return None if len(tasks) < len(tasks[-1]["task_accuracies"]) or None in values else _mean(values)


def transfer_measures(matrix: list[list[float | None]], n_classes: int) -> Line:
    """Return the matrix of accuracies and the measures of forgetting and transfer; `matrix[i][j]`: task j after task i.

    forgetting         mean over all tasks but the last of (accuracy just after the task − accuracy at the end)
    forgetting_max     the same with the maximum over time instead of the accuracy just after the task (Chaudhry 2018)
    backward_transfer  mean over all tasks but the last of (accuracy at the end − accuracy just after the task)
    forward_transfer   mean over all tasks but the first of (accuracy just before the task − 1 / number of classes)
    A learner that is evaluated once, at the end, has none of them.
    """
    n = len(matrix)
    if n < 2 or n != len(matrix[0]):
        return {"accuracy_matrix": matrix} | dict.fromkeys(_TRANSFER)
    end = matrix[-1]
    falls = _mean([_fall(matrix[j][j], end[j]) for j in range(n - 1)])
    known = [[value for row in matrix[:-1] if (value := row[j]) is not None] for j in range(n - 1)]
    highest = [max(values) if values else None for values in known]
    before = [None if (value := matrix[j - 1][j]) is None else value - 1 / n_classes for j in range(1, n)]
    return {
        "accuracy_matrix": matrix,
        "forgetting": falls,
        "forgetting_max": _mean([_fall(high, end[j]) for j, high in enumerate(highest)]),
        "backward_transfer": None if falls is None else -falls,
        "forward_transfer": _mean(before),
    }


_TRANSFER = ("forgetting", "forgetting_max", "backward_transfer", "forward_transfer")


def _fall(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else before - after


def _mean(values: list[float | None]) -> float | None:
    """Return the mean of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _mean_passed_noise(buffers: list[Line]) -> float | None:
    """Return the share of wrong labels among all samples that passed the filter."""
    known = [(line["n_passed"], line["passed_noise"]) for line in buffers if line["passed_noise"] is not None]
    total = sum(n for n, _ in known)
    return sum(n * share for n, share in known) / total if total else None


def _mean_auroc(buffers: list[Line]) -> float | None:
    """Return the mean over the buffers for which it is known; earlier versions did not record it."""
    return _mean([line.get("auroc") for line in buffers])
