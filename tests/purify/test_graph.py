"""Graphs of a label: similarities, drawn edges, grouping and slicing."""

import numpy as np
import pytest
import torch

from purereplay.purify.graph import (
    FLOOR,
    _draw_each,
    _draw_together,
    graph_slices,
    group_by_size,
    padded_width,
    similarity,
)


def features_of(n: int, d: int = 16, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)) + 0.5)


def graphs(features: torch.Tensor, members: dict, n_graphs: int, seed: int = 0, **options) -> dict:
    """Label → its unpadded graphs (E, n, n)."""
    found = {}
    for group in group_by_size([members]):
        stack = torch.cat(list(graph_slices(features, group, n_graphs, [seed], **options)))
        stack = stack.view(len(group.owners), -1, *stack.shape[1:])
        found |= {
            label: stack[i, :, :n, :n] for i, ((_, label), n) in enumerate(zip(group.owners, group.sizes, strict=True))
        }
    return found


def test_similarity_is_the_truncated_cosine():
    features = features_of(12)
    rows = features.numpy()
    for i in range(12):
        for j in range(12):
            cosine = rows[i] @ rows[j] / np.sqrt(rows[i] @ rows[i]) / np.sqrt(rows[j] @ rows[j])
            assert similarity(features)[i, j].item() == pytest.approx(max(cosine, 0.0), abs=1e-12)


@pytest.mark.parametrize("factor", [1e-200, 1.0, 1e200])
def test_similarity_does_not_depend_on_scale_and_survives_zeros(factor: float):
    features = features_of(6)
    features[2] = 0
    plain, scaled = similarity(features), similarity(features * factor)
    assert torch.allclose(plain, scaled, atol=1e-12)
    assert scaled.isfinite().all() and (scaled.diagonal() == 1).all()
    assert scaled[2].sum() == 1  # similar to itself alone


def test_stochastic_graphs_are_symmetric_binary_with_a_unit_diagonal():
    found = graphs(features_of(40), {"a": range(40)}, 5)["a"]
    assert found.shape == (5, 40, 40)
    assert torch.equal(found, found.mT)
    assert (found.diagonal(dim1=1, dim2=2) == 1).all()
    assert set(found.unique().tolist()) == {FLOOR, 1.0}
    assert not torch.equal(found[0], found[1])


def test_edges_appear_as_often_as_the_similarity_says():
    features = features_of(30)
    weights = similarity(features)
    share = (graphs(features, {0: range(30)}, 2000)[0] == 1).double().mean(0)
    error = (share - weights).abs()
    assert error.max() < 5 * 0.5 / 2000**0.5  # five standard deviations of the widest edge
    off = ~torch.eye(30, dtype=torch.bool)
    assert (share - weights)[off].mean().abs() < 1e-3  # and no bias


def test_strips_draw_what_one_large_operation_draws():
    # on the CPU graphs are drawn in strips of 128 rows, elsewhere all at once
    for width, sizes in ((16, (1, 2, 3, 16)), (256, (127, 128, 129, 255)), (512, (257, 384, 511))):
        limits = torch.from_numpy(
            np.random.default_rng(width).integers(-1, 2**15, (len(sizes), width, width), np.int16)
        )
        jobs = [(at, size, seed) for at, size in enumerate(sizes) for seed in (5, 6)]
        for found, plain, (_, size, _) in zip(
            _draw_each(limits, jobs), _draw_together(limits, jobs), jobs, strict=True
        ):
            assert torch.equal(found[:size, :size], plain[:size, :size])
            assert not found[size:].any() and not found[:, size:].any()


def test_similarity_0_and_1_are_certain():
    same = torch.ones(50, 3, dtype=torch.float64)
    assert (graphs(same, {0: range(50)}, 20)[0] == 1).all()
    apart = torch.eye(50, dtype=torch.float64)
    assert torch.equal(graphs(apart, {0: range(50)}, 20)[0][7], torch.eye(50).double().clamp(min=FLOOR))


