#!/bin/sh
# Every check that needs a GPU, in one command, with a binary built elsewhere: no cargo, no toolkit. Each step has a limit; one
# without time left is not run.
# PATIENCE=N makes all limits N times as long, for a rehearsal on an emulated GPU (README.md).
set -u
usage() {
    cat <<'USAGE'
usage: sh gpu-check.sh INFER [GOLDEN_DIR] [OUT_DIR] [--seconds=N] [--seeds=N] [--sanitizer=TOOLS] [--only=STEP[,STEP...]]

INFER              the program, built with --features cuda and a toolkit; gzipped if its name ends in .gz
GOLDEN_DIR         golden checkpoints (tests/golden) [none are checked]
OUT_DIR            gets log.txt: everything printed, and the table of steps; if the script is killed, step.txt has the output
                   of the step that the log ends with [gpu-check-out]
--seconds=N        all steps end within N seconds, and half a minute more if a server hangs [510]
--seeds=N          random shapes per kernel in step kernels, which is left out with 1: the first step has that [8]
--sanitizer=TOOLS  what compute-sanitizer looks for: none; memcheck; or all, which adds racecheck [all]
--only=STEP,...    only these steps

If python3 can import NVIDIA's packages, INFER_CUDA_LIB becomes the folder of their libcublasLt; otherwise the program
searches for it. Exit code 1 if a check failed.
USAGE
}

infer=
golden=
out=
seconds=510
seeds=8
tools=all
only=
words=0
for word in "$@"; do
    case $word in
    -h | --help) usage; exit 0 ;;
    --seconds=*) seconds=${word#*=} ;;
    --seeds=*) seeds=${word#*=} ;;
    --sanitizer=none | --sanitizer=memcheck | --sanitizer=all) tools=${word#*=} ;;
    --only=*) only=${word#*=} ;;
    -*) echo "gpu-check.sh: unknown $word; -h lists what there is" >&2; exit 2 ;;
    *)
        words=$((words + 1))
        case $words in 1) infer=$word ;; 2) golden=$word ;; *) out=$word ;; esac
        ;;
    esac
done
for number in "$seconds" "$seeds"; do
    case $number in '' | *[!0-9]*) echo "gpu-check.sh: '$number' is no number" >&2; exit 2 ;; esac
done
[ -n "$infer" ] || { usage >&2; exit 2; }
[ -z "$golden" ] || golden=$(cd "$golden" && pwd) || exit 2
out=${out:-gpu-check-out}
patience=${PATIENCE:-1}
deadline=$(($(date +%s) + seconds * patience))
failed=0
tmp=$(mktemp -d)
mkdir -p "$out"
log=$out/log.txt
output=$out/step.txt
: >"$log"
: >"$tmp/table"
trap '[ -s "$tmp/code" ] || kill -s KILL "$(cat "$tmp/pid" 2>/dev/null)" 2>/dev/null; rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM

case $infer in
*.gz) gunzip -c "$infer" >"$tmp/infer" && chmod +x "$tmp/infer" && infer=$tmp/infer ;;
esac
if [ -z "${INFER_CUDA_LIB:-}" ] && command -v python3 >/dev/null; then
    INFER_CUDA_LIB=$(python3 -c 'import glob, nvidia, os
found = [lib for place in nvidia.__path__ for folder in ("cu1*", "cublas")
    for lib in glob.glob(place + "/" + folder + "/lib/libcublasLt.so.1*")]
print(os.path.dirname(found[0]))' 2>/dev/null) && export INFER_CUDA_LIB
fi

say() {
    echo "$@" | tee -a "$log"
}

# Seconds left for this step; never 0, which `timeout` takes as no limit.
left() {
    limit=$((until - $(date +%s)))
    [ "$limit" -gt 0 ] || limit=1
    echo "$limit"
}

limited() {
    timeout -k 5 "$(left)" "$@"
}

# step NAME SECONDS COMMAND...: a row of the table. The command observes the limit through `left` and may set `verdict`.
step() {
    name=$1
    case ",${only:-$name}," in *",$name,"*) ;; *) return ;; esac
    begun=$(date +%s)
    until=$((begun + $2 * patience))
    shift 2
    [ "$until" -le "$deadline" ] || until=$deadline
    verdict=passed
    : >"$output"
    echo "== $name: $*" >>"$log"
    if [ $((until - begun)) -lt 10 ]; then
        verdict="not run: no time left"
    else
        "$@" >"$output" 2>&1 </dev/null
        code=$?
        case $code in
        0) ;;
        124 | 137) verdict="FAILED: stopped by its limit" ;;
        *) verdict="FAILED: exit code $code" ;;
        esac
        [ "$code" -eq 0 ] || failed=1
    fi
    printf '%-22s %-46s %4d s\n' "$name" "$verdict" $(($(date +%s) - begun)) >>"$tmp/table"
    { cat "$output"; echo; } >>"$log"
    tail -n 1 "$tmp/table"
    case $verdict in FAILED*) tail -n 25 "$output" | cut -c 1-300 ;; esac
}

