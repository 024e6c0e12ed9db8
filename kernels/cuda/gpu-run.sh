#!/bin/sh
# What to run where there is a GPU for some minutes, in the order that matters (README.md), from what `cargo xtask gpu-bundle`
# packed.
set -u
usage() {
    cat <<'USAGE'
usage: sh gpu-run.sh PART [OUT_DIR] [SECONDS]

figures   does it compute correctly, and the figures of README.md [400 s]
peers     every kernel with eight seeds and under memcheck, then PyTorch and transformers [590 s]
races     racecheck over every kernel, and a server under load [300 s]

OUT_DIR   gets log.txt of the checks, and a file for each part of the benchmarks [gpu-PART]
SECONDS   when all of it ends

Exit code 1 if a check or a benchmark failed.
USAGE
}

part=${1:-}
case $part in
figures) seconds=400 ;;
peers) seconds=590 ;;
races) seconds=300 ;;
-h | --help) usage; exit 0 ;;
*) usage >&2; exit 2 ;;
esac
out=${2:-gpu-$part}
seconds=${3:-$seconds}
case $seconds in '' | *[!0-9]*) echo "gpu-run.sh: '$seconds' is no number of seconds" >&2; exit 2 ;; esac
here=$(cd "$(dirname "$0")" && pwd)
bundle=$(cd "$here/../.." && pwd)
infer=$bundle/infer
[ -x "$infer" ] || { echo "gpu-run.sh: no $infer; 'cargo xtask gpu-bundle' packs it" >&2; exit 2; }
end=$(($(date +%s) + seconds))

# check SECONDS FLAGS...
check() {
    limit=$1
    shift
    sh "$here/gpu-check.sh" "$infer" "$bundle/tests/golden" "$out" --seconds="$limit" "$@" || failed=1
}

# bench PART... until the end
bench() {
    sh "$here/gpu-bench.sh" "$infer" "$out" "$@" --seconds=$((end - $(date +%s))) || failed=1
}

failed=0
case $part in
figures)
    check $((seconds * 35 / 100)) --seeds=1 --sanitizer=none
    baseline=$bundle/baseline.fatbin
    if [ -s "$baseline" ]; then
        bench kernels engine baseline trace switches --baseline="$baseline"
    else
        bench kernels engine trace switches
    fi
    ;;
peers)
    check $((seconds / 4)) --only=kernels,memcheck-serve,memcheck
    bench peers
    ;;
races)
    check $((seconds * 2 / 3)) --only=racecheck
    bench serve
    ;;
esac
exit "$failed"
