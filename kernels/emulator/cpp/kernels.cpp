// The kernels' own sources, read by the host compiler; and the machine that runs them.
#define INFER_EMULATE
#include "emulate.cpp"

#include "all.cu"
