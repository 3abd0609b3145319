"""Densities of the beta mixture, galleries of the purified buffer, and the pictures of curves and images."""

import math

import numpy as np
import pytest
from matplotlib.image import imread

from purereplay.evaluate import running
from purereplay.evaluate.results import RunDirectory
from purereplay.evaluate.settings import resolve
from purereplay.evaluate.store import Store
from purereplay.paper.densities import compute_fits, density_panel, kept_fits
from purereplay.paper.galleries import gallery, held_at_end
from purereplay.report.pictures_lines import DrawnCurve, DrawnPanel, draw_images, draw_panels

TINY = {"expert_epochs": "3", "base_epochs": "1", "finetune_epochs": "1", "hidden": "8", "projection_size": "4"}


def tiny():
    return resolve(dataset="digits", preset_name="demo", device="cpu", overrides=TINY)


def test_densities_are_fitted_once_and_integrate_to_the_weights(tmp_path):
    store = Store(tmp_path)
    assert kept_fits(store, tiny()) is None
    fits = compute_fits(store, tiny())
    assert kept_fits(store, tiny()) == fits
    assert len(fits["fixed"]["alpha"]) == 1 and len(fits["sampled"]["alpha"]) == 5
    assert fits["fixed"]["label"] == fits["sampled"]["label"] and fits["fixed"]["n"] > 20
    panel = density_panel("a", fits["sampled"])
    clean, noisy = panel.curves
    assert "clean" in clean.label and "noisy" in noisy.label and not math.isnan(clean.spreads[50])
    total = np.trapezoid(clean.means, clean.xs) + np.trapezoid(noisy.means, noisy.xs)
    assert 0.8 < total < 1.05  # the ends of the axis are cut off
    assert all(math.isnan(spread) for spread in density_panel("b", fits["fixed"]).curves[0].spreads)


def test_a_gallery_shows_the_samples_of_a_label_in_the_stream_and_in_p(tmp_path):
    store, settings = Store(tmp_path), tiny()
    assert held_at_end(store, settings) is None
    path = store.path_for(settings)
    running.run(settings, path)
    store.take_finished()
    held = held_at_end(store, settings)
    assert len(held) == RunDirectory(path).result()["n_purified"]
    (random, of_stream), (pure, of_p) = gallery(settings, held, "3").items()
    assert random.startswith("random, with this label: 50 of ") and of_stream.shape == (50, 1, 8, 8)
    assert pure == f"in the purified buffer: {len(of_p)} of {len(of_p)}" and of_p.dtype == np.uint8
    again = gallery(settings, held, "3")
    assert all(np.array_equal(a, b) for a, b in zip(again.values(), (of_stream, of_p), strict=True))
    files = [tmp_path / "g.png", tmp_path / "g.svg"]
    draw_images({random: of_stream, "none": of_p[:0]}, "title", "note", files)
    assert imread(files[0]).std() > 0.1 and files[1].stat().st_size > 1000


@pytest.mark.parametrize("n", [1, 4])
def test_panels_name_curves_that_are_not_measured(tmp_path, n):
    measured = DrawnCurve("one", [1, 2], [10.0, 20.0], [1.0, math.nan], {2: 25.0})
    panel = DrawnPanel("panel", "x", "y", [measured, DrawnCurve("two", [], [], [])])
    draw_panels([panel] * n, "title", "note", [tmp_path / "a.png", tmp_path / "a.svg"])
    text = (tmp_path / "a.svg").read_text()
    assert text.count("<!-- two: not measured -->") == n and text.count("<!-- paper -->") == n
    height, width = imread(tmp_path / "a.png").shape[:2]
    assert width >= 900 and (height > 800) == (n == 4)  # three in a row
