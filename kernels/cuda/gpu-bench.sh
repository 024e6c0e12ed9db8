#!/bin/sh
# Measures the figures of README.md in this folder, and peers on the same machine, with a binary built elsewhere.
set -u
usage() {
    cat <<'USAGE'
usage: sh gpu-bench.sh INFER [OUT_DIR] [PART...] [--quick] [--seconds=N] [--baseline=FILE] [--stamps=FILE]

INFER            the program; gzipped if its name ends in .gz
OUT_DIR          gets PART.txt of each part, whose last line is its exit code [gpu-bench-out]
PART             what to measure [all that is below, in this order]
  kernels        kernels alone
  engine         whole steps of models with random weights
  baseline       a few kernels and steps beside those of --baseline, in turn, and the ratios
  trace          the launches of a step, from --stamps; OUT_DIR/stamps.txt has more steps for stamps.py
  switches       a few steps with INFER_CUDA_* changed, one by one
  peers          PyTorch and transformers
  serve          a server
--quick          fewer batches and lengths in kernels, engine, peers; fewer workloads in serve
--seconds=N      all parts together end within N seconds [560]
--baseline=FILE  another build of the program, or an image of other kernels (README.md) if its name ends in .fatbin
--stamps=FILE    an image of the same kernels with stamps (README.md) [stamps.fatbin beside INFER]

Ends with what was left out, stopped or failed. Exit code 1 if a part failed, was stopped or had no time.
USAGE
}

infer=
out=
parts=
quick=
seconds=560
baseline=
stamps=
for word in "$@"; do
    case $word in
    -h | --help) usage; exit 0 ;;
    --quick) quick=--quick ;;
    --seconds=*) seconds=${word#*=} ;;
    --baseline=*) baseline=${word#*=} ;;
    --stamps=*) stamps=${word#*=} ;;
    -*) echo "gpu-bench.sh: unknown $word; -h lists what there is" >&2; exit 2 ;;
    kernels | engine | baseline | trace | switches | peers | serve) parts="$parts $word" ;;
    *) if [ -z "$infer" ]; then infer=$word; else out=$word; fi ;;
    esac
done
case $seconds in '' | *[!0-9]*) echo "gpu-bench.sh: --seconds=$seconds is no number" >&2; exit 2 ;; esac
[ -n "$infer" ] || { usage >&2; exit 2; }
end=$(($(date +%s) + seconds))
out=${out:-gpu-bench-out}
stamps=${stamps:-$(dirname "$infer")/stamps.fatbin}
here=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM
mkdir -p "$out"
: >"$tmp/lacking"

# program FILE NAME: where the program is, unpacked if its name ends in .gz.
program() {
    case $1 in
    *.gz) gunzip -c "$1" >"$tmp/$2" && chmod +x "$tmp/$2" && echo "$tmp/$2" ;;
    *) echo "$1" ;;
    esac
}
infer=$(program "$infer" infer) || exit 2
[ -z "$baseline" ] || baseline=$(program "$baseline" baseline) || exit 2
if [ -z "${INFER_CUDA_LIB:-}" ] && command -v python3 >/dev/null; then
    INFER_CUDA_LIB=$(python3 -c 'import glob, nvidia, os
found = [lib for place in nvidia.__path__ for folder in ("cu1*", "cublas")
    for lib in glob.glob(place + "/" + folder + "/lib/libcublasLt.so.1*")]
print(os.path.dirname(found[0]))' 2>/dev/null) && export INFER_CUDA_LIB
fi

left() {
    echo $((end - $(date +%s)))
}

# Says what the results lack, now and at the end.
lacks() {
    echo "$1"
    echo "$1" >>"$tmp/lacking"
}

# measure NAME COMMAND...: nothing is begun that can't be expected to finish.
measure() {
    name=$1
    shift
    echo "== $name"
    limit=$(left)
    [ "$limit" -ge 20 ] || { lacks "$name: not run, no time left"; return 1; }
    timeout -k 5 "$limit" "$@"
    code=$?
    case $code in
    0) return 0 ;;
    124 | 137) lacks "$name: stopped by its limit" ;;
    *) lacks "$name: exit code $code" ;;
    esac
    return 1
}

few_steps() {
    measure "$@" bench engine --device cuda --quick --shape llama-1b --shape llama-8b
}

few_kernels() {
    measure "$@" bench kernels --device cuda --quick --shape llama-1b --shape llama-8b
}

# The baseline runs first and last, so that clocks that fall or rise favour neither.
beside() {
    [ -n "$baseline" ] || { lacks "baseline: not run, no --baseline=FILE"; return 0; }
    outcome=0
    : >"$tmp/runs"
    for what in steps kernels; do
        for build in baseline new new baseline; do
            case $build,$baseline in
            baseline,*.fatbin) set -- env INFER_CUDA_IMAGE="$baseline" "$infer" ;;
            baseline,*) set -- "$baseline" ;;
            *) set -- "$infer" ;;
            esac
            "few_$what" "baseline: $what, $build" "$@" >"$tmp/run" 2>&1 || outcome=1
            tee -a "$tmp/runs" <"$tmp/run"
        done
    done
    ratios <"$tmp/runs"
    return $outcome
}