def test_edges_of_one_graph_are_independent_of_each_other():
    # rows of different vertices, and the same vertex in different graphs, must not share random numbers
    half = torch.tensor([[1.0, 0.0], [0.5, 3**0.5 / 2]]).double().repeat_interleave(100, 0)  # cosine 1/2 across
    drawn = (graphs(half, {0: range(200)}, 2)[0][:, :100, 100:] == 1).double()
    table = np.corrcoef(torch.cat([drawn[0], drawn[1]]).numpy())
    assert np.abs(table - np.eye(200)).max() < 0.5  # 100 coins a row: five standard deviations
    assert abs(drawn.mean().item() - 0.5) < 0.02


def test_non_stochastic_graph_is_the_similarity_itself():
    features = features_of(20) - 0.5
    found = graphs(features, {0: range(20)}, 0)[0]
    assert found.shape == (1, 20, 20)
    # a product of another width may round otherwise, on some processors
    torch.testing.assert_close(found[0], similarity(features).clamp(min=FLOOR), rtol=0, atol=1e-14)
    assert (found == FLOOR).any()


def test_a_label_does_not_see_the_others():
    features = features_of(60)
    alone = graphs(features, {3: range(0, 60, 3)}, 4)[3]
    together = graphs(features, {1: range(1, 60, 3), 3: range(0, 60, 3), "tiny": [2, 5]}, 4)[3]
    assert torch.equal(alone, together)
    assert not torch.equal(alone, graphs(features, {4: range(0, 60, 3)}, 4)[4])  # another label draws otherwise
    assert not torch.equal(alone, graphs(features, {3: range(0, 60, 3)}, 4, seed=1)[3])


@pytest.mark.parametrize("n_graphs", [0, 3])
@pytest.mark.parametrize("max_entries", [1, 900, 2500, 10**6])
def test_slicing_changes_nothing_but_the_memory(n_graphs: int, max_entries: int):
    features = features_of(100)
    members = {0: range(30), 1: range(30, 55), 2: range(55, 85), 3: range(85, 100)}
    whole = graphs(features, members, n_graphs)
    sliced = graphs(features, members, n_graphs, max_entries=max_entries)
    assert all(torch.allclose(whole[label], sliced[label], atol=1e-15) for label in members)
    for group in group_by_size([members]):
        for part in graph_slices(features, group, n_graphs, [0], max_entries=max_entries):
            assert part.numel() <= max(max_entries, part[0].numel())


def test_labels_are_grouped_by_size_and_padding_is_zero():
    first = {"big": range(500), "large": range(500, 950), "one": [950], "two": [951, 952]}
    second = {"big": range(953, 1440), "one": [1440]}
    small, big = group_by_size([first, second])
    assert small.owners == [(0, "one"), (0, "two"), (1, "one")] and small.rows.shape == (3, 16)
    assert big.owners == [(0, "big"), (0, "large"), (1, "big")] and big.sizes == [500, 450, 487]
    assert big.rows.shape == (3, 512) and big.mask.sum(1).tolist() == [500, 450, 487]
    assert big.rows[2, :487].tolist() == list(range(953, 1440))
    graph = torch.cat(list(graph_slices(features_of(1441), big, 1, [0, 0])))[1]
    assert (graph[450:] == 0).all() and (graph[:, 450:] == 0).all() and (graph[:450, :450] > 0).all()


def test_the_width_of_a_label_depends_on_its_size_alone():
    assert [padded_width(n) for n in (1, 16, 17, 128, 129, 160, 257, 512, 513)] == [
        *(16, 16, 32, 128, 160, 160, 320, 512, 640)
    ]
    for n in range(1, 3000):
        width = padded_width(n)
        assert n <= width < n + max(16, n / 4 + 1) and width % 16 == 0 and width == padded_width(width)


def test_a_buffer_does_not_see_the_others():
    features, seeds = features_of(120), [7, 8, 7]
    members = [{0: range(40)}, {0: range(40, 75), "x": range(75, 80)}, {0: range(80, 120)}]
    found = {}
    for group in group_by_size(members):
        for owner, graph in zip(group.owners, torch.cat(list(graph_slices(features, group, 1, seeds))), strict=True):
            found[owner] = graph
    for buffer, own in enumerate(members):
        for label, rows in own.items():
            alone = graphs(features, {label: rows}, 1, seeds[buffer])[label][0]
            assert torch.equal(found[buffer, label][: len(rows), : len(rows)], alone)
