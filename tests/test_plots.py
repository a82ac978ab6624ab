import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib import pyplot as plt

from pe_utils import plots, results
from pe_utils.config import CONDITIONS, EXTENSIONS, PROTOCOLS
from pe_utils.stats import mean_interval

PAPER = results.published()["arxiv_2606_00124"]
PUBLISHED = {"none": PAPER["ssdc_clean"], "rpi": PAPER["ssdc_rpi"]}


def curves(seeds: int, conditions=("ape", "rope"), interventions=("none", "rpi")) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        [(c, s, i, d, rng.random())
         for c in conditions for s in range(seeds) for i in interventions for d in range(6)],
        columns=["condition", "seed", "intervention", "depth", "ssdc"],
    )  # fmt: skip


def panel(figure, row, column, columns):
    return figure.axes[row * columns + column]


def test_one_run_is_drawn_as_it_is_beside_the_published_curve():
    ours = curves(1)
    figure = plots.depth_curves(ours, PUBLISHED, ["ape", "rope"], 0.03)
    axis = panel(figure, 1, 0, 2)
    lines = {line.get_linestyle(): line for line in axis.lines}
    mine = ours.query("condition == 'ape' and intervention == 'rpi'")["ssdc"]
    assert lines["-"].get_ydata().tolist() == mine.tolist()
    assert lines["-"].get_xdata().tolist() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert lines["--"].get_ydata().tolist() == PAPER["ssdc_rpi"]["ape"]["mean"]
    assert "n = 1" in figure.legends[0].get_texts()[0].get_text()
    assert not plt.get_fignums()  # an open figure would be shown twice in a notebook


def test_three_runs_are_a_mean_and_a_student_band():
    ours = curves(3, interventions=("none",))
    figure = plots.depth_curves(ours, PUBLISHED, ["ape", "rope"], 0.03)
    assert len(figure.axes) == 2
    axis = figure.axes[0]
    (line,) = (line for line in axis.lines if line.get_linestyle() == "-")
    at_two = ours.query("condition == 'ape' and depth == 2")["ssdc"]
    interval = mean_interval(at_two)
    assert line.get_ydata()[2] == pytest.approx(interval.mean)
    edges = axis.collections[-1].get_paths()[0].vertices
    assert edges[:, 1].max() >= interval.high
    assert any(np.isclose(edges, [0.4, interval.low]).all(axis=1))


def test_two_runs_are_both_drawn():
    figure = plots.depth_curves(
        curves(2, interventions=("none",)), PUBLISHED, ["ape", "rope"], 0.03
    )
    assert len([line for line in figure.axes[0].lines if line.get_linestyle() == "-"]) == 2


def test_fragility_panels_hold_every_condition_and_only_what_was_published():
    ours = pd.DataFrame(
        [(c, 0, k, f)
         for k in ("jpeg_q5", "blur_scaled") for c, f in (("ape", 0.4), ("rpt", -0.1))],
        columns=["condition", "seed", "corruption", "fragility"],
    )  # fmt: skip
    published = pd.DataFrame(
        [("ape", "jpeg_q5", 0.43, 0.01)], columns=["condition", "corruption", "fragility", "std"]
    )
    titles = {"jpeg_q5": "JPEG", "blur_scaled": "blur"}
    figure = plots.fragility_dots(ours, published, titles)
    values = [[x for line in a.lines for x in np.atleast_1d(line.get_xdata())] for a in figure.axes]
    assert 0.43 in values[0]
    assert 0.43 not in values[1]
    assert {0.4, -0.1} <= set(values[1])
    assert [a.get_title() for a in figure.axes] == ["JPEG", "blur"]


def test_alpha_panels_leave_out_what_was_not_measured():
    ours = pd.DataFrame(
        [("ape", 0, a, a / 2, 1 - a) for a in (0.0, 0.5, 1.0)],
        columns=["condition", "seed", "alpha", "delta_ssdc", "fragility"],
    )
    published = ours.assign(delta_ssdc_std=0.1, fragility_std=np.nan)
    figure = plots.alpha_panels(ours, published)
    assert len(figure.axes) == 2
    assert figure.axes[1].lines[-1].get_ydata().tolist() == [1, 0.5, 0]


def test_images_and_training_curves_are_labelled():
    rows = {"clean": torch.zeros(3, 3, 8, 8, dtype=torch.uint8)}
    figure = plots.image_rows(rows | {"jpeg_q5": rows["clean"] + 9})
    assert [a.get_ylabel() for a in figure.axes if a.get_ylabel()] == ["clean", "jpeg_q5"]
    log = pd.DataFrame({"condition": "ape", "seed": 0, "epoch": [1, 2], "held_out_accuracy": 0.5})
    figure = plots.training_curves(log, log.iloc[:1])
    assert [line.get_linestyle() for line in figure.axes[0].lines] == ["-", ":"]


