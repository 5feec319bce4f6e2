"""A script, run by path, that replaces itself with a program that the kernel kills when the parent dies.

`python -I -S tether.py PARENT_PID PROGRAM [ARGUMENT …]`. It runs between fork and exec in place of `preexec_fn`, which
runs Python in a forked copy of a process that has threads. The parent is the *thread* that starts us (prctl(2)).
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h; survives exec
EXIT_NOT_RUN = 126


def main(arguments: list[str]) -> int:
    """Replace this process with the program in `arguments[1:]`; returns only if that fails."""
    parent, program = int(arguments[0]), arguments[1:]
    if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        sys.stderr.write("cannot ask the kernel for a signal when the parent dies\n")
        return EXIT_NOT_RUN
    if os.getppid() != parent:  # it died before prctl took effect; nothing would ever stop us
        return EXIT_NOT_RUN
    try:
        os.execv(program[0], program)
    except OSError as error:
        sys.stderr.write(f"cannot run {program[0]}: {error.strerror}\n")
    return EXIT_NOT_RUN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
