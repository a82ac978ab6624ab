"""Run a module on free GPUs: `python -m pe_utils.launch N MODULE ARGUMENTS` (N = 0: no GPU).

A cluster gives a job its own devices. On a plain machine nobody does: there a job takes the first N
that are free, with a file lock each, which the kernel drops when the process ends, however it ends.
"""

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def visible_gpus() -> list[str]:
    """The ids in CUDA_VISIBLE_DEVICES, else those that nvidia-smi lists."""
    ids = os.environ.get("CUDA_VISIBLE_DEVICES")
    if ids is None:
        query = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
        try:
            ids = subprocess.run(query, check=True, capture_output=True, text=True).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"a GPU was asked for, but nvidia-smi lists none ({error})")
    return [gpu for gpu in ids.replace("\n", ",").replace(" ", "").split(",") if gpu]


def claim(n: int, gpus: list[str]) -> list[str]:
    """Lock the first n free GPUs for this process and what it becomes.

    Raises: SystemExit: fewer are free; names them.
    """
    folder = Path(tempfile.gettempdir()) / f"pe_utils-gpus-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    mine = []
    for gpu in gpus:
        lock = os.open(folder / gpu.replace("/", "_"), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        os.set_inheritable(lock, True)  # the lock outlives the exec
        mine.append(gpu)
        if len(mine) == n:
            return mine
    sys.exit(f"{n} GPU(s) wanted, free are {mine or 'none'} of {gpus or 'none'}")


def main() -> None:
    if len(sys.argv) < 3 or not sys.argv[1].isdigit():
        sys.exit(__doc__)
    n, module = int(sys.argv[1]), sys.argv[2:]
    if n:
        gpus = visible_gpus()
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus if len(gpus) == n else claim(n, gpus))
    os.execv(sys.executable, [sys.executable, "-m", *module])


if __name__ == "__main__":
    main()
