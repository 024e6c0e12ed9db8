#!/bin/sh
# A RUSTC_WRAPPER: libFuzzer's instrumentation for what reads strangers' bytes, that is this project's crates and the
# parsers under them. Everything else, wasmtime's compiler above all, is built as ever: instrumented it would take
# hours to build and most of the fuzzer's attention.
rustc=$1
shift

crate=
before=
for argument; do
    [ "$before" = --crate-name ] && crate=$argument
    before=$argument
done

# What runs while building has no --target.
case " $* " in
    *" --target "*) ;;
    *) exec "$rustc" "$@" ;;
esac

case $crate in
    # The targets themselves, the host, and what it gives such bytes to.
    calls | chat | component | config | events | fuzz_case | gguf | grammar | model_config | recording | request | \
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