# Starts a server with these flags in its own process and sets `url` and `admin`. The caller stops it.
start() {
    rm -f "$tmp/code"
    : >"$tmp/server"
    (
        INFER_LOG=info,infer_server::data=warn,infer_server::engine=warn "$infer" serve --device cuda --port 0 \
            --admin 127.0.0.1:0 --kv-memory 4GiB "$@" >"$tmp/server" 2>&1 &
        echo $! >"$tmp/pid"
        wait $!
        echo $? >"$tmp/code"
    ) &
    url=
    while [ -z "$url" ] && [ ! -s "$tmp/code" ] && [ "$(left)" -gt 1 ]; do
        sleep 0.2
        url=$(sed -n 's/^listening on \([^ ]*\) .*/\1/p' "$tmp/server")
        admin=$(sed -n 's/^listening on .*(admin \([^)]*\)).*/\1/p' "$tmp/server")
    done
    [ -n "$url" ] || { echo "the server did not start"; stop KILL; return 1; }
}

# Signals the server, which must still be running, drain, and exit with 0.
stop() {
    kill -s "$1" "$(cat "$tmp/pid")" 2>/dev/null
    there=$?
    for _ in $(seq $((100 * patience))); do
        [ -s "$tmp/code" ] && break
        sleep 0.2
    done
    if [ ! -s "$tmp/code" ]; then
        echo "the server is still running $((20 * patience)) s after SIG$1"
        kill -s KILL "$(cat "$tmp/pid")"
        sleep 1
    fi
    cat "$tmp/server"
    code=$(cat "$tmp/code")
    echo "the server's exit code after SIG$1: $code"
    [ "$there" -eq 0 ] && [ "$code" = 0 ]
}

# With kernels that start only once those before them are done.
plainly() {
    (export INFER_CUDA_EARLY=off && limited "$@")
}

# With products that do nothing but multiply.
apart() {
    (export INFER_CUDA_FUSED=off && limited "$@")
}

# With prompts' attention by products of warpgroups, where there are any.
by_warpgroups() {
    (export INFER_CUDA_WGMMA=on && limited "$@")
}

bench() {
    limited "$infer" bench serve --device cuda --baseline off --kv-memory 4GiB "$@"
}

sigterm() {
    start || return 1
    outcome=0
    limited "$infer" bench serve --url "$url" --workload w1,w2 --repeat 1 || outcome=1
    stop TERM || outcome=1
    return $outcome
}

# Swaps schedulers under load until told to stop. A refused swap is a failure.
swap() {
    count=0
    until [ -e "$tmp/calm" ]; do
        for policy in static-batch srpt fair priority continuous; do
            limited "$infer" policy swap scheduler "$policy" --admin "$admin" >"$tmp/swap" 2>&1 ||
                { echo "swap $count:"; cat "$tmp/swap"; return 1; }
            count=$((count + 1))
        done
    done
    echo "$count swaps"
}

storm() {
    start || return 1
    outcome=0
    rm -f "$tmp/calm"
    swap &
    swaps=$!
    limited "$infer" bench serve --url "$url" --workload w2 --requests 128 || outcome=1
    : >"$tmp/calm"
    wait "$swaps" || outcome=1
    stop INT || outcome=1
    return $outcome
}

# Sends a fixed set of requests, one by one or at once. Prints a line per response: text and log-probabilities.
ask() {
    limited python3 - "$url" "$1" $((60 * patience)) <<'END'
import concurrent.futures, json, sys, urllib.request

def answer(i):
    prompt = [(31 * i + 7 * j + j * j) % 200 for j in range([3, 20, 70, 130, 300, 513, 700, 1200][i % 8])]
    body = dict(model="demo", prompt=prompt, max_tokens=48, temperature=i % 2, seed=i, ignore_eos=True, stream=False)
    if i % 3 == 2:
        body["logprobs"] = 2
    request = urllib.request.Request(sys.argv[1] + "/v1/completions", json.dumps(body).encode())
    choice = json.load(urllib.request.urlopen(request, timeout=int(sys.argv[3])))["choices"][0]
    return json.dumps([i, choice["finish_reason"], choice["text"], choice.get("logprobs")])

with concurrent.futures.ThreadPoolExecutor(24 if sys.argv[2] == "at-once" else 1) as threads:
    print(*threads.map(answer, range(24)), sep="\n")
END
}

# answers ORDERS WANTED FLAGS...: a server with these flags must give the same responses as the first one started for
# WANTED. Prefix caching is off, so only the batches differ between orders.
answers() {
    orders=$1
    wanted=$tmp/answers-$2
    shift 2
    start --prefix-caching off --prompt-cache-entries 0 "$@" || return 1
    outcome=0
    for order in $orders; do
        ask "$order" >"$tmp/answers" || outcome=1
        [ -e "$wanted" ] || cp "$tmp/answers" "$wanted"
        diff "$wanted" "$tmp/answers" && echo "$(grep -c . "$tmp/answers") responses $order are as expected" ||
            outcome=1
    done
    stop TERM || outcome=1
    return $outcome
}

