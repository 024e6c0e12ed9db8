// One translation unit with every kernel: what the build compiles.
#include "attention_decode.cu"
#include "attention_plain.cu"
#include "attention_prefill.cu"
#include "elementwise.cu"
#include "kv_write.cu"
#include "norm.cu"
#include "product.cu"
#include "sample.cu"
