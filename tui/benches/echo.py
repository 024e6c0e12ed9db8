"""Time from a key to the first byte of the frame that it leads to.

    python3 tui/benches/echo.py [--admin URL] [--keys 400] -- the console runs in a terminal of its own

Keys are pressed at random times, after a pause without output, and the clock stops at the next output.
Prints percentiles in milliseconds. Needs Linux.
"""

import argparse
import fcntl
import os
import pty
import random
import select
import signal
import struct
import termios
import time


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--admin", default="http://127.0.0.1:8001")
    parser.add_argument("--console", default="target/release/infer-tui")
    parser.add_argument("--screen", default="3")
    parser.add_argument("--keys", type=int, default=400)
    parser.add_argument("--rows", type=int, default=60)
    parser.add_argument("--columns", type=int, default=200)
    arguments = parser.parse_args()
    if not os.access(arguments.console, os.X_OK):
        parser.error(f"--console {arguments.console} is not an executable file")
    child, master = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execvp(arguments.console, [arguments.console, "--admin", arguments.admin])
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", arguments.rows, arguments.columns, 0, 0))

    def quiet(seconds):
        """Reads until there is no output for this long."""
        while select.select([master], [], [], seconds)[0]:
            os.read(master, 1 << 20)

    time.sleep(2)
    os.write(master, arguments.screen.encode())
    took = []
    for press in range(arguments.keys):
        time.sleep(random.uniform(0.01, 0.06))
        quiet(0.012)
        began = time.perf_counter()
        os.write(master, b"j" if press % 40 < 20 else b"k")
        if select.select([master], [], [], 2)[0]:
            took.append((time.perf_counter() - began) * 1e3)
    os.kill(child, signal.SIGTERM)
    os.waitpid(child, 0)
    took.sort()
    at = lambda share: took[min(len(took) - 1, int(len(took) * share))]
    print(f"{len(took)} keys: p50 {at(0.5):.1f} ms, p99 {at(0.99):.1f} ms, worst {took[-1]:.1f} ms")


if __name__ == "__main__":
    main()
