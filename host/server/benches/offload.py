#!/usr/bin/env python3
"""What the next turn of a conversation costs that the KV pool had no room for, with and without a second level.

    python host/server/benches/offload.py target/release/infer MODEL --conversations 6 --tokens 4000 --kv-memory 512MiB
    python host/server/benches/offload.py target/release/infer MODEL --dir /var/tmp

Starts a host whose pool is too small for all conversations (give --kv-memory accordingly), sends the first turn of each,
random token ids, one after the other, and then a second turn of each, which continues the first; once without
`--kv-offloading-size`, once with memory, and once with a file in --dir, if that is given. Prints the time to first token
of both turns, how much of the second turns was cached, and what the host copied. Standard library only.
"""

import argparse
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import urllib.request


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Host:
    def __init__(self, args, extra):
        self.port, admin = free_port(), free_port()
        command = [args.infer, "serve", "--model", args.model, "--served-model-name", "m", "--port", str(self.port)]
        command += ["--admin", f"127.0.0.1:{admin}", "--max-seq-len", str(args.tokens + args.more + 64)]
        command += ["--kv-memory", args.kv_memory]
        self.process = subprocess.Popen(
            command + extra, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
        )
        if not self.process.stdout.readline().startswith("listening"):
            raise SystemExit(self.process.communicate()[1])

    def turn(self, prompt):
        """Time to first token in ms, and how many tokens of the prompt were cached."""
        body = {"model": "m", "prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": False}
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        request = urllib.request.Request(url, json.dumps(body).encode())
        with urllib.request.urlopen(request) as response:
            answer = json.load(response)
        return answer["timings"]["ttft_ms"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def copied(self):
        """Blocks that went to the second level, and that came back."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as response:
            lines = [line.split(" ") for line in response.read().decode().splitlines() if not line.startswith("#")]
        values = {name: value for name, value in (line[:2] for line in lines if len(line) > 1)}
        return [values.get(f"infer_kv_offload_blocks_{way}_total", "0") for way in ("out", "in")]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("infer")
    parser.add_argument("model")
    parser.add_argument("--conversations", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=4000, help="of a first turn")
    parser.add_argument("--more", type=int, default=64, help="what a second turn adds")
    parser.add_argument("--kv-memory", default="512MiB")
    parser.add_argument("--size", default="8GiB", help="of the second level")
    parser.add_argument("--dir", help="a directory for its file")
    args = parser.parse_args()
    numbers = random.Random(1)
    tokens = lambda count: [numbers.randrange(300, 3000) for _ in range(count)]
    firsts = [tokens(args.tokens) for _ in range(args.conversations)]
    seconds = [first + tokens(args.more) for first in firsts]
    size = ["--kv-offloading-size", args.size]
    hosts = [("without", []), ("memory", size)]
    if args.dir:
        hosts.append(("file", [*size, "--kv-offloading-dir", args.dir]))
    for name, extra in hosts:
        host = Host(args, extra)
        for turn, prompts in [("first", firsts), ("second", seconds)]:
            answers = [host.turn(prompt) for prompt in prompts]
            ttft = [ms for ms, _ in answers]
            cached, all_tokens = sum(cached for _, cached in answers), sum(map(len, prompts))
            out, back = host.copied()
            print(
                f"{name:8}{turn:7} TTFT {statistics.median(ttft):,.1f} ms (worst {max(ttft):,.1f}), "
                f"{100 * cached / all_tokens:.0f} % cached, {out} blocks copied out and {back} back so far"
            )
        host.stop()


if __name__ == "__main__":
    main()
