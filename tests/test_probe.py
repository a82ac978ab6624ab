import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from pe_utils.evaluate import prepared, ssdc_by_depth
from pe_utils.metrics import random_orders
from pe_utils.probe import main, measured, open_model, probe, read_images

NAME = "test_vit"  # timm's smallest: 160 px, patch 16


def run(*arguments, **env):
    command = [sys.executable, "-m", "pe_utils.probe", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=env or None)


def write_folder(root, classes, n=2):
    rng = np.random.default_rng(0)
    for name in classes:
        (root / name).mkdir(parents=True)
        for i in range(n):
            pixels = rng.integers(0, 256, (60, 90, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


def test_weights_are_random_unless_asked_and_the_seed_decides():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    (a, what), (b, _), (c, other) = (open_model(NAME, seed=s) for s in (0, 0, 1))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(a.head.weight, b.head.weight)
    assert not torch.equal(a.head.weight, c.head.weight)
    assert (what, other) == ("random weights (seed 0)", "random weights (seed 1)")
    assert not a.training


@pytest.mark.parametrize("kind", ["safetensors", "pth"])
def test_a_local_checkpoint_in_timms_own_format_is_loaded(tmp_path, kind):
    source = timm.create_model(NAME)
    path = tmp_path / f"mine.{kind}"
    if kind == "pth":
        torch.save({"state_dict": source.state_dict()}, path)
    else:
        save_file(source.state_dict(), path)
    model, what = open_model(NAME, checkpoint=path)
    assert all(map(torch.equal, model.state_dict().values(), source.state_dict().values()))
    assert what == f"weights of mine.{kind}"


class Hostile:
    def __reduce__(self):
        return print, ("executed",)


def test_a_model_of_other_classes_and_size_is_opened_as_timm_takes_it(tmp_path, capsys):
    model = timm.create_model(NAME, num_classes=7, img_size=96)
    torch.save(model.state_dict(), tmp_path / "mine.pth")
    options = [NAME, "--checkpoint", str(tmp_path / "mine.pth"), "--out", str(tmp_path / "out"),
               "--n-images", "2", "--orders", "2"]  # fmt: skip
    assert main(options) == 1
    line = capsys.readouterr().err
    assert "mine.pth does not fit VisionTransformer" in line
    assert "--model-kwargs num_classes=10 img_size=96" in line
    assert main([*options, "--model-kwargs", "num_classes=7", "img_size=96"]) == 0
    assert (pd.read_csv(tmp_path / "out" / "ssdc.csv")["grid"] == "6 x 6").all()


def test_a_name_nearly_right_is_corrected():
    with pytest.raises(
        ValueError, match=r"timm cannot make 'test_vitt': .*did you mean test_vit2?\?"
    ):
        open_model("test_vitt")


def test_a_checkpoint_that_does_not_fit_or_executes_code_is_refused(tmp_path, capsys):
    path = tmp_path / "other.pth"
    torch.save({"state_dict": timm.create_model("test_vit2").state_dict()}, path)
    with pytest.raises(ValueError, match=r"other.pth does not fit VisionTransformer"):
        open_model(NAME, checkpoint=path)
    torch.save({"state_dict": Hostile()}, path)
    with pytest.raises(ValueError, match=r"other.pth cannot be read as weights .* blocked"):
        open_model(NAME, checkpoint=path)
    assert "executed" not in capsys.readouterr().out
    with pytest.raises(ValueError, match="no checkpoint"):
        open_model(NAME, checkpoint=tmp_path / "absent.pth")
    with pytest.raises(ValueError, match="pretrained or a checkpoint, not both"):
        open_model(NAME, pretrained=True, checkpoint=path)
    with pytest.raises(ValueError, match=r"timm cannot make 'vit_nonsense'"):
        open_model("vit_nonsense")
    with pytest.raises(ValueError, match="mannes2026 needs a checkpoint"):
        open_model("mannes2026")


def test_weights_that_cannot_be_fetched_say_what_was_expected_where(tmp_path):
    env = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub"), "PATH": ""}
    done = run(NAME, "--pretrained", "--out", tmp_path / "out", **env)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()[-1:]
    assert line.startswith(f"{NAME}: {NAME} could not be fetched")
    assert "model.safetensors of timm/test_vit.r160_in1k" in line
    assert str(tmp_path / "hub") in line
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "out").iterdir())


def test_images_come_at_the_models_size_and_labels_only_where_classes_match(tmp_path):
    model, _ = open_model(NAME)
    images, labels, what = read_images("photos", model, 5)
    assert images.shape == (5, 3, 160, 160)
    assert images.dtype == torch.uint8
    assert labels is None
    assert "not of the model's classes" in what
    root = write_folder(tmp_path / "two", ("a", "b"))
    assert read_images(str(root), model, 4)[1] is None
    two = timm.create_model(NAME, num_classes=2).eval()
    images, labels, what = read_images(str(root), two, 4)
    assert labels.tolist() == [0, 0, 1, 1]
    assert images.shape == (4, 3, 160, 160)
    assert what == f"4 images of {root}, of 2 classes"
    assert read_images(str(root), two, 2)[1].tolist() == [0, 1]  # spread over the files


