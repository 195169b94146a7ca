"""Disks that are full or read-only, and folders that vanish: one line, and the same command again ends well."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from defenses.checkpoints import FILE_NAME, read_provenance
from tests.torture.attempts import Setting, Tally, Victim, alone, call
from tests.torture.material import FILES, QUICK, RUN, Host, installed, table

SHORT = [*RUN[:4], "--attack", "fgsm", "--attack", "pgd(eps=0.1,steps=4)", "--tier", "strict", "--samples", "20"]
Result = Callable[[Path], object]


def attack(setting: Setting, tally: Tally) -> None:
    home = setting.folder
    setting.copy_checkpoints(home)
    disk = home / "disk"
    disk.mkdir()
    with Host(disk / "data"):
        commands = dict([*_commands().items()][: setting.amount(4, 2)])
        wanted = {}
        for name, (words, result) in commands.items():
            if alone(words, home, home / "log"):
                raise RuntimeError((home / "log").read_text())
            wanted[name] = result(disk)
        with _mounted(disk) as possible:
            pass
        if possible:
            _fill_a_small_disk(setting, commands, wanted, tally)
            _write_on_a_read_only_disk(setting, commands, tally)
        else:
            tally.skipped.append("small and read-only disks: this user may not mount any; files are limited instead")
        _limit_files(setting, commands, wanted, tally)
        _delete_under_way(setting, commands["run"], wanted["run"], tally)


def _commands() -> dict[str, tuple[list[str], Result]]:
    """What writes, and what it must end with in the folder ``disk``."""
    return {
        "train": (["train", "baseline", *QUICK, "--out", "disk/trained"], _weights),
        "run": ([*SHORT, "--keep-images", "--out", "disk/run"], _rows),
        "data fetch": (["data", "fetch", "toy"], lambda disk: installed(disk / "data") == FILES),
        "report": (["report", "disk/run"], _rows),
    }


def _weights(disk: Path) -> object:
    return read_provenance(disk / "trained" / FILE_NAME).weights_sha256


def _rows(disk: Path) -> object:
    return table(disk / "run").to_csv()


def _empty(disk: Path) -> None:
    for path in disk.iterdir():
        shutil.rmtree(path)


@contextmanager
def _mounted(disk: Path) -> Iterator[bool]:
    """A disk of its own in memory; False where this user may not mount one."""
    words = ["mount", "-t", "tmpfs", "-o", "size=20m", "none", str(disk)]
    done = shutil.which("mount") is not None and subprocess.run(words, capture_output=True).returncode == 0
    try:
        yield done
    finally:
        if done:
            subprocess.run(["umount", str(disk)], check=True)


def _remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)


def _fill_a_small_disk(
    setting: Setting, commands: dict[str, tuple[list[str], Result]], wanted: dict[str, object], tally: Tally
) -> None:
    """Disks of many sizes: where one is too small the command fails in a line; with room it ends as usual."""
    home, disk = setting.folder, setting.folder / "disk"
    for name, (words, result) in commands.items():
        for pages in setting.draws.sample(range(1, 60), setting.amount(6, 1)):
            with _mounted(disk):
                if name == "report":
                    alone(commands["run"][0], home, home / "log")
                    for path in (disk / "run").glob("table.*"):
                        path.unlink()
                    pages = pages // 6 - (-_used(disk) // 4096)
                told = f"{name} on a disk of {4 * pages} kB"
                _remount(disk, f"size={4 * pages}k")
                _refused(told, words, home, tally, {0, 1, 2})
                _remount(disk, "size=20m")
                _repaired(told, words, result, wanted[name], home, tally)


def _used(disk: Path) -> int:
    found = os.statvfs(disk)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def _write_on_a_read_only_disk(setting: Setting, commands: dict[str, tuple[list[str], Result]], tally: Tally) -> None:
    home, disk = setting.folder, setting.folder / "disk"
    for allowed in ({1, 2}, {0, 1, 2}):  # empty, and with everything finished
        with _mounted(disk):
            if 0 in allowed:
                for words, _ in commands.values():
                    alone(words, home, home / "log")
            _remount(disk, "ro")
            for name, (words, _) in commands.items():
                _refused(f"{name} on a read-only disk", words, home, tally, allowed)


def _limit_files(
    setting: Setting, commands: dict[str, tuple[list[str], Result]], wanted: dict[str, object], tally: Tally
) -> None:
    """No file may be larger than some bytes, as on a disk that fills up while it is written."""
    home, disk = setting.folder, setting.folder / "disk"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for name, (words, result) in commands.items():
        if name == "report":  # writes nothing where there is no run
            continue
        for size in (0, 100, 3000, 20_000)[: setting.amount(4, 1)]:
            _empty(disk)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
            victim = Victim(words, home, Path("/dev/null"))
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            tally.tried += 1
            code = victim.wait()
            if code not in (0, 1, 2):
                tally.wrong.append(f"{name} with files of at most {size} bytes: exit code {code}")
            _repaired(f"{name} with files of at most {size} bytes", words, result, wanted[name], home, tally)


def _delete_under_way(setting: Setting, command: tuple[list[str], Result], wanted: object, tally: Tally) -> None:
    """The folder of a run vanishes while the run is at work."""
    home, disk = setting.folder, setting.folder / "disk"
    words, result = command
    for _ in range(setting.amount(8, 1)):
        _empty(disk)
        (home / "log").unlink(missing_ok=True)
        victim = Victim(words, home, home / "log")
        while not (disk / "run" / "manifest.json").is_file() and time.monotonic() < victim.began + 30:
            time.sleep(0.001)
        time.sleep(setting.draws.uniform(0, 0.5))
        shutil.rmtree(disk / "run", ignore_errors=True)
        code = victim.wait()
        tally.tried += 1
        if code not in (0, 1, 2) or "Traceback" in victim.said:
            tally.wrong.append(f"folder deleted under way: exit code {code}: {victim.said[-400:]}")
        shutil.rmtree(disk / "run", ignore_errors=True)
        _repaired("folder deleted under way", words, result, wanted, home, tally)


def _refused(told: str, words: list[str], home: Path, tally: Tally, allowed: set[int]) -> None:
    answer = call(words, home)
    tally.tried += 1
    if answer.traceback or answer.code not in allowed:
        tally.wrong.append(f"{told}: exit code {answer.code}: {answer.last}")
    elif answer.code and not answer.last.startswith("adp-bench: "):
        tally.wrong.append(f"{told}: {answer.last}")


def _repaired(told: str, words: list[str], result: Result, wanted: object, home: Path, tally: Tally) -> None:
    """With room again, the same command ends with what it should."""
    answer = call(words, home)
    if answer.code:
        tally.lost.append(f"{told}, then with room: exit code {answer.code}: {answer.last}")
    elif result(home / "disk") != wanted:
        tally.wrong.append(f"{told}, then with room: another result")
