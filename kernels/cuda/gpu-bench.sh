#!/bin/sh
# Measures the figures of README.md in this folder, and peers on the same machine, with a binary built elsewhere.
#   sh gpu-bench.sh INFER [OUT_DIR] [PART...] [--quick] [--seconds=N]
# INFER: the program, gzipped if its name ends in .gz. Parts: kernels, engine, peers, serve; without one, all in turn. Each
# ends within nine and a half minutes, all of them within N seconds, and writes OUT_DIR/PART.txt, whose last line is its exit
# code. Exit code 1 if a part failed, was stopped or had no time.
set -u
infer=$1
shift
out=gpu-bench-out
parts=
quick=
seconds=100000
for word in "$@"; do
    case $word in
    --quick) quick=--quick ;;
    --seconds=*) seconds=${word#*=} ;;
    kernels | engine | peers | serve) parts="$parts $word" ;;
    -*) echo "gpu-bench.sh: unknown $word" >&2; exit 2 ;;
    *) out=$word ;;
    esac
done
here=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM
mkdir -p "$out"
end=$(($(date +%s) + seconds))
case $infer in
*.gz) gunzip -c "$infer" >"$tmp/infer" && chmod +x "$tmp/infer" && infer=$tmp/infer ;;
esac
if [ -z "${INFER_CUDA_LIB:-}" ] && command -v python3 >/dev/null; then
    INFER_CUDA_LIB=$(python3 -c 'import glob, nvidia, os
found = [lib for place in nvidia.__path__ for folder in ("cu1*", "cublas")
    for lib in glob.glob(place + "/" + folder + "/lib/libcublasLt.so.1*")]
print(os.path.dirname(found[0]))' 2>/dev/null) && export INFER_CUDA_LIB
fi

# Seconds left for this part.
left() {
    echo $((until - $(date +%s)))
}

limited() {
    limit=$(left)
    [ "$limit" -gt 0 ] || limit=1
    timeout -k 5 "$limit" "$@"
}

# Whether a run can be expected to finish; says so if not. A run that is stopped prints no table.
time_left() {
    [ "$(left)" -ge 20 ] || { echo "not run: no time left"; return 1; }
}

# Serving: the shape of Llama 3.2 1B with random weights if PyTorch is there to write it, and the demo model, whose steps are
# so short that host overhead shows.
serve() {
    models=demo
    workloads=w1,w2,w3,w4
    [ -z "$quick" ] || workloads=w1,w2
    if limited python3 "$here/peers.py" --write "$tmp/llama-1b" --tokenizer "$here/../../host/demo/checkpoint"; then
        models="$tmp/llama-1b demo"
    fi
    outcome=0
    for model in $models; do
        for flags in "" "--plan-ahead on" "--deterministic on"; do
            echo "== $(basename "$model") $flags"
            time_left || { outcome=1; continue; }
            # Unquoted: words.
            limited "$infer" bench serve --device cuda --baseline off --kv-memory 16GiB --model "$model" \
                --workload "$workloads" --requests 64 $flags || outcome=1
        done
    done
    return $outcome
}

# Whole steps, and a few of them of two shapes with settings changed, one by one, which shows what each is worth.
engine() {
    outcome=0
    limited "$infer" bench engine --device cuda $quick || outcome=1
    for changed in FUSED=off EARLY=off SPREAD=off CARVEOUT=driver FEW_ROWS=8; do
        echo "== INFER_CUDA_$changed"
        time_left || return 1
        limited env "INFER_CUDA_$changed" "$infer" bench engine --device cuda --quick --shape llama-1b --shape llama-8b ||
            outcome=1
    done
    return $outcome
}

run() {
    time_left || return 1
    case $1 in
    kernels) limited "$infer" bench kernels --device cuda $quick ;;
    engine) engine ;;
    # Its own limit is lower, so that a model that takes a minute to compile still ends in time.
    peers)
        own=$(($(left) - 130))
        [ "$own" -gt 0 ] || own=0
        limited python3 "$here/peers.py" --seconds "$own" $quick
        ;;
    serve) serve ;;
    esac
}

failed=0
for part in ${parts:-kernels engine peers serve}; do
    begun=$(date +%s)
    until=$((begun + 550))
    [ "$until" -le "$end" ] || until=$end
    {
        echo "== $part: at most $((until - begun)) s, $(date -u)"
        nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
        run "$part"
        code=$?
        echo "== $part: $(($(date +%s) - begun)) s, exit code $code"
    } 2>&1 | tee "$out/$part.txt"
    tail -n 1 "$out/$part.txt" | grep -q ' exit code 0$' || failed=1
done
exit "$failed"
