// What becomes of a projection to queries, keys and values, shared by the kernel that does this alone and the product that does
// it at its end.
#pragma once

#include "device.cuh"

struct KvWriteParams {
    void* qkv;             // [token][(heads + 2 * kv_heads) * head_dim]
    void* keys;            // One layer's pool.
    void* values;
    const float* bias;     // Of the projection, or null.
    const float* q_norm;   // Of a head's width, the same for all, or null. Of all heads together: of their width.
    const float* k_norm;
    const float* rope;     // [position][cosines, then sines]
    const u32* positions;
    const u32* slots;      // block * block_size + offset. NONE writes nothing; the token's position doesn't count.
    u32 heads;
    u32 kv_heads;
    u32 head_dim;
    u32 block_size;
    float epsilon;
    u32 tokens;
};

// Index in a pool of the slot's numbers of a head, which is counted on from keys to values.
DEVICE u64 slot_index(const KvWriteParams& p, u32 head, u32 slot) {
    const u64 block = slot / p.block_size, kv_head = (head - p.heads) % p.kv_heads;
    return ((block * p.kv_heads + kv_head) * p.block_size + slot % p.block_size) * p.head_dim;
}