def test_effects_are_shares_of_the_published_and_arrows_beyond_the_axis():
    rows = pd.DataFrame(
        [("A4", "ape", "one", 0.2, 0.1, 0.05, 0.15), ("A4", "spe", "one", 0.2, 2.0, 1.9, 2.1),
         ("A4", "ape", "two", 0.2, -0.1, np.nan, np.nan)],
        columns=["claim", "check", "preset", "published", "mean", "low", "high"],
    )  # fmt: skip
    (axis,) = plots.effect_shares(rows).axes
    dots = {line.get_marker(): line for line in axis.lines if len(line.get_xdata()) == 1}
    assert dots[">"].get_xdata()[0] == 3
    shares = [float(line.get_xdata()[0]) for line in axis.lines if line.get_marker() == "o"
              and len(line.get_xdata()) == 1]  # fmt: skip
    assert shares == pytest.approx([0.5, -0.5])
    spans = [list(line.get_xdata()) for line in axis.lines if len(line.get_xdata()) == 2]
    assert any(span == pytest.approx([0.25, 0.75]) for span in spans)
    assert [label.get_text() for label in axis.get_yticklabels()] == ["A4  ape", "A4  spe"]


def test_along_training_has_a_panel_per_quantity_and_a_log_axis():
    rows = pd.DataFrame(
        [(c, s, step, step / 10, 0.5) for c in ("ape", "rope") for s in (1, 2) for step in (1, 9)],
        columns=["condition", "seed", "step", "recovery", "fragility"],
    )
    figure = plots.along_training(rows, {"recovery": "SSDC", "fragility": "FS"})
    first, second = figure.axes
    assert first.get_xscale() == "log"
    assert [first.get_ylabel(), second.get_ylabel()] == ["SSDC", "FS"]
    assert len(first.lines) == 4
    assert first.lines[0].get_xydata().tolist() == [[1, 0.1], [9, 0.9]]
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["ape", "rope"]


def test_variants_are_told_apart_by_their_line():
    rows = pd.DataFrame(
        [("ape", 1, kind, similarity, norm, depth, 0.1 * depth)
         for kind in ("none", "rpi") for similarity in ("cosine", "centred")
         for norm in ("l1", "l2") for depth in (0, 1, 2)],
        columns=["condition", "seed", "intervention", "similarity", "norm", "depth", "ssdc"],
    )  # fmt: skip
    figure = plots.variant_curves(rows, ["ape"])
    assert [len(axis.lines) for axis in figure.axes] == [4, 4]
    assert len({line.get_linestyle() for line in figure.axes[0].lines}) == 4
    assert figure.axes[0].lines[0].get_ydata().tolist() == pytest.approx([0, 0.1, 0.2])


def test_maps_leave_the_patch_itself_blank():
    maps = {"ape": np.arange(18.0).reshape(2, 3, 3), "rope": np.ones((2, 3, 3)).cumsum(axis=2)}
    figure = plots.similarity_maps(maps, 4)
    shown = figure.axes[0].images[0].get_array()
    assert np.ma.getmaskarray(shown).sum() == 1
    assert shown[0, 0] < 0 < shown[2, 2]
    assert [axis.get_title() for axis in figure.axes[:2]] == ["depth 0", "depth 1"]


def test_paths_follow_training_whatever_the_order_of_the_rows():
    rows = pd.DataFrame(
        [("ape", 1, 9, 0.6, 0.3), ("ape", 1, 1, 0.1, 0.0), ("ape", 1, 3, 0.4, 0.2)],
        columns=["condition", "seed", "step", "clean_accuracy", "fragility"],
    )
    (axis,) = plots.training_paths(rows, 0.5).axes
    path, end, level = axis.lines
    assert path.get_xydata().tolist() == [[0.1, 0.0], [0.4, 0.2], [0.6, 0.3]]
    assert end.get_xydata().tolist() == [[0.6, 0.3]]
    assert list(level.get_xdata()) == [0.5, 0.5]


def heads(protocols=("baseline", "modern"), seeds=2):
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        [(p, s, d, h, rng.uniform(0, 0.4), rng.random())
         for p in protocols for s in range(seeds) for d in range(3) for h in range(2)],
        columns=["protocol", "seed", "depth", "head", "mad", "entropy"],
    )  # fmt: skip


def test_every_head_of_every_run_stands_in_the_plane():
    rows = heads()
    figure = plots.mad_entropy_plane(rows, {"baseline": 0.42, "modern": 0.42})
    for axis, protocol in zip(figure.axes, ("baseline", "modern"), strict=False):
        points = np.concatenate([np.asarray(c.get_offsets()) for c in axis.collections])
        wanted = rows.loc[rows["protocol"] == protocol, ["mad", "entropy"]].to_numpy()
        assert points == pytest.approx(wanted)
        assert axis.lines[0].get_xydata().tolist() == [[0.42, 1]]
    depth = figure.axes[0].collections[0].get_array().tolist()
    assert depth == rows[:6]["depth"].tolist()