def test_folders_that_cannot_be_read_are_named(tmp_path):
    model, _ = open_model(NAME)
    with pytest.raises(ValueError, match=r"absent is no folder; name one, or one of cifar10_jpeg"):
        read_images(str(tmp_path / "absent"), model, 1)
    with pytest.raises(ValueError, match=r"has no images \(.bmp, .jpeg"):
        read_images(str(tmp_path), model, 1)
    root = write_folder(tmp_path / "broken", ("a",))
    (root / "a" / "0.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"0.png cannot be read as an image"):
        read_images(str(root), model, 1)


def test_all_measurements_of_a_model_with_a_table_and_labels(tmp_path):
    model = timm.create_model(NAME, num_classes=2).eval()
    torch.nn.init.normal_(model.pos_embed, std=1.0)
    images, _, _ = read_images("photos", model, 4)
    with torch.inference_mode():
        labels = model(prepared(images, model)).argmax(dim=1)
    orders = random_orders(100, 2, 0)
    tables = probe(model, images, labels, orders)
    assert {n: len(t) for n, t in tables.items()} == {
        "ssdc": 2 * 3 * 6, "attention": 6 * 2, "scaling": 5, "fragility": 2,
    }  # fmt: skip
    clean = tables["ssdc"].query("intervention == 'none'").reset_index(drop=True)
    assert clean.drop(columns="intervention").equals(ssdc_by_depth(model, images))
    assert (tables["fragility"]["clean_accuracy"] == 1).all()
    scaling = tables["scaling"].set_index("factor")
    rpi = tables["ssdc"].query("intervention == 'rpi' and site == 'attn_input'")["ssdc"]
    assert scaling.loc[1.0, "recovery"] == pytest.approx(rpi.iloc[1:].mean())
    assert scaling.loc[1.0, "delta_ssdc"] == pytest.approx(rpi.iloc[1] - rpi.iloc[0])
    assert set(scaling["kind"]) == {"table"}
    assert probe(model, images, None, orders)["fragility"].empty


def test_the_normalisation_is_the_models_own():
    model, _ = open_model(NAME)
    images, _, _ = read_images("photos", model, 2)
    before = ssdc_by_depth(model, images)
    model.pretrained_cfg = model.pretrained_cfg | {"mean": (0.1, 0.2, 0.3)}
    assert not ssdc_by_depth(model, images).equals(before)


def test_every_kind_of_position_is_scaled_under_its_own_name():
    model = timm.create_model("vit_small_patch16_rope_ape_224", embed_dim=48, depth=2, num_heads=2,
                              img_size=64).eval()  # fmt: skip
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    tables = measured(model, "mine", "random", images, None, 2)
    assert tables["scaling"]["kind"].value_counts().to_dict() == {"table": 5, "rotary": 5}
    assert tables["ssdc"].columns.tolist()[:3] == ["model", "weights", "grid"]
    assert set(tables["attention"]["grid"]) == {"4 x 4"}


def test_the_command_writes_tables_and_figures_of_several_models(tmp_path, capsys):
    out = tmp_path / "out"
    options = ["--n-images", "2", "--orders", "2", "--out", str(out)]
    assert main([NAME, "test_vit2", *options]) == 0
    names = ("ssdc", "attention", "scaling", "fragility")
    tables = {name: pd.read_csv(out / f"{name}.csv") for name in names}
    assert set(tables["ssdc"]["model"]) == {NAME, "test_vit2"}
    assert set(tables["ssdc"]["weights"]) == {"random weights (seed 0)"}
    assert np.isfinite(tables["ssdc"]["ssdc"]).all()
    assert {p.name for p in out.glob("*.png")} == {"ssdc.png", "attention.png", "scaling.png"}
    shown = capsys.readouterr().out
    assert f"{NAME}: random weights (seed 0); 2 images of photos" in shown


def test_models_that_cannot_be_probed_are_a_line_each_and_the_rest_still_runs(tmp_path, capsys):
    out = tmp_path / "out"
    refused = ["resnet18", "levit_128", "mixer_s32_224", "pit_ti_224", "xcit_nano_12_p16_224"]
    options = ["--n-images", "2", "--orders", "2", "--out", str(out)]
    assert main([*refused[:2], NAME, NAME, *refused[2:], "hf-hub:timm/nonsense", *options]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert [line.split(": ")[0] for line in lines] == [*refused, "hf-hub:timm/nonsense"]
    assert lines[0].startswith("resnet18: ResNet cannot be probed")
    assert "a convolutional network" in lines[0]
    assert set(pd.read_csv(out / "ssdc.csv")["model"]) == {NAME}
    assert len(pd.read_csv(out / "ssdc.csv")) == 2 * 3 * 6  # named twice, measured once


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--n-images", "0"], "--n-images and --orders must be at least 1, --order-"),
        (["--orders", "-1"], "--n-images and --orders must be at least 1, --order-"),
        (["--checkpoint", "x", "test_vit2"], "--checkpoint takes one model"),
        (["--out", __file__], "cannot be a folder: [Errno 17] File exists"),
        (["--out", f"{__file__}/sub"], "cannot be a folder: [Errno 20] Not a directory"),
        (["--order-seed", "-1"], "--order-seed at least 0"),
    ],
)
def test_options_that_make_no_sense_stop_before_any_work(options, message, tmp_path, capsys):
    models = [NAME, *(o for o in options if o == "test_vit2")]
    options = [o for o in options if o != "test_vit2"]
    with pytest.raises(SystemExit):
        main([*models, "--out", str(tmp_path), *options])
    assert message in capsys.readouterr().err


def test_a_data_set_that_is_not_there_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PE_DATA", str(tmp_path / "nowhere"))
    assert main([NAME, "--images", "cifar10_jpeg", "--out", str(tmp_path / "out")]) == 1
    assert f"{NAME}: no cifar10_jpeg images: looked for" in capsys.readouterr().err


def test_the_classes_are_those_of_the_data_set_not_of_the_sample(tmp_path):
    root = write_folder(tmp_path / "many", [f"c{i}" for i in range(6)])
    six = timm.create_model(NAME, num_classes=6).eval()
    assert read_images(str(root), six, 2)[1].tolist() == [0, 5]
    assert read_images("photos", six, 3)[1] is None  # as many classes, but not the same
