"""Packed tensors: exact round trip, and damage that is reported."""

import pytest
import torch

from purereplay.data.packing import pack_tensors, unpack_tensors

TENSORS = {"a": torch.arange(6).view(2, 3).mT, "b": torch.zeros(0, 4), "c": torch.tensor([True, False])}


def test_round_trip_keeps_tensors_facts_and_digest(tmp_path):
    content, digest = pack_tensors(TENSORS, {"n": 3})
    (tmp_path / "x").write_bytes(content)
    packed = unpack_tensors(tmp_path / "x")
    assert packed.facts == {"n": 3} and packed.digest == digest and packed.tensors.keys() == TENSORS.keys()
    assert all(
        torch.equal(packed.tensors[name], t) and packed.tensors[name].dtype == t.dtype for name, t in TENSORS.items()
    )


def test_digest_depends_on_names_shapes_and_values_alone():
    # the digest names files of a state folder: it must not change between versions
    digest = pack_tensors({"a": torch.arange(3)}, {"n": 1})[1]
    assert digest == pack_tensors({"a": torch.arange(3)}, {"n": 2})[1]
    others = {"b": torch.arange(3)}, {"a": torch.arange(3)[None]}, {"a": torch.arange(3).double()}, {"a": torch.ones(3)}
    assert digest not in [pack_tensors(other, {})[1] for other in others]
    assert digest.startswith("e437c5cb832f1dd8")


@pytest.mark.parametrize("damage", ["cut", "flip", "missing"])
def test_damage_is_reported(tmp_path, damage):
    content = bytearray(pack_tensors(TENSORS, {})[0])
    if damage == "flip":
        content[-1] ^= 1
    if damage != "missing":
        (tmp_path / "x").write_bytes(content[:20] if damage == "cut" else content)
    with pytest.raises(ValueError, match="is damaged: its contents" if damage == "flip" else "cannot be read"):
        unpack_tensors(tmp_path / "x")
