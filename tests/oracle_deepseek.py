"""DeepSeek's published training profile: one overlapped pair of chunks of four MoE layers.

Read off `train.json` of github.com/deepseek-ai/profile-data (rank 0 of 64, H800, 64
expert-parallel ranks, sequence 4K): the spans of each part, in ms, in the order
in which the pair ran them. The pair took 129.0 ms, 4.2 ms of its all-to-all exposed.
"""

PROFILE = {
    "comb_b": [4.42, 5.23, 6.21, 7.28],
    "attn_f": [4.83, 4.39, 4.57, 4.60],
    "mlp_b": [5.75, 5.47, 5.47, 4.77],
    "disp_f": [6.09, 5.75, 7.13, 7.99],
    "disp_b": [7.34, 7.91, 7.52, 7.47],
    "mlp_wgrad": [5.33, 5.06, 5.26, 4.64],
    "mlp_f": [4.29, 4.42, 5.21, 4.64],
    "attn_b": [9.21, 9.56, 9.65, 9.74],
    "attn_wgrad": [2.38, 2.39, 2.40, 2.41],
    "comb_f": [7.33, 8.26, 9.54, 9.65],
}
