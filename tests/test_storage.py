import os
import threading
import time

import pytest

from pe_utils.storage import alone, write_atomically


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "table.csv"
    write_atomically(path, "old\n")

    def full(_file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: .*table\.csv was not written"):
        write_atomically(path, "new\n")
    assert [p.name for p in tmp_path.iterdir()] == ["table.csv"]
    assert path.read_bytes() == b"old\n"


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"file/table\.csv was not written"):
        write_atomically(tmp_path / "file" / "table.csv", b"new")


def test_a_lock_is_held_by_one_at_a_time(tmp_path):
    seen = []

    def work(name):
        with alone(tmp_path / "deep" / "lock"):
            seen.append(name)
            time.sleep(0.05)
            seen.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen[::2] == seen[1::2]