# sanitizer TOOL ARGUMENTS...: runs the program under compute-sanitizer. If the limit stops it (SIGINT, so the tool still
# prints its summary), what ran so far counts as passed. API errors aren't reported, because the program requests too much
# memory on purpose. The tool itself uses device memory, so failures of the check of free memory don't count.
sanitizer() {
    tool=$1
    shift
    limit=$(left)
    timeout -s INT -k 10 "$limit" compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 86 \
        "$infer" "$@" >"$tmp/sanitizer" 2>&1
    code=$?
    cat "$tmp/sanitizer"
    echo "exit code $code"
    found='^=+ +(Invalid|Misaligned|Uninitialized|Fatal|Barrier|(Error: |Warning: )?(Race|Potential))'
    # Hazards within cuBLASLt's own kernels are not ours; a summary and the exit code don't tell whose they are.
    theirs='(nvjet|cutlass|cublas|splitKreduce)'
    summary='SUMMARY: [1-9]'
    if [ "$tool" = racecheck ] && grep -Eq "Race.*$theirs" "$tmp/sanitizer"; then
        echo "hazards within cuBLASLt's kernels don't count"
        grep -Ev "Race.*$theirs" "$tmp/sanitizer" >"$tmp/ours"
        mv "$tmp/ours" "$tmp/sanitizer"
        summary=$found
        [ "$code" -ne 86 ] || code=0
    fi
    if grep -q "Device not supported" "$tmp/sanitizer"; then
        verdict="not run: compute-sanitizer refuses this device"
    elif grep -Eq "$found|$summary" "$tmp/sanitizer" || grep '^FAILED' "$tmp/sanitizer" | grep -qv 'memory runs out'; then
        return 1
    elif [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then
        verdict="stopped after $limit s, no error so far"
    elif [ "$code" -ne 0 ] && ! grep -q '^FAILED  memory runs out' "$tmp/sanitizer"; then
        return 1
    fi
}

if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1 | tee -a "$log"
fi
# The most important checks first; then every kernel with more seeds, whose references take minutes of CPU time.
step golden 120 limited "$infer" gpu-check --seeds 1 ${golden:+--golden "$golden"}
step golden-plainly 60 plainly "$infer" gpu-check --seeds 1 ${golden:+--golden "$golden"}
step golden-apart 60 apart "$infer" gpu-check --seeds 1 ${golden:+--golden "$golden"}
[ -z "$golden" ] || step golden-wgmma 60 by_warpgroups "$infer" gpu-check --seeds 1 --golden "$golden" --only golden \
    --only deterministic --only graphs --only paged --only draft
[ "$seeds" -eq 1 ] || step kernels 150 limited "$infer" gpu-check --seeds "$seeds"
# Requests one after the other; sixteen at a time; sixteen that share a prefix. Greedy, so all must come through.
step serve 60 bench --workload w1,w2,w3
step serve-plan-ahead 60 bench --workload w1,w2 --plan-ahead on
step serve-deterministic 60 bench --workload w1,w2 --deterministic on
step sigterm 60 sigterm
step storm 90 storm
if command -v python3 >/dev/null; then
    step answers 45 answers one-by-one any
    step answers-plan-ahead 45 answers one-by-one any --plan-ahead on
    step answers-deterministic 45 answers "one-by-one at-once" fixed --deterministic on
    step answers-both 45 answers "one-by-one at-once" fixed --deterministic on --plan-ahead on
    step answers-drafts 45 answers "one-by-one at-once" fixed --deterministic on --speculate 7
else
    say "No python3: answers are not compared."
fi
if [ "$tools" = none ]; then
    :
elif command -v compute-sanitizer >/dev/null; then
    # Executor, graphs and staging: a short load; then every kernel and, of the golden data, the logits of the model that
    # has adapters, with and without them, and what needs none.
    short="bench serve --device cuda --baseline off --kv-memory 256MiB --workload w2 --requests 3 --plan-ahead on"
    few="gpu-check --seeds 1"
    if [ -n "$golden" ]; then
        for place in "$golden"/*/; do
            family=$tmp/few/$(basename "$place")
            mkdir -p "$family"
            ln -s "$place"* "$family"
            case $family in */qwen3-bf16) ;; *) rm -f "$family/golden.safetensors" ;; esac
        done
        few="$few --golden $tmp/few"
    fi
    # Unquoted: words.
    step memcheck-serve 60 sanitizer memcheck $short
    step memcheck 110 sanitizer memcheck $few
    if [ "$tools" = all ]; then
        step racecheck-serve 60 sanitizer racecheck $short
        step racecheck 110 sanitizer racecheck $few
    fi
else
    say "No compute-sanitizer: memory accesses and races are not checked."
fi

rm -f "$output"
for name in $(echo "$only" | tr , ' '); do
    grep -q "^$name " "$tmp/table" || printf '%-22s FAILED: there is no such step here\n' "$name" >>"$tmp/table"
done
grep -q FAILED "$tmp/table" && failed=1
{ echo; cat "$tmp/table"; } | tee -a "$log"
skipped=$(grep -c 'not run' "$tmp/table")
if [ "$failed" -ne 0 ]; then say "Some checks FAILED; see $log."; else say "No check failed; $skipped steps were not run."; fi
exit "$failed"
