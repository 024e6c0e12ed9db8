#!/bin/sh
# A RUSTC_WRAPPER that adds libFuzzer's instrumentation to this project's crates and the parsers that they use. Everything
# else, above all wasmtime's compiler, is built without: instrumented, it would take hours to build and dominate coverage.
rustc=$1
shift

crate=
before=
for argument; do
    [ "$before" = --crate-name ] && crate=$argument
    before=$argument
done

# Build scripts and proc macros are compiled without --target.
case " $* " in
    *" --target "*) ;;
    *) exec "$rustc" "$@" ;;
esac

case $crate in
    # The targets, the host, and the parsers that it uses.
    adapter | calls | chat | component | config | events | fuzz_case | gguf | grammar | model_config | recording | request | \
        safetensors | template | tenants | tokenizer | trace | \
        infer_* | \
        aho_corasick | base64 | csv* | derivre | httparse | llguidance | memchr | minijinja* | regex* | serde* | \
        tokenizers | toktrie* | toml* | wasmparser | winnow)
        exec "$rustc" "$@" --cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module \
            -Cllvm-args=-sanitizer-coverage-level=4 \
            -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
            -Cllvm-args=-sanitizer-coverage-pc-table \
            -Cllvm-args=-sanitizer-coverage-trace-compares
        ;;
    *) exec "$rustc" "$@" ;;
esac
