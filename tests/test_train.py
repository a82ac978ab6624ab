import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

from pe_utils import results
from pe_utils.config import preset_config
from pe_utils.data import Split, load
from pe_utils.evaluate import accuracy
from pe_utils.models import build_vit
from pe_utils.train import TrainingRun, finished, load_model, load_snapshots, train, trained_model

PHOTOS = load("photos", (32, 32))


def start(*options: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "pe_utils.train", "--preset", "smoke", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_killed_run_resumes_to_the_bits_of_an_unbroken_one(home, monkeypatch):
    config = preset_config("smoke", "rpt", 1, epochs=20)
    process = start("--condition", "rpt", "--seed", "1", "--set", "epochs=20", "--jobs", "1")
    deadline = time.monotonic() + 120
    while not (config.run_dir / "checkpoint.pt").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert (config.run_dir / "checkpoint.pt").exists()
    assert not config.weights_path.exists()
    train(config, PHOTOS)
    resumed = load_file(config.weights_path)
    log = results.read("training", [config])

    monkeypatch.setenv("PE_HOME", str(home / "unbroken"))
    train(config, PHOTOS)
    unbroken = load_file(config.weights_path)
    assert resumed.keys() == unbroken.keys()
    assert all(torch.equal(resumed[name], unbroken[name]) for name in unbroken)
    columns = ["epoch", "step", "loss", "held_out_accuracy"]
    assert log[columns].equals(results.read("training", [config])[columns])


@pytest.mark.parametrize("protocol", ["baseline", "modern"])
def test_a_run_cut_in_the_middle_of_an_epoch_draws_the_same(home, tiny, monkeypatch, protocol):
    config = tiny("rpt", dropout=0.15, drop_path=0.2, protocol=protocol)
    torch.manual_seed(1)
    train(config, PHOTOS)
    unbroken = load_file(config.weights_path)
    monkeypatch.setenv("PE_HOME", str(home / "broken"))
    torch.manual_seed(2)
    run = TrainingRun(config, PHOTOS, Accelerator(cpu=True))
    for _ in range(run.steps_per_epoch // 2):
        run.losses.append(run.one_step())
        run.step += 1
    run._save()
    train(config, PHOTOS)
    resumed = load_file(config.weights_path)
    assert all(torch.equal(resumed[name], unbroken[name]) for name in unbroken)


def test_a_run_cut_between_its_weights_and_its_table_is_not_finished(home, tiny):
    config = tiny("ape")
    run = TrainingRun(config, PHOTOS, Accelerator(cpu=True))
    run._save()
    train(config, PHOTOS)
    table = results.folder("smoke") / "training.csv"
    rows = table.read_text()
    run.step, run.losses, run.log = 0, [], []
    run._save()  # as if the kill had come before the last step: the checkpoint's removal
    table.unlink()
    assert not finished(config)
    trained_model(config, PHOTOS)
    assert finished(config)
    assert len(table.read_text().splitlines()) == len(rows.splitlines())


def test_two_devices_train_one_run_as_one_device_does(home, monkeypatch):
    options = ("-m", "pe_utils.train", "--preset", "smoke", "--condition", "rpt", "rope",
               "--set", "precision=float32", "batch_size=60")  # fmt: skip
    configs = [preset_config("smoke", c, 0, precision="float32", batch_size=60)
               for c in ("rpt", "rope")]  # fmt: skip
    launch = (sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2",
              "--main_process_port", "0")  # fmt: skip
    shared = subprocess.run([*launch, *options], capture_output=True, text=True)
    assert shared.returncode == 0, shared.stderr[-2000:]
    assert shared.stderr.count("epoch 2/2") == 2  # one process reports
    both = results.read("training", configs)
    monkeypatch.setenv("PE_HOME", str(home / "alone"))
    for config in configs:
        train(config, PHOTOS)
    alone = results.read("training", configs)
    np.testing.assert_allclose(both["loss"], alone["loss"], atol=1e-4)
    np.testing.assert_allclose(both["held_out_accuracy"], alone["held_out_accuracy"], atol=1 / 60)


def test_the_papers_settings_run_for_a_few_steps_on_photographs(home):
    """Preset paper at 224 px with a narrow model: dropout, stochastic depth, resized crops."""
    small = dict(dataset="photos", num_classes=6, embed_dim=32, depth=2, num_heads=2, epochs=1)
    config = preset_config("paper", "rope", 0, **small, batch_size=270)
    photos = load("photos", (224, 224))
    train(config, photos)
    assert results.read("training", [config])["step"].tolist() == [2]
    assert 0 <= accuracy(load_model(config), photos.test.images, photos.test.labels) <= 1


def test_devices_that_cannot_share_a_batch_say_so(home, tiny, monkeypatch):
    monkeypatch.setattr(Accelerator, "num_processes", 3)
    with pytest.raises(ValueError, match="3 processes cannot share a batch of 64 equally"):
        train(tiny(), PHOTOS)


def test_two_processes_asked_for_one_run_train_it_once(home):
    options = ("--condition", "ape", "--set", "epochs=10", "--jobs", "1")
    first, second = start(*options), start(*options)
    lines = "".join(process.communicate()[0] for process in (first, second)).splitlines()
    assert (first.returncode, second.returncode) == (0, 0)
    assert len([line for line in lines if " epoch 10/10" in line]) == 1


def test_the_command_runs_what_is_missing_and_repeats_nothing(home):
    options = ("--condition", "ape", "untrained_ablated", "--seed", "0", "1", "--set", "epochs=1")
    bad = start(*options)
    assert "untrained_ablated: epochs must be 0, not 1" in bad.communicate()[0]
    assert bad.returncode == 2
    bad = start("--set", "init")
    assert "--set takes FIELD=VALUE, not 'init'" in bad.communicate()[0]
    options = ("--condition", "ape", "untrained_ablated", "--seed", "0", "1")
    assert start(*options).communicate()[0].count("epoch 2/2") == 2
    before = {p: p.stat().st_mtime_ns for p in home.glob("weights/smoke/*")}
    assert len(before) == 4
    assert start(*options).communicate()[0] == ""
    assert {p: p.stat().st_mtime_ns for p in home.glob("weights/smoke/*")} == before


def test_the_command_trains_protocols_and_other_values_side_by_side(home):
    options = ("--condition", "ape", "--protocol=-aa", "--protocol", "+ls", "modern", "+ls",
               "--set", "init=timm", "--set", "lr=2e-3")  # fmt: skip
    assert start(*options).communicate()[0].count("epoch 2/2") == 3
    configs = [preset_config("smoke", "ape", 0, protocol=p, init="timm", lr=0.002)
               for p in ("-aa", "+ls", "modern")]  # fmt: skip
    assert all(finished(config) for config in configs)
    log = results.read("training", configs)
    assert log["protocol"].drop_duplicates().tolist() == ["+ls", "-aa", "modern"]
    assert {*log["init"]} == {"timm"}


def test_a_protocol_without_conditions_is_that_of_all_that_are_trained(home):
    process = start("--jobs", "1", "--protocol=+ls", "--set", "epochs=1")
    said = process.communicate()[0]
    assert process.returncode == 0, said
    log = results.read("training", [preset_config("smoke", "ape", 0, protocol="+ls", epochs=1)])
    assert len(log) == 1
    assert not list((home / "weights" / "smoke").glob("untrained*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "seed=1"), "--set seed: use the option --seed"),
        (("--set", "lr=fast"), "lr must be a number, not 'fast'"),
        (("--set", "dropout=null"), "dropout must be a number, not None"),
        (("--set", "image_size=64"), "image_size must be (height, width), not 64"),
        (("--set", "num_classes=5"), "has 6 classes but num_classes is 5"),
        (("--set", "nonsense=1"), "a run has no field ['nonsense']"),
        (("--jobs", "0"), "--jobs must be at least 1, not 0"),
        (("--condition", "untrained_ablated", "--protocol", "modern"), "has no training, so no"),
    ],
)
def test_options_that_make_no_sense_are_a_line_and_no_traceback(home, options, message):
    process = start("--jobs", "1", "--condition", "ape", *options)
    said = process.communicate()[0]
    assert process.returncode == 2
    assert message in said
    assert "Traceback" not in said


def test_a_finished_run_is_its_float16_weights(home, tiny):
    config = tiny("spe", epochs=2)
    model = trained_model(config, PHOTOS)
    stored = load_file(config.weights_path)
    assert {w.dtype for w in stored.values()} == {torch.float16}
    assert not model.training
    weights = dict(model.named_parameters())
    assert all(torch.equal(weights[name], stored[name].float()) for name in weights)
    assert len(list((config.run_dir / "snapshots").iterdir())) > 5
    assert not (config.run_dir / "checkpoint.pt").exists()
    assert len((config.run_dir / "log.csv").read_text().splitlines()) == 3
    record = results.weights_record(config)
    assert record["digest"] == PHOTOS.digest
    assert record["config"]["condition"] == "spe"


def test_training_learns_the_photographs(home):
    config = preset_config("smoke", "ape", 0, epochs=6)
    images, labels = PHOTOS.held_out.images, PHOTOS.held_out.labels
    assert accuracy(build_vit(config).eval(), images, labels) < 0.35  # chance is 0.17
    assert accuracy(trained_model(config, PHOTOS), images, labels) > 0.5


def test_the_untrained_model_is_the_initialisation(home, tiny):
    config = tiny("untrained_ablated")
    model, fresh = trained_model(config, PHOTOS), build_vit(config)
    for a, b in zip(model.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(a, b.half().float())


def test_rpt_is_ape_trained_in_random_orders(home, tiny):
    ape, rpt = tiny("ape"), tiny("rpt")
    weights = [load_file(c.weights_path) for c in (ape, rpt) if trained_model(c, PHOTOS)]
    assert weights[0].keys() == weights[1].keys()
    assert not torch.equal(weights[0]["head.weight"], weights[1]["head.weight"])


def test_runs_on_other_data_are_refused(home, tiny):
    config = tiny("ablated")
    other = replace(PHOTOS, digest="0123")
    with pytest.raises(FileNotFoundError, match="no weights of ablated-seed0"):
        load_model(config)
    train(config, PHOTOS)
    with pytest.raises(ValueError, match="was trained on data skimage-photos, not 0123"):
        trained_model(config, other)
    with pytest.raises(ValueError, match="5 classes but num_classes is 6"):
        train(tiny("ape"), replace(PHOTOS, classes=PHOTOS.classes[:5]))
    small = Split(PHOTOS.train.images[..., :16], PHOTOS.train.labels)
    with pytest.raises(ValueError, match=r"images are \(32, 16\), not \(32, 32\)"):
        train(tiny("ape"), replace(PHOTOS, train=small))


def test_weights_of_another_run_are_refused(home, tiny):
    a, b = tiny("ape", seed=0), tiny("ape", seed=1)
    train(a, PHOTOS)
    b.weights_path.write_bytes(a.weights_path.read_bytes())
    with pytest.raises(ValueError, match=r"holds run ape-seed0-.*, not ape-seed1"):
        load_model(b)


def test_snapshots_come_in_the_order_of_training_and_end_at_the_model(home, tiny):
    config = tiny("ape", epochs=2)
    with pytest.raises(
        FileNotFoundError, match=f"no snapshots of {config.run_id}.*which trains again"
    ):
        next(load_snapshots(config))
    train(config, PHOTOS)
    found = list(load_snapshots(config))
    steps = [step for step, _ in found]
    assert steps == sorted({*steps})
    assert steps[0] == 1
    final = load_model(config).state_dict()
    assert all(torch.equal(value, final[name]) for name, value in found[-1][1].state_dict().items())
    assert not torch.equal(found[0][1].pos_embed, final["pos_embed"])
    assert not any(model.training for _, model in found)
