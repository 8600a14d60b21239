typedef int sl_placeholder_attn_avx2;
