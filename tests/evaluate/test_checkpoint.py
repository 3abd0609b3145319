import logging

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from purereplay.errors import UserError
from purereplay.evaluate.checkpoint import read_checkpoint, write_checkpoint

TENSORS = {
    "a": torch.arange(6.0).view(2, 3),
    "b": torch.tensor(3),
    "c": torch.tensor([True, False]),
    "d": torch.zeros(0, 4),
    "e": torch.tensor([1.5], dtype=torch.float64),
    "f": torch.from_numpy(np.zeros(0, np.int64)),
    "g": torch.arange(6).view(2, 3).mT,
}


def test_round_trip_keeps_bits_types_and_facts(tmp_path):
    write_checkpoint(tmp_path, TENSORS, {"position": 3, "seconds": {"base": 0.1}})
    tensors, facts = read_checkpoint(tmp_path)
    assert facts == {"position": 3, "seconds": {"base": 0.1}}
    assert all(torch.equal(tensors[n], t) and tensors[n].dtype == t.dtype for n, t in TENSORS.items())


def test_tensors_that_share_memory_are_written_apart(tmp_path):
    row = torch.arange(4)
    write_checkpoint(tmp_path, {"a": row, "b": row[1:3], "c": row}, {})
    tensors, _ = read_checkpoint(tmp_path)
    assert [tensors[n].tolist() for n in "abc"] == [[0, 1, 2, 3], [1, 2], [0, 1, 2, 3]]


def test_the_last_two_are_kept_and_the_newest_is_read(tmp_path):
    for number in range(5):
        write_checkpoint(tmp_path, {"a": torch.tensor(number)}, {})
    assert len(list(tmp_path.iterdir())) == 2
    assert int(read_checkpoint(tmp_path)[0]["a"]) == 4


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_is_used(tmp_path, damage, caplog):
    write_checkpoint(tmp_path, TENSORS, {"n": 0})
    newest = write_checkpoint(tmp_path, TENSORS, {"n": 1})
    content = bytearray(newest.read_bytes())
    if damage == "flip":
        content[-1] ^= 1
    newest.write_bytes({"cut": content[: len(content) // 2], "flip": content, "empty": b""}[damage])
    with caplog.at_level(logging.WARNING):
        assert read_checkpoint(tmp_path)[1] == {"n": 0}
    assert newest.name in caplog.text


def test_files_of_others_are_left_alone(tmp_path):
    (tmp_path / "best.safetensors").write_bytes(b"mine")
    save_file({"x": torch.zeros(1)}, tmp_path / "checkpoint-00000007.safetensors")  # no facts in it
    write_checkpoint(tmp_path, TENSORS, {"n": 8})
    assert read_checkpoint(tmp_path)[1] == {"n": 8} and (tmp_path / "best.safetensors").exists()
    (tmp_path / "checkpoint-00000008.safetensors").unlink()
    assert read_checkpoint(tmp_path) is None


def test_none_where_there_is_none(tmp_path):
    assert read_checkpoint(tmp_path) is None


def test_a_full_disk_is_a_sentence_and_leaves_the_last_good_one(tmp_path, monkeypatch):
    write_checkpoint(tmp_path, TENSORS, {"n": 0})

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match="No space left"):
        write_checkpoint(tmp_path, TENSORS, {"n": 1})
    assert read_checkpoint(tmp_path)[1] == {"n": 0}
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-00000000.safetensors"]
