#!/usr/bin/env python3
"""`infer serve` and llama-server on the same random weights, under the load of `infer bench serve`.

    python -m venv venv && venv/bin/pip install gguf numpy
    venv/bin/python against_llama_server.py target/release/infer LLAMA_SERVER DIR --shape smollm-135m --rounds 3

Needs llama.cpp's llama-server, built with -DGGML_NATIVE=ON. Writes a bf16 GGUF into DIR unless it is there, then
runs both servers in turn, llama-server with a cache for all slots and with one for each, under W1 to W3, and
prints for every workload the median of the rounds and the ratio to the better one, unless requests failed. The
reports stay in DIR, and `compare.html` shows the last of each. Prompts are token ids. W4 is not among the loads: it
sends replies again, whose ids OpenAI's dialect doesn't tell, and as text they have other lengths on each server.
"""

import argparse
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "kernels" / "benches"))
import against_llama

# What the client sees of a workload: name, place in the report, and whether more is better.
FIGURES = [
    ("tok/s", ("output_tokens_per_s",), True),
    ("TTFT p50 ms", ("ttft_ms", "p50"), False),
    ("TTFT p99 ms", ("ttft_ms", "p99"), False),
    ("ITL p50 ms", ("itl_ms", "p50"), False),
    ("ITL p99 ms", ("itl_ms", "p99"), False),
    ("seconds", ("wall_s",), False),
]


class Server:
    """A server process; the address it answers at is given."""

    def __init__(self, command, url, log, environment):
        if listens(url):
            sys.exit(f"something listens at {url} already")
        self.log = open(log, "w")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=environment)
        deadline = time.monotonic() + 120
        while True:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                sys.exit(f"{command[0]} does not start; see {log}")
            try:
                with urllib.request.urlopen(url + "/v1/models", timeout=2) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                pass
            time.sleep(0.1)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.log.close()


def listens(url):
    host = urllib.parse.urlsplit(url)
    try:
        socket.create_connection((host.hostname, host.port), timeout=2).close()
        return True
    except OSError:
        return False


def measure(args, name, command, round_number, environment):
    url = "http://127.0.0.1:" + command[command.index("--port") + 1]
    server = Server(command, url, args.directory / f"{name}.log", environment)
    out = args.directory / f"{name}-{round_number}.json"
    vocab = against_llama.SHAPES[args.shape][6]
    # llama-server holds back the bytes of an unfinished character, so its answers may seem a token short.
    lengths = "exact" if name == "infer" else "any"
    bench = [args.infer, "bench", "serve", "--lengths", lengths, "--url", url, "--dialect", "openai", "--baseline", "off", "--seed", "7",
             "--workload", args.workload, "--vocab-size", str(vocab // 2), "--label", name, "--format", "json",
             "--out", str(out)]
    try:
        outcome = subprocess.run(bench)
    finally:
        server.stop()
    if outcome.returncode not in (0, 1):
        sys.exit(f"{name} could not be measured")
    return out


def figures(path):
    report = json.loads(path.read_text())
    for workload in report["workloads"]:
        row = {}
        for name, keys, _ in FIGURES:
            value = workload
            for key in keys:
                value = value[key]
            row[name] = value
        if workload["errors"]:
            print(f"{path.stem}, {workload['name']}: {workload['errors']}", file=sys.stderr)
        yield workload["name"], row, bool(workload["errors"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("infer")
    parser.add_argument("llama_server")
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--shape", choices=against_llama.SHAPES, default="smollm-135m")
    parser.add_argument("--workload", default="w1,w2,w3")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parallel", type=int, default=16, help="slots of llama-server")
    args = parser.parse_args()
    args.directory.mkdir(parents=True, exist_ok=True)
    model = args.directory / f"{args.shape}-bf16-vocabulary.gguf"
    if not model.exists():
        part = model.with_suffix(".new")
        against_llama.make(args.shape, "bf16", str(part), with_tokenizer=True)
        part.rename(model)
    room = 2048
    threads = str(args.threads)
    theirs = [args.llama_server, "-m", str(model), "--port", "8080", "-t", threads, "-tb", threads,
              "-np", str(args.parallel), "-c", str(room * args.parallel), "-lm", "none"]
    servers = {
        "infer": [args.infer, "serve", "--model", str(model), "--port", "8000", "--admin", "127.0.0.1:8001",
                  "--threads", threads, "--max-seq-len", str(room)],
        # A cache that all slots share or one for each, and huge pages for its weights.
        "llama-server": [*theirs, "-kvu"],
        "llama-server-split": [*theirs, "-no-kvu"],
    }
    environment = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    results, last, failing = {}, {}, set()
    for number in range(args.rounds):
        for name, command in servers.items():
            last[name] = measure(args, name, command, number, environment)
            for workload, row, failed in figures(last[name]):
                failing.update({workload} if failed else ())
                for figure, value in row.items():
                    results.setdefault((workload, figure), {}).setdefault(name, []).append(value)
    for (workload, figure), by_server in results.items():
        more = next(better for name, _, better in FIGURES if name == figure)
        ours, *theirs = (statistics.median(by_server[name]) for name in servers)
        ratio = min(ours / other if more else other / ours for other in theirs)
        line = "  ".join(f"{name} {statistics.median(values):9.1f}" for name, values in by_server.items())
        # Who answers less is done sooner.
        verdict = "requests failed" if workload in failing else f"{ratio:6.2f}x better than the best"
        print(f"{workload}  {figure:12} {line}  {verdict}")
    page = args.directory / "compare.html"
    subprocess.run([args.infer, "bench", "report", *map(str, last.values()), "--out", str(page)], check=True)
    print(page)


if __name__ == "__main__":
    main()
