"""Figures as notebooks show them."""

import base64
import html
import io
import re

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import PIL.Image
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgba

from cflkit import metrics, plots
from cflkit.plots import page


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture
def displayed(monkeypatch):
    """What a cell would show."""
    found = []
    monkeypatch.setattr("IPython.display.display", lambda shown, **options: found.append(shown))
    return found


def test_a_figure_has_its_number_caption_and_alternative_text(displayed):
    plots.style()
    figure = plt.figure(figsize=(5, 2))
    plots.show(figure, 3, "What is shown.", "A figure for a test.")
    picture, caption = displayed
    data, metadata = picture._repr_png_()
    assert metadata == {"width": 500, "alt": "A figure for a test."}
    image = PIL.Image.open(io.BytesIO(base64.b64decode(data)))
    assert image.size == (500 * page.SHARPNESS, 200 * page.SHARPNESS), "for dense screens"
    assert caption.data == "**Figure 3.** What is shown."
    assert not plt.fignum_exists(figure.number), "no cell shows it twice"
    with pytest.raises(ValueError, match=r"8\.0 inches wide, and this one has 8\.5"):
        plots.show(plt.figure(figsize=(8.5, 2)), 1, "Too wide.", "A figure for a test.")


def test_a_readers_own_style_of_matplotlib_changes_no_figure():
    usual = {"text.usetex": True, "path.sketch": (1, 100, 2), "savefig.bbox": "tight"}
    with plt.rc_context(usual):
        plots.style()
        plain = {name: plt.rcParams[name] for name in usual}
    assert plain == {name: plt.rcParamsDefault[name] for name in usual}


def test_a_figure_that_moves_has_all_frames_a_still_and_a_film(displayed, monkeypatch, tmp_path):
    monkeypatch.setenv("CFLKIT_FIGURES", str(tmp_path))
    figures = [plt.figure(figsize=(2, 1)) for _ in range(3)]
    for number, figure in enumerate(figures):
        figure.text(0.1 * number, 0.5, str(number))
    labels = ["round 1", 'round "2" <', "round 3"]
    plots.show_frames(figures, labels, 1, "It moves.", "A number.", first=1, name="film")
    shown, caption = displayed
    picture = r'data:image/webp;base64,([^"]+)" width="200" alt="([^"]+)"( style)?'
    found = re.findall(picture, shown["text/html"])
    assert [alt for _, alt, _ in found] == [html.escape(f"{own}. A number.") for own in labels]
    assert [bool(hidden) for _, _, hidden in found] == [True, False, True]
    pictures = [shown["image/png"], *(data for data, _, _ in found)]
    opened = [PIL.Image.open(io.BytesIO(base64.b64decode(one))).convert("RGB") for one in pictures]
    assert [np.array_equal(opened[0], one) for one in opened[1:]] == [False, True, False]
    assert PIL.Image.open(tmp_path / "film.gif").n_frames == 3
    assert caption.data == "**Figure 1.** It moves."
    with pytest.raises(ValueError, match="2 frames need as many labels, not 1"):
        plots.show_frames(figures[:2], ["one"], 1, "", "")


def test_images_of_floats_look_like_images_of_bytes():
    images = np.random.default_rng(0).integers(256, size=(3, 1, 4, 5), dtype=np.uint8)
    sheets = []
    for pictures in (images, images / 255):
        axes = plots.image_grid(pictures, columns=2, axes=plt.figure().subplots())
        sheets.append(np.asarray(axes.images[0].get_array()))
    np.testing.assert_array_equal(*sheets)
    np.testing.assert_array_equal(sheets[0][:4, :5], images[0, 0])


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=12),
    st.permutations(range(4)),
)
def test_renaming_changes_no_grouping_and_gives_the_same_clusters_the_same_names(pairs, names):
    truth, found = map(np.array, zip(*pairs, strict=True))
    new = metrics.renamed(truth, found)
    assert np.array_equal(new[:, None] == new, found[:, None] == found)
    assert metrics.renamed(truth, np.array(names)[truth]).tolist() == truth.tolist()


@pytest.mark.parametrize(
    ("truth", "found", "hatched"),
    [([0, 0, 1, 1], [5, 5, 7, 8], 1), ([0, 0, 2, 2], [1, 1, 0, 0], 0)],
)
def test_only_a_cluster_that_matches_none_is_hatched(truth, found, hatched):
    axes = plots.clusterings(truth, {"found": found}, plt.figure().gca())
    assert [patch.get_hatch() for patch in axes.patches].count("///") == hatched
    assert [text.get_text() for text in axes.texts][:4] == [str(label) for label in truth]


def test_over_rounds_draws_the_mean_and_the_range_over_seeds():
    rounds = {"method": "m", "round": [1, 2]}
    tables = [pd.DataFrame(rounds | {"ari": ari}) for ari in ([0, 1], [1, 1])]
    axes = plots.over_rounds(tables, "ari", "ARI", plt.figure().gca())
    [line], [band] = axes.lines, axes.collections
    assert line.get_ydata().tolist() == [0.5, 1]
    assert (band.get_paths()[0].vertices[:, 1].min(), axes.get_ylabel()) == (0, "ARI")


