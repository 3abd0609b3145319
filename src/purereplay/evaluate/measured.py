"""The values of a result (result.json) and of a line of metrics.jsonl, with the kind of each."""

from __future__ import annotations

from typing import Any

from purereplay.errors import UserError
from purereplay.evaluate.kinds import (
    AT_MOST_ONE,
    COUNT,
    NUMBER,
    OBJECT,
    POSITIVE,
    POSITIVE_COUNT,
    SHARE,
    TEXT,
    WHOLE,
    Kind,
    check_values,
    either,
    list_of,
    object_of,
    one_of,
    or_null,
)

_UNKNOWN_SHARE = or_null(SHARE)
_SHARES = list_of(or_null(SHARE))

RESULT: dict[str, Kind] = {  # results of earlier versions have fewer values
    "dataset": TEXT,
    "noise": TEXT,
    "noise_rate": SHARE,
    "episode": TEXT,
    "learner": TEXT,
    "filter": TEXT,
    "graphs": either(WHOLE, TEXT),
    "robust": TEXT,
    "changed": OBJECT,
    "options": OBJECT,
    "features_digest": or_null(TEXT),
    "features_encoder": or_null(object_of(TEXT)),
    "encoder": or_null(OBJECT),
    "numbers_version": POSITIVE_COUNT,
    "preset": TEXT,
    "budget": POSITIVE,
    "seed": WHOLE,
    "judged_on": TEXT,
    "accuracy": SHARE,
    "accuracy_after_task": list_of(SHARE),
    "task_accuracies": _SHARES,
    "class_accuracies": _SHARES,
    "accuracy_matrix": list_of(_SHARES),
    "average_incremental_accuracy": _UNKNOWN_SHARE,
    "forgetting": or_null(AT_MOST_ONE),
    "forgetting_max": or_null(AT_MOST_ONE),
    "backward_transfer": or_null(AT_MOST_ONE),
    "forward_transfer": or_null(AT_MOST_ONE),
    "purity": _UNKNOWN_SHARE,
    "filtered_noise": or_null(AT_MOST_ONE),
    "filtered_noise_of_nominal": or_null(AT_MOST_ONE),
    "stream_noise": _UNKNOWN_SHARE,
    "passed_noise": _UNKNOWN_SHARE,
    "auroc": _UNKNOWN_SHARE,
    "n_passed": or_null(COUNT),
    "n_purified": COUNT,
    "n_buffers": COUNT,
    "steps": object_of(COUNT),
    "seconds": object_of(NUMBER),
    "device": TEXT,
    "precision": TEXT,
    "versions": OBJECT,
    "digest": TEXT,  # of all other values; see `results.result_digest`
}

_ADDED = {"auroc", "seen_accuracy"}  # values that lines of earlier versions lack
_LINES: dict[str, dict[str, Kind]] = {  # by event
    "buffer": {
        "buffer": COUNT,
        "n": COUNT,
        "noise": _UNKNOWN_SHARE,
        "n_passed": or_null(COUNT),
        "passed_noise": _UNKNOWN_SHARE,
        "auroc": _UNKNOWN_SHARE,
        "n_purified": COUNT,
        "purity": _UNKNOWN_SHARE,
        "filtered_noise": or_null(AT_MOST_ONE),
        "expert_loss": or_null(NUMBER),
        "base_loss": or_null(NUMBER),
    },
    "task": {
        "task": COUNT,
        "classes": list_of(WHOLE),
        "accuracy": SHARE,
        "seen_accuracy": _UNKNOWN_SHARE,
        "task_accuracies": _SHARES,
        "class_accuracies": _SHARES,
    },
    "memory": {"index": list_of(COUNT)},  # samples held at the end
}


def check_lines(lines: list[dict[str, Any]]) -> None:
    """Raise UserError if these are not the lines of one run."""
    for number, line in enumerate(lines, 1):
        try:
            check_values(line, {"event": one_of(*_LINES)}, ["event"])
            kinds = _LINES[line["event"]]
            check_values(line, kinds, kinds.keys() - _ADDED)
        except UserError as error:
            raise UserError(f"in line {number} {error}") from None
    tasks = [line for line in lines if line["event"] == "task"]
    n_tasks = {len(line["task_accuracies"]) for line in tasks}
    if len(n_tasks) > 1 or len(tasks) > max(n_tasks, default=0):
        raise UserError("its lines are of different runs.")
