#!/usr/bin/env python3
"""What a restart costs with and without a cache file.

    python host/server/benches/restart.py target/release/infer MODEL DIR --prompts 4 --tokens 6000

Starts a host, sends prompts of random token ids one after the other, stops it with SIGTERM, starts it again and sends
them again; once without `--cache-file` and once with a file in DIR. Prints the time to first token of each life, what
the host says of saving and restoring, and how long DIR takes for a plain file of that size (written with fsync, read).
Standard library only.
"""

import argparse
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import time
import urllib.request


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Host:
    def __init__(self, args, extra):
        self.port = free_port()
        command = [args.infer, "serve", "--model", args.model, "--served-model-name", "m", "--port", str(self.port)]
        command += ["--admin", "127.0.0.1:0", "--max-seq-len", str(args.tokens + 64), "--kv-memory", args.kv_memory]
        environment = {**os.environ, "INFER_LOG_FORMAT": "json"}
        self.begun = time.monotonic()
        self.process = subprocess.Popen(
            command + extra, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        if not self.process.stdout.readline().startswith("listening"):
            raise SystemExit(self.process.communicate()[1])
        self.ready_s = time.monotonic() - self.begun

    def ttft_ms(self, prompt):
        body = {"model": "m", "prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": False}
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        request = urllib.request.Request(url, json.dumps(body).encode())
        with urllib.request.urlopen(request) as response:
            return json.load(response)["timings"]["ttft_ms"]

    def stop(self):
        """Seconds that it took, and the lines of the log about the cache."""
        begun = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        log = self.process.communicate()[1]
        lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
        said = [line for line in lines if re.match("(saved|restored) the prefix cache", line["message"])]
        return time.monotonic() - begun, said


def plain_file(path, size):
    """Seconds to write a file of this size with fsync, and to read it (from the page cache)."""
    piece = random.randbytes(1 << 20)
    begun = time.monotonic()
    with open(path, "wb", buffering=0) as file:
        for _ in range(size >> 20):
            file.write(piece)
        os.fsync(file.fileno())
    written = time.monotonic()
    with open(path, "rb", buffering=0) as file:
        while file.readinto(bytearray(1 << 20)):
            pass
    read = time.monotonic()
    os.remove(path)
    return written - begun, read - written


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("infer")
    parser.add_argument("model")
    parser.add_argument("dir")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("--kv-memory", default="4GiB")
    args = parser.parse_args()
    numbers = random.Random(1)
    prompts = [[numbers.randrange(300, 3000) for _ in range(args.tokens)] for _ in range(args.prompts)]
    path = os.path.join(args.dir, "restart-cache")
    for name, extra in [("without", []), ("with", ["--cache-file", path, "--cache-file-size", "1TiB"])]:
        for life in ["first", "second"]:
            host = Host(args, extra)
            ttft = [host.ttft_ms(prompt) for prompt in prompts]
            stopped_s, said = host.stop()
            median, worst = statistics.median(ttft), max(ttft)
            print(
                f"{name:8}{life:7} ready after {host.ready_s:.2f} s, TTFT {median:,.1f} ms (worst {worst:,.1f}), "
                f"stopped within {stopped_s:.2f} s"
            )
            for line in said:
                print("                ", line["message"].split(" the ")[0], line["blocks"], "blocks in", line["ms"], "ms")
    size = os.path.getsize(path)
    os.remove(path)
    written, read = plain_file(path, size)
    print(f"a plain file of {size / 1e6:,.0f} MB: written in {1000 * written:,.0f} ms, read in {1000 * read:,.0f} ms")


if __name__ == "__main__":
    main()
