// The kernels' sources, compiled for the host, and the emulator that runs them.
#define INFER_EMULATE
#include "emulate.cpp"

#include "all.cu"
