#!/bin/sh
# Everything that wants a GPU, by one command, with a carried binary: no cargo, no toolkit.
#   sh gpu-check.sh INFER [GOLDEN_DIR] [OUT_DIR]
# INFER: the program, built with --features cuda where a toolkit was. libcublasLt is looked for in the loader's paths and
# in INFER_CUDA_LIB; without any, PyTorch's copy is found through python3. Exit code 1 if a check failed.
set -u
infer=$1
golden=${2:-}
out=${3:-gpu-check-out}
mkdir -p "$out"
failed=0

step() {
    name=$1
    shift
    echo "== $name: $*"
    begun=$(date +%s)
    if "$@" >"$out/$name.txt" 2>&1; then verdict=ok; else verdict=FAILED; failed=1; fi
    tail -n "${lines:-40}" "$out/$name.txt"
    echo "== $name: $verdict, $(($(date +%s) - begun)) s"
}

if [ -z "${INFER_CUDA_LIB:-}" ] && command -v python3 >/dev/null; then
    INFER_CUDA_LIB=$(python3 -c 'import nvidia, os
print(os.path.join(list(nvidia.__path__)[0], "cu13", "lib"))' 2>/dev/null) && export INFER_CUDA_LIB
fi
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || echo "no nvidia-smi"

if [ -n "$golden" ]; then
    step check "$infer" gpu-check --golden "$golden"
else
    step check "$infer" gpu-check
fi
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
        lines=5 step "sanitizer-$tool" timeout 150 compute-sanitizer --tool "$tool" --error-exitcode 1 \
            "$infer" gpu-check --seeds 1
    done
fi
# Requests one after the other; sixteen at a time; sixteen that share a prefix. Greedy, so all must come through.
step serve-w1 "$infer" bench serve --device cuda --baseline off --workload w1
step serve-w2 "$infer" bench serve --device cuda --baseline off --workload w2
step serve-w3 "$infer" bench serve --device cuda --baseline off --workload w3

# A storm of swaps under load.
storm() {
    "$infer" serve --device cuda --port 18080 --admin 127.0.0.1:18081 >"$out/storm-server.txt" 2>&1 &
    server=$!
    for _ in $(seq 100); do grep -q "listening on" "$out/storm-server.txt" && break; sleep 0.2; done
    (
        while kill -0 "$server" 2>/dev/null; do
            for policy in static-batch srpt fair priority continuous; do
                INFER_ADMIN=http://127.0.0.1:18081 "$infer" policy swap scheduler "$policy" || exit 1
            done
        done
    ) >"$out/storm-swaps.txt" 2>&1 &
    swaps=$!
    "$infer" bench serve --url http://127.0.0.1:18080 --workload w2 --requests 128
    outcome=$?
    kill "$swaps" 2>/dev/null
    kill "$server"
    wait "$server"
    echo "$(grep -c . "$out/storm-swaps.txt") lines of swaps"
    return $outcome
}
step storm storm

if [ "$failed" -eq 0 ]; then echo "All checks passed."; else echo "Some checks FAILED; see $out."; fi
exit "$failed"