# Of every time that both builds have measured, the least of each and their ratio. A table is a line `TITLE: COLUMN, COLUMN...`
# and rows with tabs; columns before the first time name what a row is of.
ratios() {
    awk -F '\t' '
        /^== / { build = $0 ~ /, baseline$/ ? "baseline" : "new"; next }
        NF == 1 && match($0, /: .*, (us|ms)( |,|$)/) {
            title = substr($0, 1, RSTART - 1)
            columns = split(substr($0, RSTART + 2), heading, ", ")
            for (first = 1; heading[first] !~ /^(us|ms)( |$)/; first++) continue
        }
        NF > 1 && NF == columns {
            row = title
            for (i = 1; i < first; i++) row = row "\t" $i
            for (i = first; i <= NF; i++) {
                if (heading[i] !~ /^(us|ms)( |$)/ || heading[i] ~ / hides$/ || $i + 0 <= 0) continue
                time = row "\t" heading[i]
                if (!(time in known)) { known[time]; order[++times] = time }
                if (!((build, time) in least) || $i + 0 < least[build, time]) least[build, time] = $i + 0
            }
        }
        END {
            print "== what was measured, baseline, new, new / baseline"
            for (i = 1; i <= times; i++) {
                old = least["baseline", order[i]]
                new = least["new", order[i]]
                if (old && new) printf "%s\t%s\t%s\t%.2f\n", order[i], old, new, new / old
            }
        }'
}

# Where the time of a decode goes, with graphs: one step at context 256, and one at the longest (stamps.cuh numbers them).
trace() {
    [ -s "$stamps" ] || { lacks "trace: not run, no $stamps, an image that README.md tells how to make"; return 0; }
    outcome=0
    : >"$out/stamps.txt"
    for shape in llama-1b llama-8b; do
        measure "trace: $shape" env INFER_CUDA_IMAGE="$stamps" "$infer" bench engine --device cuda --quick --shape "$shape" \
            >"$tmp/stamps" || { tail -n 3 "$tmp/stamps"; outcome=1; continue; }
        cat "$tmp/stamps" >>"$out/stamps.txt"
        for step in 105 160; do
            echo "== $shape, step $step"
            python3 "$here/stamps.py" $step <"$tmp/stamps" || outcome=1
        done
    done
    return $outcome
}

# What each setting is worth. The first run changes none. With FEW_ROWS=16 our own products have 9 to 16 rows, too.
switches() {
    outcome=0
    few_steps "switches: none" "$infer" || outcome=1
    for changed in FEW_ROWS=16 FUSED=off EARLY=off SPREAD=off WALK=off WGMMA=on CARVEOUT=driver DECODE_BLOCKS=2; do
        few_steps "switches: INFER_CUDA_$changed" env "INFER_CUDA_$changed" "$infer" || outcome=1
    done
    return $outcome
}

# peers.py begins nothing in the last 130 s, so that a model that takes a minute to compile still ends in time.
peers() {
    own=$(($(left) - 130))
    [ "$own" -gt 0 ] || own=0
    measure peers python3 "$here/peers.py" --seconds "$own" $quick
}

# The shape of Llama 3.2 1B with random weights if PyTorch is there to write it, and the demo model, whose steps are so short
# that host overhead shows.
serve() {
    models=demo
    workloads=w1,w2,w3,w4
    [ -z "$quick" ] || workloads=w1,w2
    outcome=0
    if measure "serve: writing the 1B shape" python3 "$here/peers.py" --write "$tmp/llama-1b" \
        --tokenizer "$here/../../host/demo/checkpoint"; then
        models="$tmp/llama-1b demo"
    fi
    for model in $models; do
        for flags in "" "--plan-ahead on" "--deterministic on"; do
            # Unquoted: words.
            measure "serve: $(basename "$model")${flags:+ $flags}" "$infer" bench serve --device cuda --baseline off \
                --kv-memory 16GiB --model "$model" --workload "$workloads" --requests 64 $flags || outcome=1
        done
    done
    return $outcome
}

failed=0
for part in ${parts:-kernels engine baseline trace switches peers serve}; do
    begun=$(date +%s)
    {
        echo "== $part: at most $(left) s, $(date -u)"
        nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
        case $part in
        kernels | engine) measure "$part" "$infer" bench "$part" --device cuda $quick ;;
        baseline) beside ;;
        *) "$part" ;;
        esac
        code=$?
        echo "== $part: $(($(date +%s) - begun)) s, exit code $code"
    } 2>&1 | tee "$out/$part.txt"
    tail -n 1 "$out/$part.txt" | grep -q ' exit code 0$' || failed=1
done
if [ -s "$tmp/lacking" ]; then echo "== left out, stopped or failed"; else echo "== all was measured"; fi
cat "$tmp/lacking"
exit "$failed"
