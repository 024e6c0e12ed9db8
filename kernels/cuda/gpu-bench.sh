#!/bin/sh
# The GPU's figures for kernels/README.md, and its peers' in the same run, with a carried binary.
#   sh gpu-bench.sh INFER [OUT_DIR] [--quick]
set -u
infer=$1
out=${2:-gpu-bench-out}
quick=${3:-}
mkdir -p "$out"
if [ -z "${INFER_CUDA_LIB:-}" ] && command -v python3 >/dev/null; then
    INFER_CUDA_LIB=$(python3 -c 'import nvidia, os
print(os.path.join(list(nvidia.__path__)[0], "cu13", "lib"))' 2>/dev/null) && export INFER_CUDA_LIB
fi
date -u
"$infer" bench kernels $quick | tee "$out/kernels.txt"
"$infer" bench engine --device cuda $quick | tee "$out/engine.txt"
python3 "$(dirname "$0")/peers.py" $quick | tee "$out/peers.txt"
date -u