def test_protocol_dots_draw_every_run_and_the_published_bounds():
    runs = pd.DataFrame([("modern", 1, 0.1), ("modern", 2, 0.2), ("baseline", 1, 0.3)],
                        columns=["protocol", "seed", "min_mad"])  # fmt: skip
    axis = plots.protocol_dots(runs, {"min_mad": "minimum MAD"}, {"min_mad": [0.02, 0.21]}).axes[0]
    dots = {tuple(line.get_ydata()): line for line in axis.lines if line.get_marker() != "None"}
    assert dots[0,].get_xdata().tolist() == [0.3]
    assert dots[1, 1].get_xdata().tolist() == [0.1, 0.2]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["baseline", "modern"]
    dashed = [line.get_xdata()[0] for line in axis.lines if line.get_linestyle() == "--"]
    assert dashed == [0.02, 0.21]


def test_anchoring_is_drawn_against_fragility_for_every_source():
    ours = pd.DataFrame({"condition": ["ape", "ape", "rope"], "recovery": [0.5, 0.6, 0.1],
                         "fragility": [0.3, 0.2, 0.4]})  # fmt: skip
    figure = plots.anchoring_scatter({"ours": ours, "published": ours[2:]})
    drawn = [{line.get_color(): line.get_xydata().tolist() for line in axis.lines}
             for axis in figure.axes]  # fmt: skip
    rope = {plots.COLOURS["rope"]: [[0.1, 0.4]]}
    assert drawn == [{plots.COLOURS["ape"]: [[0.5, 0.3], [0.6, 0.2]]} | rope, rope]
    assert [axis.get_title() for axis in figure.axes] == ["ours", "published"]


def test_conditions_and_protocols_have_a_colour_and_a_marker_each():
    assert {*CONDITIONS, *EXTENSIONS} <= {*plots.COLOURS}
    assert {*PROTOCOLS} <= {*plots.COLOURS} == {*plots.MARKERS}
    looks = [(plots.COLOURS[p], plots.MARKERS[p]) for p in PROTOCOLS]
    assert len({*looks}) == len(PROTOCOLS) == len({c for c, _ in looks})
    runs = pd.DataFrame({"protocol": ["+ls", "-ls"], "seed": 1, "x": [0.1, 0.2], "y": [1.0, 2.0]})
    figure = plots.protocol_scatter(runs, ("x", "ex"), {"y": "why"})
    found = {line.get_color(): line.get_xydata().tolist() for line in figure.axes[0].lines}
    assert found == {plots.COLOURS["+ls"]: [[0.1, 1]], plots.COLOURS["-ls"]: [[0.2, 2]]}
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["+ls", "-ls"]


def test_training_is_drawn_by_protocol_too():
    rows = pd.DataFrame({"protocol": ["modern"] * 2, "condition": "ape", "seed": 1,
                         "step": [1, 10], "x": [0.2, 0.3]})  # fmt: skip
    figure = plots.along_training(rows, {"x": "ex"}, by="protocol")
    (line,) = figure.axes[0].lines
    assert line.get_color() == plots.COLOURS["modern"]
    assert line.get_ydata().tolist() == [0.2, 0.3]


def test_attention_lies_under_its_outlined_query():
    images = torch.zeros(2, 3, 16, 32, dtype=torch.uint8)
    maps = np.random.default_rng(0).random((2, 2, 4))
    figure = plots.attention_over_images(images, {"one": maps}, query=6)
    shown = figure.axes[3].images[0]
    assert shown.get_array().tolist() == maps[1].tolist()
    assert tuple(shown.get_extent()) == (0, 32, 16, 0)
    for axis in figure.axes:
        (outline,) = axis.patches
        assert (outline.get_xy(), outline.get_width(), outline.get_height()) == ((16, 8), 8, 8)


def test_models_are_drawn_with_the_look_of_their_condition_or_one_of_their_own():
    rows = pd.DataFrame(
        [(m, i, d, 0.1 * d) for m in ("ape", "mine") for i in ("none", "rpi") for d in (0, 1, 2)],
        columns=["model", "intervention", "depth", "ssdc"],
    )
    figure = plots.probe_curves(rows, {"ape": 0.01, "mine": 0.02})
    for axis in figure.axes:
        assert [line.get_color() for line in axis.lines] == [plots.COLOURS["ape"], "#d55e00"]
        assert axis.lines[1].get_xydata().tolist() == pytest.approx(
            np.array([[0, 0], [0.5, 0.1], [1, 0.2]])
        )
    band = figure.axes[1].patches[0]
    assert (band.get_y(), band.get_height()) == pytest.approx((-0.04, 0.08))
    scaling = pd.DataFrame({"model": "mine", "kind": ["table", "table", "bias", "bias"],
                            "factor": [0.0, 1.0] * 2, "delta_ssdc": [0, 1, 2, 3],
                            "recovery": [4, 5, 6, 7]})  # fmt: skip
    axes = plots.scaling_curves(scaling).axes
    found = {line.get_label(): line.get_ydata().tolist() for line in axes[1].lines}
    assert found == {"mine: table": [4, 5], "mine: bias": [6, 7]}
