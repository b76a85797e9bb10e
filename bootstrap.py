#!/usr/bin/env python3
"""Set Coterie up in this folder and run it; needs nothing but Python 3.11, 3.12 or 3.13.

python3 bootstrap.py run [ARGS]        install, then `coterie run ARGS` (without ARGS: the quickstart)
python3 bootstrap.py test [ARGS]       install what tests need, then run the core tests (ARGS go to pytest)
python3 bootstrap.py test-full [ARGS]  the same with every test
python3 bootstrap.py install           only install what development and the tests need

The virtual environment is `.venv` beside this file. Packages come through plain pip, so pip's own
configuration (index, mirror, find-links, proxy) decides where from; versions are those of `constraints.txt`.
"""

# An interpreter that is too old must be able to read this file as far as the message that says so:
# keep the syntax plain.
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / "coterie-installed"
OLDEST, NEWEST = (3, 11), (3, 13)
MAX_WORKERS = 8


def fail(message):
    """Stop with one sentence and exit code 2."""
    print(f"bootstrap: {message}", file=sys.stderr)
    raise SystemExit(2)


def check_interpreter():
    """Stop unless the running Python is of a supported version and can create virtual environments."""
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        here = ".".join(str(part) for part in sys.version_info[:3])
        names = [f"python3.{minor}" for minor in range(NEWEST[1], OLDEST[1] - 1, -1)]
        found = [name for name in names if shutil.which(name)]
        remedy = f"run this again with {found[0]}" if found else "install one of them and use it here"
        fail(f"Coterie needs Python 3.11, 3.12 or 3.13 and this is Python {here}; {remedy}.")
    # Debian ships `venv` without `ensurepip`, and then `python -m venv` fails half-way.
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        fail(
            f"this Python lacks the module `{missing[0]}`, which creates virtual environments; "
            "install it (on Debian and Ubuntu the package python3-venv) and run this again."
        )


def environment_works():
    """Tell whether `.venv` holds a supported Python with pip."""
    probe = f"import sys, pip; sys.exit(not {OLDEST} <= sys.version_info[:2] <= {NEWEST})"
    return PYTHON.exists() and not subprocess.call([str(PYTHON), "-c", probe], stderr=subprocess.DEVNULL)


def create_environment():
    """Create `.venv`, or create it afresh when an earlier attempt was cut short."""
    if environment_works():
        return
    check_interpreter()
    if VENV.exists() and not (VENV / "pyvenv.cfg").exists():
        fail("`.venv` exists but is no virtual environment; move it away and run this again.")
    print(f"bootstrap: creating .venv with Python {sys.version.split()[0]}", flush=True)
    if subprocess.call([sys.executable, "-m", "venv", "--clear", str(VENV)]):
        fail("Python could not create `.venv` (its message is above).")


def fingerprint(target):
    """Digest what an installation of `target` depends on; it is repeated only when that changes."""
    parts = [target.encode(), str(ROOT).encode()]
    parts += [(ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def install(target):
    """Install Coterie (target ``.`` or ``.[dev]``) into `.venv`, unless that has been done already."""
    create_environment()
    done = STAMP.read_text(encoding="utf-8").split() if STAMP.exists() else []
    if fingerprint(target) in done:
        return
    print(f"bootstrap: installing coterie{target[1:]}, versions as in constraints.txt", flush=True)
    pip = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check"]
    pip += [] if sys.stdout.isatty() else ["--quiet"]
    if subprocess.call([*pip, "-c", "constraints.txt", "-e", target], cwd=str(ROOT)):
        fail(
            "pip could not install the packages (its message is above); on a machine without network, point "
            "pip at a mirror (PIP_INDEX_URL, PIP_FIND_LINKS or pip.conf) and run this again."
        )
    # The development installation contains the plain one, not the other way round.
    STAMP.write_text("\n".join(fingerprint(each) for each in sorted({target, "."})), encoding="utf-8")


def become(*command):
    """Run a module of the environment in place of this process, so that Ctrl-C and exit codes are its own."""
    os.chdir(str(ROOT))
    argv = [str(PYTHON), "-m", *command]
    if os.name != "nt":
        os.execv(argv[0], argv)
    return subprocess.call(argv)


def run_tests(arguments):
    """Run pytest with one process a core and one computing thread each."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return become("pytest", "-n", str(min(cores, MAX_WORKERS)), *arguments)


def main(arguments):
    """Carry out one of the commands described above and return the exit code."""
    command, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if command == "run":
        install(".")
        return become("coterie", "run", *rest)
    if command in ("test", "test-full", "install"):
        install(".[dev]")
        if command == "install":
            return 0
        return run_tests((["-m", "not full"] if command == "test" else []) + rest)
    print(__doc__)
    return 0 if command in ("-h", "--help") else 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
