"""Cost of a connected console for a host: CPU time of the host's process without and with one.

    python3 tui/benches/cost.py PID [--admin URL] [--rounds 3] [--seconds 20] [-- CONSOLE ARGUMENTS]

Rounds alternate, so that a drift of the machine affects both alike. The console is the real one in a
terminal of its own (100x30). Times are reported for the whole process and without its engine and compute
threads; while a model keeps those busy, only the latter can be compared. Needs Linux.
"""

import argparse
import fcntl
import os
import pty
import signal
import struct
import sys
import termios
import threading
import time

TICKS = os.sysconf("SC_CLK_TCK")


def times(pid):
    """Seconds of CPU time by thread."""
    spent = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/schedstat") as file:
                seconds = int(file.read().split()[0]) / 1e9
            with open(f"/proc/{pid}/task/{task}/comm") as file:
                name = file.read().strip()
        except FileNotFoundError:
            continue
        spent[(task, name)] = seconds
    return spent


def console(command, size=(30, 100)):
    pid, master = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execvp(command[0], command)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))

    def drain():
        try:
            while os.read(master, 65536):
                pass
        except OSError:
            pass

    threading.Thread(target=drain, daemon=True).start()
    return pid, master


def measure(pid, seconds):
    before = times(pid)
    began = time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - began
    after = times(pid)
    spent = {key: after[key] - before.get(key, 0.0) for key in after}
    everything = sum(spent.values()) / passed * 100
    compute = ("engine", "infer-kernel")
    around = sum(s for (_, name), s in spent.items() if not name.startswith(compute)) / passed * 100
    return everything, around


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pid", type=int)
    parser.add_argument("--admin", default="http://127.0.0.1:8001")
    parser.add_argument("--console", default="target/release/infer-tui")
    parser.add_argument("--keys", default="", help="keys to press first: 3 for the requests")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20)
    arguments = parser.parse_args()
    if not os.access(arguments.console, os.X_OK):
        parser.error(f"--console {arguments.console} is not an executable file")
    sums = {False: [0.0, 0.0], True: [0.0, 0.0]}
    for _ in range(arguments.rounds):
        for connected in (False, True):
            if connected:
                child, master = console([arguments.console, "--admin", arguments.admin])
                time.sleep(2)
                os.write(master, arguments.keys.encode())
                time.sleep(1)
            found = measure(arguments.pid, arguments.seconds)
            sums[connected] = [a + b for a, b in zip(sums[connected], found)]
            word = "with a console" if connected else "alone"
            print(f"{word:>15}: {found[0]:6.2f} % of a core, {found[1]:5.2f} % without the engine's threads")
            sys.stdout.flush()
            if connected:
                os.kill(child, signal.SIGTERM)
                os.waitpid(child, 0)
                os.close(master)
    whole, around = ((sums[True][at] - sums[False][at]) / arguments.rounds for at in (0, 1))
    print(f"one console costs {whole:+.2f} % of a core, {around:+.2f} % without the engine's threads")


if __name__ == "__main__":
    main()