@pytest.mark.slow
def test_frequent_colours_are_stored_exactly():
    """Among them pale bands, which a palette chosen by coverage would recolour."""
    plots.style()
    figure, axes = plt.subplots(figsize=(4, 2))
    for number, colour in enumerate(plots.COLOURS):
        axes.axvspan(number, number + 0.8, color=colour, alpha=0.15, linewidth=0)
        axes.plot([0, 8], [number, number], color=colour)
    plots.png_of(figure)  # the layout has then settled
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=page.DPI * page.SHARPNESS)
    before = np.asarray(PIL.Image.open(buffer).convert("RGB"))
    after = np.asarray(PIL.Image.open(io.BytesIO(plots.png_of(figure))).convert("RGB"))
    colours, counts = np.unique(before.reshape(-1, 3), axis=0, return_counts=True)
    for colour in colours[np.argsort(-counts)[:20]]:
        assert (after[(before == colour).all(axis=-1)] == colour).all()


@pytest.mark.slow
def test_a_rare_colour_is_not_lost():
    """A small key has few pixels of its colours, among many of the others' edges."""
    figure, axes = plt.subplots(3, 6, figsize=(8, 6))
    frequent = ["#009E73", "#F0E442", "#D55E00", "#56B4E9"]
    for ax in axes.flat:
        for row in range(8):
            ax.plot(row, row, "o^XD"[row % 4], color=frequent[row % 4], markeredgecolor="0.2")
    axes[0, 0].plot(4, 0, "s", color="#CC79A7", markeredgecolor="0.2")
    stored = PIL.Image.open(io.BytesIO(plots.png_of(figure))).convert("RGB")
    away = np.abs(np.asarray(stored).astype(int) - [0xCC, 0x79, 0xA7]).sum(axis=2)
    assert (away < 12).sum() > 20


def test_maps_leave_cold_places_alone():
    heat = np.array([[0.0, 1.0], [0.5, 0.0]])
    axes = plots.saliency(torch.full((3, 2, 2), 90, dtype=torch.uint8), heat, plt.figure().gca())
    np.testing.assert_allclose(axes.images[1].get_alpha(), 0.75 * heat)


def test_the_graph_shows_which_associations_are_wrong_and_the_key_names_its_lines():
    """An association with a cluster of no class is wrong, as in `wrong_share`."""
    figure, axes = plt.subplots()
    plots.associations({"classes": "3|3|7|-1|-1|7", "edges": "0-1|1-2|3-4"}, axes)
    looks = [(line.get_color(), line.get_linewidth()) for line in axes.lines]
    assert looks == [("0.6", 0.6), ("black", 1.8), ("black", 1.8)]
    assert {text.get_text() for text in axes.texts} == {"3", "7"}
    [dots] = axes.collections
    assert dots.get_sizes().tolist() == [22] * 5 + [12]
    assert to_rgba(plots.COLOURS[0]) == tuple(dots.get_facecolors()[2]) != (1, 1, 1, 1)
    plots.associations({"classes": "3|3", "edges": np.nan}, axes)  # of a record without edges
    assert len(axes.lines) == 3
    plots.associations_key(figure)
    [key] = figure.legends
    assert {(line.get_color(), line.get_linewidth()) for line in key.get_lines()[2:]} == set(looks)


def test_features_are_drawn_as_rows_of_shades():
    features = np.array([[0.5, -1.0, 2.0], [0.5, 0.5, 0.5]])[:, :, None, None]
    sheet = plots.image_grid(features, columns=1, axes=plt.figure().gca()).images[0].get_array()
    shades = np.rint((features[:, None, :, 0, 0] + 1) / 3 * 255)
    strips = sheet.reshape(2, plots.STRIP + 2, 5)[:, : plots.STRIP, :3]
    assert np.array_equal(strips, np.tile(shades, (1, plots.STRIP, 1)))


def test_the_ribs_of_an_umbrella_have_their_true_angle_to_the_mean_and_its_length():
    right = np.arccos(3**-0.5)  # of a unit vector to the mean of three at right angles
    assert np.allclose(plots.openings(5 * np.eye(3)), right)
    axes = plots.umbrella(torch.eye(3), [0, 1, 2], plt.figure().gca(), before=1.0)
    *_, handle = axes.lines
    assert handle.get_ydata()[1] == pytest.approx(3**-0.5)
    # A rib that lies in the picture's own plane is as long on paper as it is
    assert np.allclose(np.hypot(*plots.updates.on_paper(right, -plots.updates.TURN)), 1)


def test_a_title_states_a_finding_only_where_it_holds():
    assert plots.finding("alone is best", True) == "alone is best"
    assert plots.finding("alone is best", False) == "Not in this run:\nalone is best"
