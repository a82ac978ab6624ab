import os
import subprocess
import sys
import time

import pytest

SHOW = "import os, time; print(os.environ.get('CUDA_VISIBLE_DEVICES'), flush=True); time.sleep({})"


@pytest.fixture
def show(tmp_path, monkeypatch):
    """Start the launcher on a module that prints its devices and stays for some seconds."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "show.py").write_text("import sys\nexec(sys.argv[1])\n")

    def start(n, gpus, seconds=0.0):
        env = os.environ | {"PYTHONPATH": str(tmp_path)}
        env.pop("CUDA_VISIBLE_DEVICES", None)
        if gpus is not None:
            env["CUDA_VISIBLE_DEVICES"] = gpus
        command = [sys.executable, "-m", "pe_utils.launch", str(n), "show", SHOW.format(seconds)]
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True)  # fmt: skip

    return start


def test_without_a_gpu_the_module_simply_runs(show):
    assert show(0, None).communicate()[0] == "None\n"


def test_each_job_gets_a_gpu_of_its_own_until_it_ends(show):
    first, second = show(1, "4,7", 20), show(1, "4,7", 20)
    taken = {first.stdout.readline().strip(), second.stdout.readline().strip()}
    assert taken == {"4", "7"}
    third = show(1, "4,7")
    assert "1 GPU(s) wanted, free are none of ['4', '7']" in third.communicate()[1]
    assert third.returncode == 1
    first.kill()  # however it ends, its lock is gone
    first.communicate()
    deadline = time.monotonic() + 10
    while (out := show(1, "4,7").communicate()[0]) == "" and time.monotonic() < deadline:
        pass
    assert out.strip() in taken
    second.kill()
    second.communicate()


def test_a_cluster_that_chose_already_is_left_alone(show):
    holder = show(1, "3,5", 20)
    assert holder.stdout.readline() == "3\n"
    assert show(1, "3").communicate()[0] == "3\n"  # as many as asked for: given by the cluster
    holder.kill()
    holder.communicate()


def test_a_gpu_that_is_not_there_is_one_clear_line(show):
    done = show(1, None)
    message = done.communicate()[1]
    assert done.returncode == 1
    assert "a GPU was asked for, but nvidia-smi lists none" in message
    assert "Traceback" not in message
